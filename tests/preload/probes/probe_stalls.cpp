// SPDX-License-Identifier: Apache-2.0
// Frees behind work of a known kind, for what observed runs and cupool say of stalls. Work is none,
// or takes some milliseconds, so that nobody can mistake it for the other. Without a wait until the
// end, the GPU falls behind.
//   rounds=N  work=none|each|random  streams=N  waits=N (of a hundred rounds)  seed=N
#include <cuda_runtime_api.h>

#include <random>
#include <string>
#include <vector>

#include "probe.h"

int main(int argc, char** argv) {
  const long rounds = probe::number(argc, argv, "rounds", 100);
  const std::string work = probe::argument(argc, argv, "work", "each");
  const long streams = probe::number(argc, argv, "streams", 1);
  const long waits = probe::number(argc, argv, "waits", 0);
  std::mt19937 random(static_cast<unsigned>(probe::number(argc, argv, "seed", 1)));
  const auto in_100 = [&random] { return static_cast<long>(random() % 100); };
  constexpr size_t kBlock = 100000;
  constexpr size_t kWork = 4ull << 20;
  void* target = nullptr;
  MUST(cudaMalloc(&target, kWork));
  std::vector<cudaStream_t> all(static_cast<size_t>(streams));
  for (cudaStream_t& stream : all) {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  uint64_t busy = 0;
  for (long round = 0; round < rounds; ++round) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, kBlock));
    const bool works = work == "each" || (work == "random" && in_100() < 40);
    const cudaStream_t stream = all[random() % all.size()];
    if (works) MUST(cudaMemsetAsync(target, 1, kWork, stream));
    const bool waited = in_100() < waits;
    if (waited) MUST(cudaDeviceSynchronize());
    busy += works && !waited ? 1 : 0;
    MUST(cudaFree(block));
  }
  MUST(cudaDeviceSynchronize());
  for (cudaStream_t stream : all) MUST(cudaStreamDestroy(stream));
  MUST(cudaFree(target));
  std::printf("busy %llu\n", static_cast<unsigned long long>(busy));
  probe::print_counts(static_cast<uint64_t>(rounds) + 1, static_cast<uint64_t>(rounds) + 1);
  return 0;
}
