// Remembers for each call site whether its library is one of CUPOOL_BYPASS_LIBS. The table only
// grows.
#include "entry/bypass.h"

#include <atomic>
#include <cstdint>
#include <string_view>

#include "config/settings.h"
#include "entry/caller.h"
#include "util/log.h"

namespace cupool::entry {
namespace {

// A return address, shifted left, with the answer in its lowest bit. 0: empty.
constexpr std::size_t kSlots = 1024;
std::atomic<std::uintptr_t> answers[kSlots];
thread_local bool in_bypassed_call;

// `library` is the beginning of a file name: "libnccl" stands for libnccl.so.2 as well.
bool is_listed(std::string_view library) {
  std::string_view list = config::settings().bypass_libs;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    const bool matches = !name.empty() && library.substr(0, name.size()) == name;
    // "libmpi" is not libmpich: what follows the name begins an ending or a version.
    if (matches && (library.size() == name.size() || library[name.size()] == '.' ||
                    library[name.size()] == '-' || library[name.size()] == '_')) {
      return true;
    }
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

bool look_up(const void* caller) {
  const char* library = object_of(caller);
  const bool listed = is_listed(library);
  if (listed) CUPOOL_LOG(debug, "allocations of %s are the driver's (CUPOOL_BYPASS_LIBS)", library);
  return listed;
}

}  // namespace

bool is_bypassed(const void* caller) {
  if (in_bypassed_call) return true;
  const auto key = reinterpret_cast<std::uintptr_t>(caller) << 1;
  auto slot = static_cast<std::size_t>((key * std::uint64_t{0x9e3779b97f4a7c15}) >> 54);
  for (std::size_t probe = 0; probe < kSlots; ++probe, slot = (slot + 1) % kSlots) {
    std::uintptr_t known = answers[slot].load(std::memory_order_relaxed);
    if ((known & ~std::uintptr_t{1}) == key) return (known & 1) != 0;
    if (known != 0) continue;
    const bool listed = look_up(caller);
    answers[slot].compare_exchange_strong(known, key | (listed ? 1 : 0), std::memory_order_relaxed);
    return listed;
  }
  return look_up(caller);  // more call sites than slots: right, only slower
}

BypassScope::BypassScope(bool bypass) : before_(in_bypassed_call) {
  in_bypassed_call = in_bypassed_call || bypass;
}

BypassScope::~BypassScope() {
  in_bypassed_call = before_;
}

}  // namespace cupool::entry
