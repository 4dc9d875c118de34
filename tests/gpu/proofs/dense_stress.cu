// SPDX-License-Identifier: Apache-2.0
// As many pairs of cudaMalloc and cudaFree as possible, all of them checked by the GPU, and a soak:
// one kernel stamps a batch of blocks, a later one checks them, and the blocks are freed with both
// pending. So two launches serve many pairs, and no check limits them. Batches wait for an event
// and go to another stream, or to another thread, which checks and frees them; streams, threads and
// contexts come and go, and captures are made.
//
//   dense_stress [seed=N] [threads=N] [pairs=N] [limit_ms=N] [contexts=0|1] [captures=0|1]
//
// Right without cupool as well. A foreign word is memory that was handed out too early. Sixteen
// times in a run it prints the process's resident memory and the device's used memory, for a run in
// which nothing may grow.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "common/gpu_test.h"

namespace {

constexpr int kBatch = 16;
constexpr uint32_t kLargest = 64 << 10;
constexpr int kStreams = 2;
constexpr size_t kMostHandedOver = 64;

struct Batch {
  uint32_t* blocks[kBatch];
  uint32_t words[kBatch];
  uint32_t stamp;  // of the first block; the others follow
};

// One block of the grid for each block of memory. The spin makes early reuse meet a late kernel.
__global__ void stamp_batch(Batch batch, uint32_t spin_ns) {
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < spin_ns);
  uint32_t* const block = batch.blocks[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < batch.words[blockIdx.x]; i += blockDim.x) {
    block[i] = batch.stamp + blockIdx.x;
  }
}

__global__ void check_batch(Batch batch, unsigned long long* foreign) {
  const volatile uint32_t* const block = batch.blocks[blockIdx.x];
  unsigned long long wrong = 0;
  for (uint32_t i = threadIdx.x; i < batch.words[blockIdx.x]; i += blockDim.x) {
    wrong += block[i] != batch.stamp + blockIdx.x;
  }
  if (wrong != 0) atomicAdd(foreign, wrong);
}

struct Shared {
  uint64_t wanted = 0;
  double limit = 0;
  gpu_test::Clock::time_point begin;
  std::atomic<uint64_t> pairs{0};
  std::atomic<uint32_t> stamps{1};
  std::atomic<uint64_t> handed_over{0}, graphs{0}, lost{0}, streams{0}, threads{0}, contexts{0};
  std::atomic<unsigned long long> foreign{0};  // of contexts that have ended
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<std::pair<Batch, cudaEvent_t>> parcels;  // the event comes behind their stamps

  bool goes_on() {
    if (pairs >= wanted || gpu_test::seconds_since(begin) > limit) stop = true;
    return !stop;
  }
};

class Worker {
 public:
  Worker(Shared& shared, uint64_t seed, unsigned long long* foreign, bool captures)
      : shared_(shared), random_(seed), foreign_(foreign), captures_(captures) {
    for (cudaStream_t& stream : streams_) stream = make_stream();
    MUST(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~Worker() {
    for (cudaStream_t stream : streams_) {
      MUST(cudaStreamSynchronize(stream));
      MUST(cudaStreamDestroy(stream));
    }
    MUST(cudaEventDestroy(event_));
  }

  void round() {
    Batch batch{};
    allocate(batch);
    cudaStream_t const first = any_stream();
    stamp_batch<<<kBatch, 64, 0, first>>>(batch, random_() % 8 == 0 ? random_() % 20000 : 0);
    const unsigned dice = random_() % 64;
    if (!is_alone_ && dice < 4) {
      if (hand_over(batch, first)) return;
    } else if (!is_alone_ && dice < 12) {
      take_over();
    }
    cudaStream_t second = first;
    if (dice >= 48) {
      second = any_stream();
      MUST(cudaEventRecord(event_, first));
      MUST(cudaStreamWaitEvent(second, event_, 0));
    }
    check_and_free(batch, second);
    if (dice == 63 && random_() % 16 == 0) renew_stream();
    if (captures_ && dice == 62 && random_() % 32 == 0) capture();
  }

  // In a context of its own, whose memory is no other thread's.
  void stays_alone() { is_alone_ = true; }

  // What other threads have left.
  void take_all() {
    while (take_over()) {
    }
  }

 private:
  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  cudaStream_t any_stream() { return streams_[random_() % kStreams]; }

  void allocate(Batch& batch) {
    batch.stamp = shared_.stamps.fetch_add(kBatch, std::memory_order_relaxed);
    for (int i = 0; i < kBatch; ++i) {
      // Few sizes beside many, so that blocks change hands.
      const uint32_t bytes =
          random_() % 4 == 0 ? 4 + 4 * (random_() % (kLargest / 4)) : 256u << (random_() % 5);
      batch.words[i] = bytes / 4;
      MUST(cudaMalloc(&batch.blocks[i], bytes));
    }
  }

  void check_and_free(const Batch& batch, cudaStream_t stream) {
    check_batch<<<kBatch, 64, 0, stream>>>(batch, foreign_);
    for (uint32_t* block : batch.blocks) MUST(cudaFree(block));
    shared_.pairs.fetch_add(kBatch, std::memory_order_relaxed);
  }

  // True: another thread will check and free it.
  bool hand_over(const Batch& batch, cudaStream_t stream) {
    cudaEvent_t behind = nullptr;
    MUST(cudaEventCreateWithFlags(&behind, cudaEventDisableTiming));
    MUST(cudaEventRecord(behind, stream));
    {
      const std::lock_guard<std::mutex> lock(shared_.mutex);
      if (shared_.parcels.size() < kMostHandedOver) {
        shared_.parcels.emplace_back(batch, behind);
        ++shared_.handed_over;
        return true;
      }
    }
    MUST(cudaEventDestroy(behind));
    return false;
  }

  bool take_over() {
    std::pair<Batch, cudaEvent_t> parcel;
    {
      const std::lock_guard<std::mutex> lock(shared_.mutex);
      if (shared_.parcels.empty()) return false;
      parcel = shared_.parcels.front();
      shared_.parcels.erase(shared_.parcels.begin());
    }
    cudaStream_t const stream = any_stream();
    MUST(cudaStreamWaitEvent(stream, parcel.second, 0));
    MUST(cudaEventDestroy(parcel.second));
    check_and_free(parcel.first, stream);
    return true;
  }

  void renew_stream() {
    cudaStream_t& stream = streams_[random_() % kStreams];
    MUST(cudaStreamDestroy(stream));  // with work pending
    stream = make_stream();
    ++shared_.streams;
  }

  // A graph of a batch that stays while it runs; other threads go on meanwhile.
  void capture() {
    Batch batch{};
    allocate(batch);
    cudaStream_t const stream = any_stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    stamp_batch<<<kBatch, 64, 0, stream>>>(batch, 0);
    check_batch<<<kBatch, 64, 0, stream>>>(batch, foreign_);
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || graph == nullptr) {
      ++shared_.lost;
    } else {
      MUST(cudaGraphInstantiate(&executable, graph, 0));
      MUST(cudaGraphLaunch(executable, stream));
      MUST(cudaStreamSynchronize(stream));
      MUST(cudaGraphExecDestroy(executable));
      MUST(cudaGraphDestroy(graph));
      ++shared_.graphs;
    }
    for (uint32_t* block : batch.blocks) MUST(cudaFree(block));
    shared_.pairs.fetch_add(kBatch, std::memory_order_relaxed);
  }

  Shared& shared_;
  std::mt19937_64 random_;
  unsigned long long* const foreign_;  // the context's count
  const bool captures_;
  cudaStream_t streams_[kStreams];
  cudaEvent_t event_ = nullptr;
  bool is_alone_ = false;
};

// The count of foreign words of the current context.
class Count {
 public:
  Count() {
    MUST(cudaMalloc(&words_, sizeof *words_));
    MUST(cudaMemset(words_, 0, sizeof *words_));
    MUST(cudaDeviceSynchronize());
  }
  ~Count() { MUST(cudaFree(words_)); }
  unsigned long long* words() const { return words_; }
  unsigned long long read() const {
    unsigned long long found = 0;
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(&found, words_, sizeof found, cudaMemcpyDeviceToHost));
    return found;
  }

 private:
  unsigned long long* words_ = nullptr;
};

// A thread that lives for a moment, at times with a context that does.
void be_a_guest(Shared& shared, uint64_t seed, unsigned long long* foreign, bool in_own_context) {
  CUcontext own = nullptr;
  if (in_own_context) {
    MUST(cuCtxCreate(&own, nullptr, 0, 0));
    const Count count;
    {
      Worker worker(shared, seed, count.words(), false);
      worker.stays_alone();
      for (int i = 0; i < 200; ++i) worker.round();
    }
    shared.foreign += count.read();
    ++shared.contexts;
  } else {
    Worker worker(shared, seed, foreign, false);
    for (int i = 0; i < 200 && shared.goes_on(); ++i) worker.round();
  }
  if (own != nullptr) MUST(cuCtxDestroy(own));
  ++shared.threads;
}

long resident_kib() {
  long pages = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%*s %ld", &pages) != 1) pages = 0;
  if (file != nullptr) std::fclose(file);
  return pages * 4;
}

void sample(const Shared& shared, int number) {
  size_t unused = 0;
  size_t total = 0;
  MUST(cudaMemGetInfo(&unused, &total));
  std::printf("info sample=%d seconds=%.0f pairs=%" PRIu64 " resident_kib=%ld used_kib=%zu\n",
              number, gpu_test::seconds_since(shared.begin), shared.pairs.load(), resident_kib(),
              (total - unused) >> 10);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Shared shared;
  const auto seed = static_cast<uint64_t>(gpu_test::number(argc, argv, "seed", 1));
  const long threads = gpu_test::number(argc, argv, "threads", 12);
  const bool captures = gpu_test::number(argc, argv, "captures", 1) != 0;
  const bool contexts = gpu_test::number(argc, argv, "contexts", 1) != 0;
  shared.wanted = static_cast<uint64_t>(gpu_test::number(argc, argv, "pairs", 1000000));
  shared.limit = static_cast<double>(gpu_test::number(argc, argv, "limit_ms", 60000)) / 1e3;
  MUST(cudaFree(nullptr));
  const Count count;
  shared.begin = gpu_test::Clock::now();
  std::vector<std::thread> all;
  for (long i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      Worker worker(shared, seed * 1000 + static_cast<uint64_t>(i), count.words(), captures);
      while (shared.goes_on()) worker.round();
      worker.take_all();
    });
  }
  // Threads, and contexts, that live for a moment.
  std::thread guests([&] {
    for (uint64_t number = 0; shared.goes_on(); ++number) {
      std::thread(be_a_guest, std::ref(shared), seed * 1000 + 500 + number, count.words(),
                  contexts && number % 16 == 15)
          .join();
    }
  });
  for (int number = 1; shared.goes_on();) {
    const double done =
        std::max(static_cast<double>(shared.pairs) / static_cast<double>(shared.wanted),
                 gpu_test::seconds_since(shared.begin) / shared.limit);
    if (done * 16 >= number) sample(shared, number++);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (std::thread& thread : all) thread.join();
  guests.join();
  {
    Worker rest(shared, seed, count.words(), false);
    rest.take_all();
  }
  const unsigned long long foreign = shared.foreign + count.read();
  const double seconds = gpu_test::seconds_since(shared.begin);
  std::printf("time ms=%.1f pairs=%" PRIu64
              " pairs_per_second=%.0f foreign_words=%llu graphs=%" PRIu64 " captures_lost=%" PRIu64
              " streams_destroyed=%" PRIu64 " handed_over=%" PRIu64 " guests=%" PRIu64
              " contexts=%" PRIu64 "\n",
              seconds * 1e3, shared.pairs.load(), static_cast<double>(shared.pairs) / seconds,
              foreign, shared.graphs.load(), shared.lost.load(), shared.streams.load(),
              shared.handed_over.load(), shared.threads.load(), shared.contexts.load());
  return foreign == 0 ? 0 : 1;
}
