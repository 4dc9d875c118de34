// SPDX-License-Identifier: Apache-2.0
// pairs.cu over RMM's pool and arena resources, of which nothing is in this repository: build.sh
// builds this where the packages librmm-cu13 and rapids-logger lie unpacked (it says how).
//   allocator=rmm-pool    one pool_memory_resource over cudaMalloc, a stream of each thread
//   allocator=rmm-arena   one arena_memory_resource over cudaMalloc, a stream of each thread
// Arguments: those of pairs.cu, and reserve_mib=N, which both take at the start
#include <cuda_runtime.h>

#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <exception>

#include "pairs_busy.cuh"
#include "pairs_work.h"

namespace {

using pairs::Options;

// Both resources may be used from several threads at once. They throw where others return a code.
template <class Resource>
struct Rmm {
  Rmm(const Options&, int) { MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Rmm() { MUST(cudaStreamDestroy(stream)); }
  Rmm(const Rmm&) = delete;
  Rmm& operator=(const Rmm&) = delete;
  static void enter_thread() { MUST(cudaSetDevice(0)); }

  void* allocate(size_t bytes) {
    try {
      return resource->allocate(cuda::stream_ref{stream}, bytes, kAlignment);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  bool release(void* pointer, size_t bytes) {
    resource->deallocate(cuda::stream_ref{stream}, pointer, bytes, kAlignment);
    return true;
  }

  static constexpr size_t kAlignment = 256;  // RMM's own: it refuses more
  static Resource* resource;
  cudaStream_t stream = nullptr;
};
template <class Resource>
Resource* Rmm<Resource>::resource = nullptr;

template <class Resource>
int measure(const Options& options, size_t reserve) {
  Resource resource(rmm::mr::cuda_memory_resource{}, reserve);
  Rmm<Resource>::resource = &resource;
  pairs::BusyStreams busy(options);
  pairs::Work<Rmm<Resource>> work(options);
  work.run();
  busy.stop();
  busy.print();
  work.print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const Options options = pairs::parse(argc, argv);
  const auto reserve = static_cast<size_t>(gpu_test::number(argc, argv, "reserve_mib", 8192)) << 20;
  MUST(cudaSetDevice(0));
  MUST(cudaFree(nullptr));
  if (options.mode == "pairs" || options.mode == "producer") {
    if (options.allocator == "rmm-pool") {
      return measure<rmm::mr::pool_memory_resource>(options, reserve);
    }
    if (options.allocator == "rmm-arena") {
      return measure<rmm::mr::arena_memory_resource>(options, reserve);
    }
  }
  std::fprintf(stderr, "no such allocator or mode: %s, %s\n", options.allocator.c_str(),
               options.mode.c_str());
  return 2;
}
