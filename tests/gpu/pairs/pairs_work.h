// SPDX-License-Identifier: Apache-2.0
// The measured loops of pairs.cu, over any allocator: a class with allocate(bytes), which returns
// null on an error, release(pointer, bytes), which returns false on one, and enter_thread(). Three
// passes: warm-up, throughput without a clock call at each pair, latency with one around each call.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "pairs_clock.h"
#include "pairs_options.h"
#include "pairs_queue.h"

namespace pairs {

enum Pass { kWarmUp, kThroughput, kLatency, kPasses };

struct Tally {
  uint64_t mallocs = 0;
  uint64_t frees = 0;
  uint64_t malloc_errors = 0;
  uint64_t free_errors = 0;
  double rate = 0.0;  // pairs a second in the throughput pass
  std::vector<uint64_t> malloc_ticks;
  std::vector<uint64_t> free_ticks;
};

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t round = round_;
    if (++waiting_ == threads_) {
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const int threads_;
  int waiting_ = 0;
  uint64_t round_ = 0;
};

template <bool kTimed, class Calls>
void* take(Calls* calls, size_t bytes, Tally* tally) {
  const uint64_t begin = kTimed ? ticks() : 0;
  void* pointer = calls->allocate(bytes);
  if (kTimed) tally->malloc_ticks.push_back(ticks() - begin);
  ++tally->mallocs;
  tally->malloc_errors += pointer == nullptr;
  return pointer;
}

template <bool kTimed, class Calls>
void give(Calls* calls, const Block& block, Tally* tally) {
  if (block.pointer == nullptr) return;
  const uint64_t begin = kTimed ? ticks() : 0;
  const bool freed = calls->release(block.pointer, block.bytes);
  if (kTimed) tally->free_ticks.push_back(ticks() - begin);
  ++tally->frees;
  tally->free_errors += !freed;
}

// Runs step() in batches until the time is over: one clock call in 64 pairs. Returns the seconds.
template <class Step>
double repeat(double limit_seconds, uint64_t most, const Step& step) {
  constexpr uint64_t kBatch = 64;
  const auto begin = gpu_test::Clock::now();
  double seconds = 0.0;
  for (uint64_t i = 0; i < most && seconds < limit_seconds; i += kBatch) {
    for (uint64_t k = 0; k < kBatch; ++k) step(i + k);
    seconds = gpu_test::seconds_since(begin);
  }
  return seconds;
}

// One run of all threads. The blocks that stay live belong to it until their addresses are
// compared.
template <class Calls>
class Work {
 public:
  explicit Work(const Options& options)
      : options_(options), producer_(options.mode == "producer"), barrier_(threads()) {
    for (int i = 0; i < lanes(); ++i) {
      calls_.push_back(std::make_unique<Calls>(options, i));
      for (auto& pass : queues_) pass.push_back(std::make_unique<Queue>(options.blocks));
    }
    tallies_.resize(static_cast<size_t>(threads()));
    rings_.resize(static_cast<size_t>(lanes()));
  }

  void run() {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads(); ++i) {
      workers.emplace_back([this, i] { work(i); });
    }
    for (std::thread& worker : workers) worker.join();
  }

  void print() {
    Tally all;
    for (Tally& tally : tallies_) add(&tally, &all);
    std::printf("result errors=%" PRIu64 " free_errors=%" PRIu64 " overlaps=%" PRIu64 "\n",
                all.malloc_errors, all.free_errors, overlaps());
    std::printf("time pairs_per_second=%.0f ns_per_pair=%.2f\n", all.rate,
                all.rate > 0.0 ? 1e9 * lanes() / all.rate : 0.0);
    const double scale = ns_per_tick();
    print_timer(scale);
    print_latencies("malloc", &all.malloc_ticks, scale);
    print_latencies("free", &all.free_ticks, scale);
    if (options_.curve) {
      print_curve("malloc", all.malloc_ticks, scale);
      print_curve("free", all.free_ticks, scale);
    }
    for (size_t i = 0; i < rings_.size(); ++i) {
      for (const Block& block : rings_[i]) give<false>(calls_[i].get(), block, &all);
    }
    gpu_test::print_counts(all.mallocs, all.frees);
  }

 private:
  // A lane is what makes pairs: one thread, or a producer with its consumer.
  int lanes() const { return producer_ ? options_.threads / 2 : options_.threads; }
  int threads() const { return producer_ ? 2 * lanes() : lanes(); }
  double limit(Pass pass) const {
    return static_cast<double>(options_.limit_ms) * (pass == kWarmUp ? 0.5e-3 : 1e-3);
  }
  uint64_t most(Pass pass) const {
    return pass == kLatency ? static_cast<uint64_t>(options_.samples) : ~uint64_t{0};
  }

  void work(int thread) {
    Calls::enter_thread();
    Tally* tally = &tallies_[static_cast<size_t>(thread)];
    // Room beforehand, and written once: no page fault between two timed calls.
    for (auto* samples : {&tally->malloc_ticks, &tally->free_ticks}) {
      samples->resize(static_cast<size_t>(options_.samples) + 64);
      samples->clear();
    }
    const Sizes sizes(options_, thread);
    if (!producer_)
      rings_[static_cast<size_t>(thread)].resize(static_cast<size_t>(options_.blocks));
    for (const Pass pass : {kWarmUp, kThroughput, kLatency}) {
      barrier_.wait();
      if (pass == kLatency) {
        one_pass<true>(thread, pass, sizes, tally);
      } else {
        one_pass<false>(thread, pass, sizes, tally);
      }
    }
  }

  template <bool kTimed>
  void one_pass(int thread, Pass pass, const Sizes& sizes, Tally* tally) {
    const auto lane = static_cast<size_t>(producer_ ? thread / 2 : thread);
    Calls* calls = calls_[lane].get();
    Queue* queue = queues_[pass][lane].get();
    if (!producer_) {
      pairs<kTimed>(calls, &rings_[lane], pass, sizes, tally);
    } else if (thread % 2 == 0) {
      repeat(limit(pass), most(pass), [&](uint64_t i) {
        queue->push({take<kTimed>(calls, sizes[i], tally), sizes[i]});
      });
      queue->close();
    } else {
      consume<kTimed>(calls, queue, pass, tally);
    }
  }

  template <bool kTimed>
  void pairs(Calls* calls, std::vector<Block>* ring, Pass pass, const Sizes& sizes, Tally* tally) {
    const uint64_t before = tally->mallocs;
    size_t place = 0;
    const double seconds = repeat(limit(pass), most(pass), [&](uint64_t i) {
      Block* block = &(*ring)[place];
      place = place + 1 == ring->size() ? 0 : place + 1;
      give<kTimed>(calls, *block, tally);
      *block = {take<kTimed>(calls, sizes[i], tally), sizes[i]};
    });
    if (pass == kThroughput) tally->rate = static_cast<double>(tally->mallocs - before) / seconds;
  }

  // The time of a lane is its consumer's, to the last block of the queue.
  template <bool kTimed>
  void consume(Calls* calls, Queue* queue, Pass pass, Tally* tally) {
    const uint64_t before = tally->frees;
    const auto begin = gpu_test::Clock::now();
    Block block;
    while (queue->pop(&block)) give<kTimed>(calls, block, tally);
    if (pass != kThroughput) return;
    tally->rate = static_cast<double>(tally->frees - before) / gpu_test::seconds_since(begin);
  }

  static void add(Tally* one, Tally* all) {
    all->mallocs += one->mallocs;
    all->frees += one->frees;
    all->malloc_errors += one->malloc_errors;
    all->free_errors += one->free_errors;
    all->rate += one->rate;
    const auto append = [](const std::vector<uint64_t>& from, std::vector<uint64_t>* to) {
      to->insert(to->end(), from.begin(), from.end());
    };
    append(one->malloc_ticks, &all->malloc_ticks);
    append(one->free_ticks, &all->free_ticks);
  }

  // Live blocks that share an address: never, of any allocator.
  uint64_t overlaps() const {
    std::vector<std::pair<uintptr_t, size_t>> live;
    for (const auto& ring : rings_) {
      for (const Block& block : ring) {
        if (block.pointer == nullptr) continue;
        live.emplace_back(reinterpret_cast<uintptr_t>(block.pointer), block.bytes);
      }
    }
    std::sort(live.begin(), live.end());
    uint64_t found = 0;
    for (size_t i = 1; i < live.size(); ++i) {
      found += live[i].first < live[i - 1].first + live[i - 1].second;
    }
    return found;
  }

  const Options options_;
  const bool producer_;
  Barrier barrier_;
  std::vector<std::unique_ptr<Calls>> calls_;
  std::array<std::vector<std::unique_ptr<Queue>>, kPasses> queues_;
  std::vector<Tally> tallies_;
  std::vector<std::vector<Block>> rings_;
};

}  // namespace pairs
