// SPDX-License-Identifier: Apache-2.0
// NVTX version 3, header-only: without a tool each call checks a null pointer.
// NVTX_INJECTION64_PATH names a tool; nothing is linked.
#include "trace/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "util/clock.h"

namespace cupool::trace {

namespace {

constexpr std::uint64_t kMarkStepNs = 100'000;
constexpr std::size_t kDevices = 64;

struct Curve {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::uint64_t> marked_ns{0};
};

// Until a tool has answered, none of its functions may be called: each would wait for the first.
std::atomic<bool> is_ready{false};
nvtxDomainHandle_t domain = nullptr;
nvtxStringHandle_t malloc_name = nullptr;
nvtxStringHandle_t free_name = nullptr;
std::array<Curve, kDevices> curves;

nvtxEventAttributes_t attributes_of(std::uint64_t bytes) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = bytes;
  return attributes;
}

bool begin(const nvtxStringHandle_t& name, std::uint64_t bytes) {
  if (!is_ready.load(std::memory_order_acquire)) return false;
  nvtxEventAttributes_t attributes = attributes_of(bytes);
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = name;
  nvtxDomainRangePushEx(domain, &attributes);
  return true;
}

}  // namespace

void start_nvtx() noexcept {
  static std::atomic<bool> has_begun{false};
  if (has_begun.exchange(true)) return;
  domain = nvtxDomainCreateA("cupool");
  malloc_name = nvtxDomainRegisterStringA(domain, "malloc");
  free_name = nvtxDomainRegisterStringA(domain, "free");
  is_ready.store(true, std::memory_order_release);
}

bool nvtx_begin_malloc(std::uint64_t bytes) noexcept {
  return begin(malloc_name, bytes);
}

bool nvtx_begin_free(std::uint64_t bytes) noexcept {
  return begin(free_name, bytes);
}

void nvtx_end() noexcept {
  nvtxDomainRangePop(domain);
}

void nvtx_changed(const Memory& memory, bool allocated) noexcept {
  if (memory.device < 0 || static_cast<std::size_t>(memory.device) >= kDevices) return;
  Curve& curve = curves[static_cast<std::size_t>(memory.device)];
  const auto bytes = static_cast<std::int64_t>(memory.bytes);
  const std::int64_t change = allocated ? bytes : -bytes;
  const std::int64_t live = curve.live.fetch_add(change, std::memory_order_relaxed) + change;
  if (!is_ready.load(std::memory_order_acquire)) return;
  const std::uint64_t now = util::now_ns();
  std::uint64_t marked = curve.marked_ns.load(std::memory_order_relaxed);
  if (now - marked < kMarkStepNs ||
      !curve.marked_ns.compare_exchange_strong(marked, now, std::memory_order_relaxed)) {
    return;
  }
  char name[48];
  std::snprintf(name, sizeof name, "live bytes of device %d", memory.device);
  // Blocks allocated before counting began may be freed later.
  nvtxEventAttributes_t attributes = attributes_of(live < 0 ? 0 : static_cast<std::uint64_t>(live));
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainMarkEx(domain, &attributes);
}

}  // namespace cupool::trace
