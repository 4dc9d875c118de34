// SPDX-License-Identifier: Apache-2.0
// What a pair of cudaMalloc and cudaFree costs in the engine, by threads, size, who frees, and
// whether the GPU is busy. The driver's calls cost what they were measured to on a real GPU (0.2 us
// a fence, 0.2 us a query), so that locks are held as long as there.
#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <thread>

#include "engine/block/shared_mutex.h"
#include "engine/serve/hot_path.h"
#include "unit/engine_fake_driver.h"

namespace {

using cupool::engine::Allocator;
using cupool::engine::Block;
using cupool::engine::Context;
using cupool::test::gpu;
using Work = cupool::test::FakeGpu::Work;

constexpr std::uint64_t kCallNs = 200;
constexpr std::uint64_t kBusyNs = 20'000;

Allocator& engine() {
  static const cupool::cuda::Driver driver = cupool::test::fake_driver();
  static Allocator* allocator = [] {
    gpu.capacity.store(std::uint64_t{128} << 30);
    static const cupool::config::Settings settings =
        cupool::config::parse(nullptr, nullptr, nullptr);
    return new Allocator(driver, settings);
  }();
  gpu.call_ns.store(kCallNs);
  return *allocator;
}

CUdeviceptr allocate(Allocator& allocator, std::uint64_t bytes) {
  Context* context = allocator.registry().current();
  CUdeviceptr address = allocate_hot(*context, bytes);
  if (address != 0) return address;
  if (!allocator.allocations().try_allocate_cached(*context, bytes, &address)) {
    cupool::engine::Patience patience;
    allocator.allocations().try_allocate(bytes, &address, patience);
  }
  return address;
}

void free_block(Allocator& allocator, CUdeviceptr address) {
  if (!free_hot(allocator, address)) allocator.frees().try_free(address);
}

void prepare(const benchmark::State& state) {
  gpu.takes_ns.store(kBusyNs);
  gpu.work.store(state.range(1) != 0 ? Work::timed : Work::none);
}

void report(benchmark::State& state, std::uint64_t locks_before) {
  const auto pairs = static_cast<double>(state.iterations());
  const auto locks = static_cast<double>(cupool::engine::shared_locks_taken - locks_before);
  state.counters["locks/1000"] =
      benchmark::Counter(1000 * locks / pairs, benchmark::Counter::kAvgThreads);
}

// Each thread allocates and frees its own blocks. range(2): how many it has at a time.
void same_thread(benchmark::State& state) {
  Allocator& allocator = engine();
  prepare(state);
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  const auto live = static_cast<std::size_t>(state.range(2));
  std::array<CUdeviceptr, 64> blocks{};
  std::size_t next = 0;
  const auto step = [&] {
    if (blocks[next] != 0) free_block(allocator, blocks[next]);
    blocks[next] = allocate(allocator, bytes);
    next = (next + 1) % live;
  };
  for (int i = 0; i < 2000; ++i) step();
  const std::uint64_t locks = cupool::engine::shared_locks_taken;
  for (auto _ : state) step();
  report(state, locks);
  for (const CUdeviceptr address : blocks) {
    if (address != 0) free_block(allocator, address);
  }
}

// One thread allocates and a partner frees, by a ring that they share.
struct Ring {
  static constexpr std::size_t kSize = 1024;
  alignas(128) std::atomic<std::size_t> written{0};
  alignas(128) std::atomic<std::size_t> read{0};
  std::array<std::atomic<CUdeviceptr>, kSize> slots{};
};

void producer_consumer(benchmark::State& state) {
  Allocator& allocator = engine();
  prepare(state);
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  Ring ring;
  std::atomic<bool> done{false};
  std::thread consumer([&] {
    for (std::size_t at = 0;;) {
      if (at == ring.written.load(std::memory_order_acquire)) {
        if (done.load()) return;
        std::this_thread::yield();
        continue;
      }
      free_block(allocator, ring.slots[at % Ring::kSize].load(std::memory_order_relaxed));
      ring.read.store(++at, std::memory_order_release);
    }
  });
  const std::uint64_t locks = cupool::engine::shared_locks_taken;
  std::size_t at = 0;
  for (auto _ : state) {
    while (at - ring.read.load(std::memory_order_acquire) == Ring::kSize) std::this_thread::yield();
    ring.slots[at % Ring::kSize].store(allocate(allocator, bytes), std::memory_order_relaxed);
    ring.written.store(++at, std::memory_order_release);
  }
  done.store(true);
  consumer.join();
  report(state, locks);
}

constexpr std::int64_t kSizes[] = {256, 64 << 10, 4 << 20};

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bytes", "busy", "live"})->UseRealTime();
  for (const std::int64_t bytes : kSizes) {
    for (const std::int64_t busy : {0, 1}) {
      bench->Args({bytes, busy, 1})->Args({bytes, busy, 64});
    }
  }
}
void ring_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bytes", "busy"})->UseRealTime()->MeasureProcessCPUTime();
  for (const std::int64_t bytes : kSizes) bench->Args({bytes, 0})->Args({bytes, 1});
}

}  // namespace

BENCHMARK(same_thread)->Apply(shapes)->ThreadRange(1, 16);
BENCHMARK(producer_consumer)->Apply(ring_shapes)->ThreadRange(1, 8);
BENCHMARK_MAIN();
