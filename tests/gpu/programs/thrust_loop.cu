// SPDX-License-Identifier: Apache-2.0
// A plain Thrust program: transform, sort, scan and reduce of 1 Mi items in a loop, with vectors
// and temporary storage from Thrust's default allocator, which is cudaMalloc. The calls are counted
// at the link (--wrap), independently of cupool, and without a change to the program's own code.
// Arguments: iterations=N items=N, allocator=caching (a hand-written one, for comparison)
#include <cuda_runtime.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <atomic>

#include "common/gpu_test.h"
#include "thrust_caching.cuh"

namespace {
std::atomic<uint64_t> mallocs{0};
std::atomic<uint64_t> frees{0};
}  // namespace

extern "C" {
cudaError_t __real_cudaMalloc(void** pointer, size_t size);
cudaError_t __real_cudaFree(void* pointer);

cudaError_t __wrap_cudaMalloc(void** pointer, size_t size) {
  ++mallocs;
  return __real_cudaMalloc(pointer, size);
}
cudaError_t __wrap_cudaFree(void* pointer) {
  ++frees;
  return __real_cudaFree(pointer);
}
}

namespace {

struct Scramble {
  uint32_t seed;
  __host__ __device__ uint32_t operator()(uint32_t x) const {
    x ^= seed;
    x *= 2654435761u;
    x ^= x >> 15;
    return x * 2246822519u;
  }
};

template <class Vector, class Policy>
uint64_t iteration_with(const Policy& policy, uint32_t seed, int items) {
  Vector input(items);
  thrust::sequence(policy, input.begin(), input.end());
  Vector keys(items);
  thrust::transform(policy, input.begin(), input.end(), keys.begin(), Scramble{seed});
  thrust::sort(policy, keys.begin(), keys.end());
  Vector sums(items);
  thrust::inclusive_scan(policy, keys.begin(), keys.end(), sums.begin());
  const uint64_t total =
      thrust::reduce(policy, sums.begin(), sums.end(), uint64_t{0}, thrust::plus<uint64_t>());
  const uint32_t middle = keys[items / 2];
  return total * 31 + middle;
}

uint64_t iteration(bool caching, uint32_t seed, int items) {
  if (!caching) {
    return iteration_with<thrust::device_vector<uint32_t>>(thrust::device, seed, items);
  }
  using Vector = thrust::device_vector<uint32_t, ThrustCacheAllocator<uint32_t>>;
  return iteration_with<Vector>(thrust::cuda::par(thrust_cache()), seed, items);
}

}  // namespace

int main(int argc, char** argv) {
  const int iterations = static_cast<int>(gpu_test::number(argc, argv, "iterations", 500));
  const int items = static_cast<int>(gpu_test::number(argc, argv, "items", 1 << 20));
  const bool caching = argc > 1 && std::strcmp(argv[argc - 1], "allocator=caching") == 0;
  uint64_t checksum = 0;
  for (int i = 0; i < 10; ++i) checksum = checksum * 1099511628211u + iteration(caching, i, items);
  MUST(cudaDeviceSynchronize());
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    const auto begin = gpu_test::Clock::now();
    checksum = checksum * 1099511628211u + iteration(caching, 100 + i, items);
    times.push_back(gpu_test::seconds_since(begin) * 1e6);
  }
  MUST(cudaDeviceSynchronize());
  thrust_cache().release();
  std::printf("result checksum=%" PRIu64 "\n", checksum);
  gpu_test::print_counts(mallocs, frees);
  std::printf("time us_per_iteration=%.3f\n", gpu_test::median(times));
  return 0;
}
