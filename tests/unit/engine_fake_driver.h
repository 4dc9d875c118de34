// SPDX-License-Identifier: Apache-2.0
// A driver for tests and benchmarks of the engine alone: plain memory, and a GPU that is a counter
// of fences, moved by hand or by the clock. Its calls cost little, so that what is counted and
// timed is the engine; what CUDA promises is the simulated device's (tests/sim).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "cuda/driver.h"
#include "empty_heap.h"
#include "util/clock.h"

namespace cupool::test {

struct FakeGpu {
  enum class Work { none, held, timed };
  std::atomic<Work> work{Work::none};
  std::atomic<std::uint64_t> takes_ns{0};   ///< timed: how long after its record a fence completes
  std::atomic<std::uint64_t> call_ns{0};    ///< what a record and a query cost
  std::atomic<std::uint64_t> recorded{0};   ///< fences so far
  std::atomic<std::uint64_t> completed{0};  ///< held: all fences up to this one are complete
  std::atomic<std::uint64_t> queries{0};
  std::atomic<std::uint64_t> frees{0};
  std::atomic<std::uint64_t> next_address{std::uint64_t{1} << 40};
  std::atomic<std::uint64_t> held_bytes{0};  ///< that the driver has given
  std::atomic<std::uint64_t> capacity{std::uint64_t{8} << 30};

  /// Everything recorded so far is done.
  void finish() { completed.store(recorded.load()); }
};
inline FakeGpu gpu;

namespace fake {

struct Event {
  std::atomic<std::uint64_t> number{0};
  std::atomic<std::uint64_t> time_ns{0};
  Event* older = nullptr;  ///< all are reachable: the driver's go with their context
};
inline std::atomic<Event*> newest_event{nullptr};

inline std::atomic<std::uintptr_t> drivers{0};
inline CUcontext context() {
  return reinterpret_cast<CUcontext>(drivers.load());
}

inline void spend() {
  const std::uint64_t cost = gpu.call_ns.load(std::memory_order_relaxed);
  if (cost == 0) return;
  for (const std::uint64_t end = util::now_ns() + cost; util::now_ns() < end;) {
  }
}

inline CUresult get_current(CUcontext* current) {
  *current = context();
  return CUDA_SUCCESS;
}
inline CUresult get_device(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
inline CUresult get_count(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
inline CUresult get_name(char* name, int size, CUdevice) {
  std::strncpy(name, "fake", static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
inline CUresult total_memory(std::size_t* bytes, CUdevice) {
  *bytes = gpu.capacity.load();
  return CUDA_SUCCESS;
}
inline CUresult create_event(CUevent* event, unsigned int) {
  const DriversHeap own;
  auto* const created = new Event;  // never destroyed, as by the engine
  created->older = newest_event.exchange(created);
  *event = reinterpret_cast<CUevent>(created);
  return CUDA_SUCCESS;
}
inline CUresult record(CUcontext, CUevent event) {
  spend();
  auto* recorded = reinterpret_cast<Event*>(event);
  recorded->time_ns.store(util::now_ns());
  recorded->number.store(gpu.recorded.fetch_add(1) + 1);
  return CUDA_SUCCESS;
}
inline CUresult record_on_stream(CUevent event, CUstream) {
  return record(nullptr, event);
}
inline CUresult query(CUevent event) {
  spend();
  gpu.queries.fetch_add(1, std::memory_order_relaxed);
  const auto* asked = reinterpret_cast<const Event*>(event);
  bool done = true;
  if (gpu.work.load() == FakeGpu::Work::held) done = asked->number.load() <= gpu.completed.load();
  if (gpu.work.load() == FakeGpu::Work::timed) {
    done = util::now_ns() >= asked->time_ns.load() + gpu.takes_ns.load();
  }
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
inline CUresult wait(CUevent event) {
  const std::uint64_t number = reinterpret_cast<const Event*>(event)->number.load();
  while (gpu.work.load() == FakeGpu::Work::timed && query(event) != CUDA_SUCCESS) {
  }
  for (std::uint64_t seen = gpu.completed.load();
       seen < number && !gpu.completed.compare_exchange_weak(seen, number);) {
  }
  return CUDA_SUCCESS;
}
inline CUresult synchronize() {
  gpu.finish();
  return CUDA_SUCCESS;
}
inline CUresult allocate(CUdeviceptr* address, std::size_t bytes) {
  if (gpu.held_bytes.fetch_add(bytes) + bytes > gpu.capacity.load()) {
    gpu.held_bytes.fetch_sub(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;
  *address = gpu.next_address.fetch_add((bytes + kUnit - 1) / kUnit * kUnit);
  return CUDA_SUCCESS;
}
inline CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
inline CUresult memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  *total_bytes = gpu.capacity.load();
  const std::size_t held = gpu.held_bytes.load();
  *free_bytes = *total_bytes - (held < *total_bytes ? held : *total_bytes);
  return CUDA_SUCCESS;
}
inline CUresult free(CUdeviceptr) {
  gpu.frees.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

}  // namespace fake

/// The driver's table; one GPU, idle, and nothing counted yet. Its context is a new one.
inline cuda::Driver fake_driver() {
  ++fake::drivers;
  gpu.work.store(FakeGpu::Work::none);
  gpu.takes_ns.store(0);
  gpu.call_ns.store(0);
  gpu.queries.store(0);
  gpu.completed.store(gpu.recorded.load());
  gpu.held_bytes.store(0);
  gpu.capacity.store(std::uint64_t{8} << 30);
  cuda::Driver driver;
  driver.version = 13000;
  driver.cuCtxGetCurrent = fake::get_current;
  driver.cuCtxGetDevice = fake::get_device;
  driver.cuDeviceGetCount = fake::get_count;
  driver.cuDeviceGetName = fake::get_name;
  driver.cuDeviceTotalMem_v2 = fake::total_memory;
  driver.cuDeviceGetAttribute = fake::attribute;
  driver.cuEventCreate = fake::create_event;
  driver.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
  driver.cuCtxRecordEvent = fake::record;
  driver.cuEventRecord = fake::record_on_stream;
  driver.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_SUCCESS; };
  driver.cuEventQuery = fake::query;
  driver.cuEventSynchronize = fake::wait;
  driver.cuCtxSynchronize = fake::synchronize;
  driver.cuMemAlloc_v2 = fake::allocate;
  driver.cuMemFree_v2 = fake::free;
  driver.cuMemGetInfo_v2 = fake::memory_info;
  return driver;
}

}  // namespace cupool::test
