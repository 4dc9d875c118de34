// SPDX-License-Identifier: Apache-2.0
// The guards of newer functions.
#include "entry/newer.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "cuda/driver.h"
#include "engine/context/submission.h"
#include "entry/guards.h"
#include "entry/mpi_calls.h"
#include "entry/substitution.h"
#include "process/lifecycle.h"
#include "util/log.h"

// In guards_*.S: an array of entries.
extern "C" const char cupool_newer_entries[] __attribute__((visibility("hidden")));

namespace cupool::entry {
namespace {

constexpr std::size_t kGuards = CUPOOL_NEWER_ENTRIES;
constexpr std::size_t kEntryBytes = std::size_t{1} << CUPOOL_NEWER_ENTRY_SHIFT;

struct Guard {
  std::atomic<void*> real{nullptr};  ///< null: unused
  std::array<char, 64> symbol{};
  std::atomic<bool> named{false};
};
std::array<Guard, kGuards> guards;

// Prefixes of the names of such functions.
constexpr std::string_view kKinds[] = {
    "cuMemcpy",          "cuMemset",           "cuStreamBegin",      "cuStreamCreate",
    "cuStreamWaitValue", "cuStreamWriteValue", "cuStreamBatchMemOp", "cuLaunch",
    "cuGraphLaunch",     "cuFabricCpy"};
constexpr std::string_view kAsync = "Async";

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Without _ptsz and without a version; `versioned` tells whether there was one.
std::string_view base_of(std::string_view symbol, bool* versioned) {
  *versioned = false;
  for (;;) {
    const std::size_t at = symbol.rfind('_');
    if (at == std::string_view::npos) return symbol;
    const std::string_view end = symbol.substr(at + 1);
    const bool version = end.size() > 1 && end[0] == 'v' &&
                         end.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (!version && end != "ptsz" && end != "ptds") return symbol;
    *versioned = *versioned || version;
    symbol = symbol.substr(0, at);
  }
}

}  // namespace

bool is_of_guarded_kind(std::string_view base) {
  // The runtime and the libraries go on in lower case.
  if (!begins_with(base, "cu") || base.size() < 3 || base[2] < 'A' || base[2] > 'Z') return false;
  for (const std::string_view kind : kKinds) {
    if (begins_with(base, kind)) return true;
  }
  return base.size() >= kAsync.size() && base.substr(base.size() - kAsync.size()) == kAsync;
}

bool is_newer(const char* symbol) {
  if (is_driver_hook(symbol)) return false;
  bool versioned = false;
  const std::string_view base = base_of(symbol, &versioned);
  // The form without a version is the oldest.
  return is_hooked_base(base) ? versioned : is_of_guarded_kind(base);
}

void* guard_newer(const char* symbol, void* real) {
  for (std::size_t i = 0; i < kGuards; ++i) {
    Guard& guard = guards[i];
    void* found = nullptr;
    if (guard.real.compare_exchange_strong(found, real, std::memory_order_acq_rel)) {
      std::strncpy(guard.symbol.data(), symbol, guard.symbol.size() - 1);
      guard.named.store(true, std::memory_order_release);
      CUPOOL_LOG(
          debug,
          "%s is newer than this version of cupool, which steps aside if the program calls it",
          symbol);
      found = real;
    }
    if (found == real) return const_cast<char*>(cupool_newer_entries) + i * kEntryBytes;
  }
  return real;
}

}  // namespace cupool::entry

namespace {

void* newer_called(std::uint64_t index) {
  using namespace cupool::entry;
  const Guard& guard = guards[index];
  if (const cupool::cuda::Driver* const driver = cupool::cuda::driver()) {
    cupool::engine::submits_unknown(*driver, "a function that cupool does not know");
  }
  cupool::engine::Allocator* const allocator = cupool::process::started_engine();
  if (allocator != nullptr && allocator->step_aside().serves()) {
    const bool named = guard.named.load(std::memory_order_acquire);
    std::array<char, 192> reason{};
    std::snprintf(
        reason.data(), reason.size(),
        "the program calls %s, which this version of cupool does not know (a later version may)",
        named ? guard.symbol.data() : "a function");
    allocator->step_aside().stop_serving(reason.data());
  }
  return guard.real.load(std::memory_order_acquire);
}

}  // namespace

/// Called by each guard before its function; returns the function's address.
extern "C" __attribute__((visibility("hidden"))) void* cupool_guard_called(std::uint64_t index,
                                                                           const void* caller) {
  using cupool::entry::mpi_called;
  return index < CUPOOL_NEWER_ENTRIES ? newer_called(index)
                                      : mpi_called(index - CUPOOL_FIRST_MPI_ENTRY, caller);
}
