// SPDX-License-Identifier: Apache-2.0
// How the driver's pools grow and align their blocks (src/engine/backend rests on it), also with
// small and large ones in one pool, what a trim takes, and what one with a largest size reserves.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "driver_facts.h"

inline std::uint64_t reserved(CUmemoryPool pool) {
  cuuint64_t bytes = 0;
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

inline void pools() {
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const std::uint64_t size : {std::uint64_t{512}, std::uint64_t{65536}, std::uint64_t{2} << 20,
                                   std::uint64_t{34} << 20, std::uint64_t{256} << 20}) {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool pool = nullptr;
    MUST(cuMemPoolCreate(&pool, &properties));
    cuuint64_t keep = UINT64_MAX;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CUdeviceptr first = 0;
    MUST(cuMemAllocFromPoolAsync(&first, size, pool, stream));
    const std::uint64_t after_one = reserved(pool);
    std::vector<CUdeviceptr> more;
    for (int i = 0; i < 40; ++i) {
      CUdeviceptr address = 0;
      MUST(cuMemAllocFromPoolAsync(&address, size * (1 + i % 3), pool, stream));
      more.push_back(address);
    }
    const std::uint64_t peak = reserved(pool);
    bool aligned = first % (2 << 20) == 0;
    for (std::size_t i = 0; i < more.size(); i += 2) MUST(cuMemFreeAsync(more[i], stream));
    for (std::size_t i = 0; i < more.size(); i += 2) {
      MUST(cuMemAllocFromPoolAsync(&more[i], size * (1 + i % 2), pool, stream));
    }
    for (const CUdeviceptr address : more) aligned = aligned && address % (2 << 20) == 0;
    std::printf(
        "pool of %llu byte blocks: one reserves %llu, 41 reserve %llu, all 2 MiB aligned %d\n",
        static_cast<unsigned long long>(size), static_cast<unsigned long long>(after_one),
        static_cast<unsigned long long>(peak), aligned);
    for (const CUdeviceptr address : more) MUST(cuMemFreeAsync(address, stream));
    MUST(cuMemFreeAsync(first, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
  }
  MUST(cuStreamDestroy(stream));
}

// Small and large blocks in one pool, which come and go: how many of the large ones are 2 MiB
// aligned.
inline void mixed_pool() {
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  MUST(cuMemPoolCreate(&pool, &properties));
  cuuint64_t keep = UINT64_MAX;
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  constexpr std::uint64_t kLarge = 2 << 20;
  std::vector<CUdeviceptr> live;
  int large = 0;
  int aligned = 0;
  std::uint64_t state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto random = static_cast<std::uint32_t>(state >> 33);
    if (live.size() > 60 || (random % 3 == 0 && !live.empty())) {
      CUdeviceptr& chosen = live[(random >> 4) % live.size()];
      MUST(cuMemFreeAsync(chosen, stream));
      chosen = live.back();
      live.pop_back();
    }
    const std::uint64_t size = random % 2 != 0 ? std::uint64_t{512} * (1 + random % 200)
                                               : kLarge * (1 + (random >> 8) % 5);
    CUdeviceptr address = 0;
    MUST(cuMemAllocFromPoolAsync(&address, size, pool, stream));
    live.push_back(address);
    if (size >= kLarge) {
      ++large;
      if (address % kLarge == 0) ++aligned;
    }
  }
  std::printf("one pool with small and large blocks: of %d large ones %d are 2 MiB aligned\n",
              large, aligned);
  for (const CUdeviceptr address : live) MUST(cuMemFreeAsync(address, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolDestroy(pool));
  MUST(cuStreamDestroy(stream));
}

// What a trim takes of memory that was freed behind work, by the way in which the host has seen the
// work complete.
inline void trims(CUcontext context) {
  CUmemoryPool pool = nullptr;
  CUdevice device = 0;
  MUST(cuCtxGetDevice(&device));
  MUST(cuDeviceGetDefaultMemPool(&pool, device));
  cuuint64_t keep = UINT64_MAX;
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  CUstream stream = nullptr;
  CUevent event = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const auto poll = [](auto query) {
    while (query() == CUDA_ERROR_NOT_READY) {
    }
  };
  for (const char* way : {"event of the context, waited for", "event of the context, polled",
                          "event of the stream, waited for", "stream, polled", "stream, waited for",
                          "context, waited for"}) {
    const std::string by = way;
    CUdeviceptr block = 0;
    MUST(cuMemAllocAsync(&block, 1ull << 30, stream));
    spin_on(stream, 20'000'000);
    MUST(cuMemFreeAsync(block, stream));
    if (by.rfind("event of the context", 0) == 0) MUST(cuCtxRecordEvent(context, event));
    if (by.rfind("event of the stream", 0) == 0) MUST(cuEventRecord(event, stream));
    if (by == "event of the context, polled") poll([&] { return cuEventQuery(event); });
    if (by == "stream, polled") poll([&] { return cuStreamQuery(stream); });
    if (by == "stream, waited for") MUST(cuStreamSynchronize(stream));
    if (by == "context, waited for") MUST(cuCtxSynchronize());
    if (by.rfind("event", 0) == 0 && by.find("waited") != std::string::npos) {
      MUST(cuEventSynchronize(event));
    }
    const std::uint64_t before = reserved(pool);
    MUST(cuMemPoolTrimTo(pool, 0));
    std::printf("trim behind work seen complete by %s: takes %llu of %llu bytes\n", way,
                static_cast<unsigned long long>(before - reserved(pool)),
                static_cast<unsigned long long>(before));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolTrimTo(pool, 0));
  }
  keep = 0;
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  MUST(cuEventDestroy(event));
  MUST(cuStreamDestroy(stream));
}

// What memory of a graph's allocation node says of its pool: whoever frees it must not take it for
// memory of a pool that the program can see.
inline void graph_node_pool() {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode node = nullptr;
  CUdevice device = 0;
  MUST(cuCtxGetDevice(&device));
  CUDA_MEM_ALLOC_NODE_PARAMS parameters = {};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  parameters.bytesize = 1 << 20;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
  CUmemoryPool none = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&none, device));
  CUmemoryPool pool = nullptr;
  const CUresult before =
      cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, parameters.dptr);
  MUST(cuGraphInstantiate(&executable, graph, 0));
  MUST(cuGraphLaunch(executable, stream));
  MUST(cuStreamSynchronize(stream));
  CUmemoryPool after_pool = nullptr;
  const CUresult after =
      cuPointerGetAttribute(&after_pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, parameters.dptr);
  std::printf(
      "memory of a graph's node: its pool is asked with answer %d and %s before the launch, %d and "
      "%s after it%s\n",
      static_cast<int>(before), pool == nullptr ? "none" : "a handle", static_cast<int>(after),
      after_pool == nullptr ? "none" : "a handle",
      after_pool == none ? ", the default pool's" : "");
  MUST(cuMemFreeAsync(parameters.dptr, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
  MUST(cuStreamDestroy(stream));
}

// What a pool with a largest size reserves for its first byte, and how much it then serves.
inline void limited_pools() {
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const CUmemAllocationHandleType handle :
       {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    for (const std::uint64_t mebibytes : {0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96}) {
      CUmemPoolProps properties = {};
      properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.handleTypes = handle;
      properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      properties.maxSize = mebibytes << 20;
      std::size_t free_before = 0;
      std::size_t free_after = 0;
      std::size_t total = 0;
      MUST(cuMemGetInfo(&free_before, &total));
      CUmemoryPool pool = nullptr;
      MUST(cuMemPoolCreate(&pool, &properties));
      cuuint64_t keep = UINT64_MAX;
      MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
      std::vector<CUdeviceptr> blocks(1);
      const double begin = now_us();
      const CUresult first = cuMemAllocFromPoolAsync(&blocks[0], 512, pool, stream);
      MUST(cuStreamSynchronize(stream));
      const double us = now_us() - begin;
      const std::uint64_t after_one = reserved(pool);
      MUST(cuMemGetInfo(&free_after, &total));
      if (first != CUDA_SUCCESS) blocks.clear();
      std::uint64_t served = 0;
      std::uint64_t steps = 0;
      std::uint64_t last = after_one;
      while (served < 160ull << 20) {
        CUdeviceptr address = 0;
        if (cuMemAllocFromPoolAsync(&address, 64 << 10, pool, stream) != CUDA_SUCCESS) break;
        blocks.push_back(address);
        served += 64 << 10;
        if (reserved(pool) != last) ++steps;
        last = reserved(pool);
      }
      std::printf(
          "pool with handle %d of at most %llu MiB: 512 bytes answer %d, reserve %.1f MiB, take "
          "%.1f "
          "MiB of the device and %.0f us; blocks of 64 KiB up to %.2f MiB in %llu more steps, "
          "%.1f MiB reserved\n",
          static_cast<int>(handle), static_cast<unsigned long long>(mebibytes),
          static_cast<int>(first), static_cast<double>(after_one) / (1 << 20),
          static_cast<double>(static_cast<long long>(free_before - free_after)) / (1 << 20), us,
          static_cast<double>(served) / (1 << 20), static_cast<unsigned long long>(steps),
          static_cast<double>(last) / (1 << 20));
      for (const CUdeviceptr address : blocks) MUST(cuMemFreeAsync(address, stream));
      MUST(cuStreamSynchronize(stream));
      MUST(cuMemPoolDestroy(pool));
    }
  }
  MUST(cuStreamDestroy(stream));
}
