// SPDX-License-Identifier: Apache-2.0
// The random program of ordered_stress.cu: what the threads share, and the life of one thread.
// Every choice comes from the seed, never from the clock, so that a seed makes the same requests
// again; only how the threads interleave differs.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace ordered_stress {

constexpr int kMostThreads = 16;      // tags have four bits for the thread
constexpr int kSampleStride = 64;     // words: no two threads' samples in a cache line
constexpr int kMostBlocks = 9;        // of a batch: eight and a copy
constexpr int kStreams = 6;           // of a thread
constexpr size_t kMostHeld = 24;      // blocks that a thread keeps over several batches
constexpr uint32_t kLate = 1u << 31;  // set in no tag: a stamp that was still pending at the free

struct Verdict {
  unsigned long long foreign_words;
  unsigned int claimed;  // the first finding fills the words below
  uint32_t expected;
  uint32_t found;
};

// splitmix64: any seed is a good one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

struct Block {
  uint32_t* words = nullptr;
  uint64_t count = 0;
  uint32_t tag = 0;
  cudaEvent_t ready = nullptr;  // of a held block: its words are written
};

struct Blocks {  // a kernel argument
  uint32_t* words[kMostBlocks] = {};
  uint64_t count[kMostBlocks] = {};
  uint32_t tag[kMostBlocks] = {};
};

__global__ void stamp_blocks(Blocks blocks, uint32_t flag) {
  uint32_t* words = blocks.words[blockIdx.y];
  const uint64_t count = blocks.count[blockIdx.y];
  const uint32_t value = blocks.tag[blockIdx.y] | flag;
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = value;
  }
}

__global__ void check_blocks(Blocks blocks, Verdict* verdict) {
  __shared__ unsigned int wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  const volatile uint32_t* words = blocks.words[blockIdx.y];  // no assumed value: see check_u32
  const uint64_t count = blocks.count[blockIdx.y];
  const uint32_t value = blocks.tag[blockIdx.y];
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint32_t found = words[i];
    if (found == value) continue;
    if (atomicAdd(&wrong, 1u) == 0 && atomicExch_system(&verdict->claimed, 1u) == 0) {
      verdict->expected = value;
      verdict->found = found;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && wrong != 0) {
    atomicAdd_system(&verdict->foreign_words, static_cast<unsigned long long>(wrong));
  }
}

// Lets a step stop all others, for what CUDA forbids next to them: a global capture next to
// cudaFree, a device synchronisation next to any capture. Pending GPU work is not stopped.
class Gate {
 public:
  void enter() {
    // glibc's lock prefers readers: without this the one who wants all would wait for ever.
    while (wanted_.load(std::memory_order_relaxed) != 0) std::this_thread::yield();
    mutex_.lock_shared();
  }
  void leave() { mutex_.unlock_shared(); }
  void stop_others() {
    ++wanted_;
    mutex_.lock();
    --wanted_;
  }
  void let_others() { mutex_.unlock(); }

 private:
  std::shared_mutex mutex_;
  std::atomic<int> wanted_{0};
};

struct Shared {
  uint64_t wanted_pairs = 0;
  double limit_seconds = 0;
  int captures = 0;
  bool only_blocking = false;  // no non-blocking streams
  double legacy_waits = 0;     // share of the steps that are waits for the legacy stream
  gpu_test::Clock::time_point begin;
  Verdict* verdict = nullptr;
  uint32_t* samples = nullptr;
  Gate gate;
  std::atomic<uint64_t> pairs{0}, graphs{0}, captures_lost{0}, lives{0}, handed_over{0};
  std::atomic<uint64_t> samples_read{0}, samples_wrong{0}, streams_destroyed{0};
  std::mutex mailbox_mutex;
  std::vector<Block> mailbox;  // blocks on their way to whichever thread looks next

  bool finished() const {
    return pairs >= wanted_pairs || gpu_test::seconds_since(begin) > limit_seconds;
  }
  void empty_mailbox();
  void print() const {
    std::printf("result foreign_words=%llu captures_lost=%" PRIu64 "\n", verdict->foreign_words,
                captures_lost.load());
    if (verdict->foreign_words != 0) {
      std::printf("info first foreign word: 0x%08x where 0x%08x was due\n", verdict->found,
                  verdict->expected);
    }
    std::printf("info graphs=%" PRIu64 " lives=%" PRIu64 " handed_over=%" PRIu64
                " streams_destroyed=%" PRIu64 "\n",
                graphs.load(), lives.load(), handed_over.load(), streams_destroyed.load());
    std::printf("host samples=%" PRIu64 " wrong=%" PRIu64 "\n", samples_read.load(),
                samples_wrong.load());
    std::fflush(stdout);
  }
};

// What to print, once, when a call fails.
inline std::atomic<Shared*> on_failure{nullptr};

[[noreturn]] inline void fail(const char* file, int line, const char* call, int code) {
  std::fprintf(stderr, "%s:%d: %s = %d\n", file, line, call, code);
  const Shared* shared = on_failure.exchange(nullptr);
  if (shared != nullptr) shared->print();
  std::_Exit(4);
}

// As MUST, but what was found so far is not lost: a wrong engine often ends in an illegal access.
#define CHECKED(call)                                                     \
  do {                                                                    \
    const int code = static_cast<int>(call);                              \
    if (code != 0) ordered_stress::fail(__FILE__, __LINE__, #call, code); \
  } while (0)

struct Batch : Blocks {
  int size = 0;
  void add(const Block& block) {
    words[size] = block.words;
    count[size] = block.count;
    tag[size++] = block.tag;
  }
  void stamp(cudaStream_t stream, uint32_t flag) const {
    if (size != 0) stamp_blocks<<<grid(), 256, 0, stream>>>(*this, flag);
    CHECKED(cudaGetLastError());
  }
  void check(cudaStream_t stream, Verdict* verdict) const {
    if (size != 0) check_blocks<<<grid(), 256, 0, stream>>>(*this, verdict);
    CHECKED(cudaGetLastError());
  }

 private:
  dim3 grid() const {
    const uint64_t most = *std::max_element(count, count + size);
    return dim3(static_cast<unsigned>(std::min<uint64_t>(1024, (most + 1023) / 1024)),
                static_cast<unsigned>(size));
  }
};

inline void Shared::empty_mailbox() {
  for (const Block& block : mailbox) {
    Batch batch;
    batch.add(block);
    CHECKED(cudaStreamWaitEvent(cudaStreamPerThread, block.ready, 0));
    CHECKED(cudaEventDestroy(block.ready));
    batch.check(cudaStreamPerThread, verdict);
    CHECKED(cudaFree(block.words));
    ++pairs;
  }
  mailbox.clear();
}

// One thread from its first call to its end, a few thousand steps later.
class Life {
 public:
  Life(Shared* shared, int index, uint64_t seed)
      : shared_(shared),
        index_(index),
        random_(seed),
        sample_(shared->samples + index * kSampleStride) {}
  void run();

 private:
  enum Kind { legacy, per_thread, blocking, non_blocking };
  struct Stream {
    cudaStream_t handle = nullptr;
    Kind kind = legacy;
    bool capturing = false;
  };

  void new_mood();
  void step();
  void batch();
  void capture(cudaStreamCaptureMode mode, bool alone);
  void capture_body(Stream* origin, const Batch& captured, cudaEvent_t fork, cudaEvent_t join);
  void finish_graph(cudaGraph_t graph, const std::vector<Block>& blocks);
  void release_held();
  void replace_stream();
  Stream create_stream(const Stream* place);
  Stream* pick(bool only_non_blocking = false);
  Block allocate(uint64_t count);
  uint64_t random_words();
  void maybe_spin(cudaStream_t stream, double probability);
  void free_all(std::vector<Block>* blocks);
  cudaEvent_t event_on(cudaStream_t stream);
  void order(cudaStream_t later, cudaStream_t earlier);

  Shared* const shared_;
  const int index_;
  Random random_;
  volatile uint32_t* const sample_;
  Stream streams_[kStreams];
  std::vector<Block> held_;
  // The mood: what this stretch of the program is like.
  uint64_t most_blocks_ = 8;
  double spin_ = 0.25, cross_ = 0.25, hold_ = 0.05, large_ = 0.1;
  bool in_capture_ = false;
};

}  // namespace ordered_stress

#include "ordered_stress_life.cuh"
