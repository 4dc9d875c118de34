// SPDX-License-Identifier: Apache-2.0
// Random programs on the real GPU: threads that come and go, streams of every kind made and
// destroyed with work pending, graphs, blocks from 4 bytes to 64 MiB. Each block is stamped and
// checked word by word by kernels and still being written when it is freed: a word of another owner
// is a reuse too early. Arguments: seed=N threads=N pairs=N limit_ms=N captures=0|1|2 (none,
// stopping the others, all) only_blocking=1 (no non-blocking streams, and no captures)
// legacy_waits=N (percent of the steps)
#include "ordered_stress.cuh"

#include <thread>

namespace {

using ordered_stress::Block;
using ordered_stress::Life;
using ordered_stress::Shared;

// The first launch of a kernel loads it, which a capture or a busy context would rather not see.
void warm_up(Shared* shared) {
  ordered_stress::Batch batch;
  void* words = nullptr;
  CHECKED(cudaMalloc(&words, 4096));
  batch.add(Block{static_cast<uint32_t*>(words), 512, 1, nullptr});
  batch.stamp(cudaStreamLegacy, 0);
  batch.check(cudaStreamLegacy, shared->verdict);
  copy_u32<<<1, 1>>>(batch.words[0] + 512, batch.words[0], 512);
  spin_ns<<<1, 1>>>(1);
  CHECKED(cudaMemsetAsync(words, 0xFF, 16, cudaStreamLegacy));
  CHECKED(cudaDeviceSynchronize());
  CHECKED(cudaFree(words));
}

void slot(Shared* shared, int index, uint64_t seed) {
  ordered_stress::Random random(seed);
  while (!shared->finished()) {
    const uint64_t life_seed = random.next();
    std::thread life([=] { Life(shared, index, life_seed).run(); });
    life.join();
    ++shared->lives;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto seed = static_cast<uint64_t>(gpu_test::number(argc, argv, "seed", 1));
  const int threads = static_cast<int>(gpu_test::number(argc, argv, "threads", 8));
  Shared shared;
  shared.wanted_pairs = static_cast<uint64_t>(gpu_test::number(argc, argv, "pairs", 1000000));
  shared.limit_seconds = static_cast<double>(gpu_test::number(argc, argv, "limit_ms", 60000)) / 1e3;
  shared.captures = static_cast<int>(gpu_test::number(argc, argv, "captures", 2));
  shared.only_blocking = gpu_test::number(argc, argv, "only_blocking", 0) != 0;
  if (shared.only_blocking) shared.captures = 0;
  shared.legacy_waits = static_cast<double>(gpu_test::number(argc, argv, "legacy_waits", 1)) / 100;
  if (threads < 1 || threads > ordered_stress::kMostThreads) {
    std::fprintf(stderr, "threads must be 1 to %d\n", ordered_stress::kMostThreads);
    return 2;
  }
  std::printf("info seed=%" PRIu64 " threads=%d captures=%d\n", seed, threads, shared.captures);
  // Pinned, not device memory: what was found stays readable if a wrong engine faults the context.
  CHECKED(cudaHostAlloc(reinterpret_cast<void**>(&shared.verdict), sizeof(*shared.verdict),
                        cudaHostAllocDefault));
  CHECKED(cudaHostAlloc(reinterpret_cast<void**>(&shared.samples),
                        threads * ordered_stress::kSampleStride * sizeof(uint32_t),
                        cudaHostAllocDefault));
  std::memset(shared.verdict, 0, sizeof(*shared.verdict));
  ordered_stress::on_failure = &shared;
  warm_up(&shared);

  shared.begin = gpu_test::Clock::now();
  ordered_stress::Random random(seed);
  std::vector<std::thread> slots;
  for (int i = 0; i < threads; ++i) slots.emplace_back(slot, &shared, i, random.next());
  for (std::thread& each : slots) each.join();
  shared.empty_mailbox();
  CHECKED(cudaDeviceSynchronize());
  const double seconds = gpu_test::seconds_since(shared.begin);

  shared.print();
  std::printf("time ms=%.1f pairs=%" PRIu64 " pairs_per_second=%.0f\n", seconds * 1e3,
              shared.pairs.load(), static_cast<double>(shared.pairs) / seconds);
  return shared.verdict->foreign_words == 0 && shared.captures_lost == 0 ? 0 : 3;
}
