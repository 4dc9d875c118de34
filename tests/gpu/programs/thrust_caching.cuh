// SPDX-License-Identifier: Apache-2.0
// The caching allocator that people write by hand for Thrust: free blocks by size, taken again when
// the size is the same, everything on one stream and in one thread. What thrust_loop is measured
// against; it is asked for with allocator=caching.
#pragma once

#include <cuda_runtime.h>
#include <thrust/device_malloc_allocator.h>
#include <thrust/device_ptr.h>

#include <cstddef>
#include <map>
#include <new>
#include <unordered_map>

// Thrust's algorithms take their temporary storage from it: thrust::cuda::par(cache).
class ThrustCache {
 public:
  using value_type = char;

  char* allocate(std::ptrdiff_t bytes) {
    const auto free = free_.find(bytes);
    char* pointer = nullptr;
    if (free != free_.end()) {
      pointer = free->second;
      free_.erase(free);
    } else if (cudaMalloc(&pointer, static_cast<size_t>(bytes)) != cudaSuccess) {
      throw std::bad_alloc();
    }
    live_.emplace(pointer, bytes);
    return pointer;
  }

  void deallocate(char* pointer, size_t) {
    const auto live = live_.find(pointer);
    if (live == live_.end()) throw std::bad_alloc();
    free_.emplace(live->second, pointer);
    live_.erase(live);
  }

  void release() {
    for (const auto& block : free_) cudaFree(block.second);
    free_.clear();
  }

 private:
  std::multimap<std::ptrdiff_t, char*> free_;
  std::unordered_map<char*, std::ptrdiff_t> live_;
};

inline ThrustCache& thrust_cache() {
  static auto* cache = new ThrustCache;  // never destroyed: vectors may outlive the end of main
  return *cache;
}

// The same for the vectors themselves.
template <class T>
struct ThrustCacheAllocator : thrust::device_malloc_allocator<T> {
  using Base = thrust::device_malloc_allocator<T>;
  using pointer = typename Base::pointer;
  using size_type = typename Base::size_type;

  template <class U>
  struct rebind {
    using other = ThrustCacheAllocator<U>;
  };

  ThrustCacheAllocator() = default;
  template <class U>
  ThrustCacheAllocator(const ThrustCacheAllocator<U>&) {}

  pointer allocate(size_type count) {
    char* bytes = thrust_cache().allocate(static_cast<std::ptrdiff_t>(count * sizeof(T)));
    return pointer(reinterpret_cast<T*>(bytes));
  }
  void deallocate(pointer block, size_type count) {
    thrust_cache().deallocate(reinterpret_cast<char*>(block.get()), count * sizeof(T));
  }
};
