// SPDX-License-Identifier: Apache-2.0
// Allocations and frees with their watchers (trace/watch.h, trace/other_memory.h).
#pragma once

#include "config/settings.h"
#include "cuda/scopes.h"
#include "engine/serve/allocator.h"
#include "process/lifecycle.h"
#include "trace/other_memory.h"
#include "trace/watch.h"
#include "util/clock.h"

namespace cupool::entry {

/// Makes an allocation of the program; `bytes` is recorded for a failure.
template <typename Call>
CUresult watched_allocation(engine::Allocator& allocator, std::uint64_t bytes,
                            const CUdeviceptr* address, const Call& call) {
  if (!trace::watching()) return call();
  const trace::CallRange range(trace::CallRange::Call::malloc, bytes);
  const std::uint64_t start = util::now_ns();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    trace::note_allocation_failure(bytes, start);
  } else if (const auto memory = allocator.queries().memory_at(*address)) {
    trace::note_allocation(*memory, start);
  }
  return result;
}

/// The device of memory, which that of its stream or pool is, not the current one; else
/// `otherwise`.
inline int device_of(CUdeviceptr address, int otherwise) {
  const cuda::Driver* const driver = cuda::driver();
  if (driver == nullptr || driver->cuPointerGetAttribute == nullptr) return otherwise;
  const cuda::RelaxedCaptureScope relaxed(*driver);
  int device = otherwise;
  const CUresult result =
      driver->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  return result == CUDA_SUCCESS ? device : otherwise;
}

/// The engine if memory of these kinds is watched, else null. Watchers begin with the engine, so it
/// is started where a setting asks for one: the call may be the first of its process.
inline engine::Allocator* watching_engine() {
  engine::Allocator* const running = process::engine();
  if (running == nullptr) {
    const config::Settings& settings = config::settings();
    if (settings.leaks.one_in == 0 && settings.trace.empty()) return nullptr;
    process::started_engine();
  }
  return trace::watching_other_kinds() ? process::engine() : nullptr;
}

/// Makes an allocation of a kind that the engine keeps no record of. `address()` is where it begins
/// afterwards, 0: nothing to note.
template <typename Address, typename Call>
CUresult watched_other_allocation(engine::Allocator& allocator, trace::MemoryKind kind,
                                  std::uint64_t bytes, const Address& address, const Call& call) {
  if (!trace::watching_other_kinds()) return call();
  const std::uint64_t start = util::now_ns();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    trace::note_allocation_failure(bytes, start, kind);
    return result;
  }
  const std::uint64_t begin = address();
  if (begin == 0) return result;
  engine::Context* const context = allocator.registry().current();
  int device = context == nullptr ? -1 : context->device().ordinal();
  if (kind == trace::MemoryKind::page_locked) device = -1;
  const bool ends_with_context = kind != trace::MemoryKind::stream_ordered;
  if (!ends_with_context) device = device_of(begin, device);
  trace::note_other_allocation({begin, bytes, device, kind}, ends_with_context ? context : nullptr,
                               start);
  return result;
}

/// Makes a free of memory of such a kind, or of other memory.
template <typename Call>
CUresult watched_other_free(std::uint64_t address, const Call& call) {
  if (!trace::watching_other_kinds()) return call();
  const std::uint64_t start = util::now_ns();
  const auto other = trace::note_other_free(address);
  const CUresult result = call();
  if (other) trace::note_other_free_done(*other, start, result != CUDA_SUCCESS);
  return result;
}

/// Makes a free of the program. A refused one is undone for watchers.
template <typename Call>
auto watched_free(engine::Allocator& allocator, CUdeviceptr address, const Call& call) {
  if (!trace::watching()) return call();
  const auto memory = allocator.queries().memory_at(address);
  if (!memory && trace::watching_other_kinds()) return watched_other_free(address, call);
  const trace::CallRange range(trace::CallRange::Call::free, memory ? memory->bytes : 0);
  const std::uint64_t start = util::now_ns();
  if (memory) trace::note_free(*memory);
  const auto result = call();
  if (memory) {
    const bool refused =
        allocator.queries().memory_at(address) && result != decltype(result){CUDA_SUCCESS};
    trace::note_free_done(*memory, start, refused);
  }
  return result;
}

}  // namespace cupool::entry
