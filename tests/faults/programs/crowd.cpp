// SPDX-License-Identifier: Apache-2.0
// Threads and streams of every kind, copies to the host, callbacks, captures and graphs. The
// threads take turns, so that the n-th call of a driver function is the same one in every run.
#include <array>
#include <condition_variable>
#include <random>
#include <thread>

#include "runtime_blocks.h"

namespace {

using faults::Block;
using faults::ledger;

constexpr int kThreads = 4;
constexpr int kSteps = 40;

// Whether a free is relied on to wait for copies, as CUPOOL_FREE_MODE=ordered does not.
bool leaning = true;

class Turns {
 public:
  void wait_for(int turn) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == turn; });
  }
  void pass() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++turn_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
};

// One of the threads; its turns never overlap with those of others.
class Worker {
 public:
  explicit Worker(int index) : index_(index), random_(static_cast<unsigned>(index) + 1) {}

  void begin() {
    if (index_ == 0) stream_ = nullptr;
    if (index_ == 1 && !TRY(cudaStreamCreate, &stream_)) stream_ = nullptr;
    if (index_ == 2 && !TRY(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking)) {
      stream_ = nullptr;
    }
    if (index_ == 3) stream_ = cudaStreamPerThread;
  }

  void step(std::vector<Block>* shared) {
    switch (random_() % 12) {
      case 0:
        return lean_on_free();
      case 1:
        return capture(static_cast<cudaStreamCaptureMode>(random_() % 3));
      case 2:
        return call_back();
      case 3:
        TRY(cudaDeviceSynchronize);
        return;
      case 4:
      case 5:
      case 6:
        return free_one(shared);
      default:
        return allocate_one(shared);
    }
  }

  void end() {
    if (index_ == 1 || index_ == 2) {
      if (stream_ != nullptr) TRY(cudaStreamDestroy, stream_);
    }
  }

 private:
  size_t some_size() { return (size_t{300} << (random_() % 14)) + random_() % 100; }
  int some_value() { return 1 + static_cast<int>(random_() % 250); }

  void allocate_one(std::vector<Block>* shared) {
    Block block;
    if (!faults::allocate(some_size(), &block)) return;
    faults::fill(&block, some_value(), stream_);
    TRY(cudaStreamSynchronize, stream_);  // another thread may get it
    shared->push_back(block);
  }

  void free_one(std::vector<Block>* shared) {
    if (shared->empty()) return;
    const size_t which = random_() % shared->size();
    Block block = (*shared)[which];
    shared->erase(shared->begin() + static_cast<std::ptrdiff_t>(which));
    faults::check(block, stream_);
    faults::fill(&block, 0xEE, stream_);  // still pending when it is freed
    faults::release(block);
  }

  // Contract 2: a free waits for pending copies to the host, and the program knows.
  void lean_on_free() {
    Block block;
    if (!faults::allocate(some_size(), &block)) return;
    faults::fill(&block, some_value(), stream_);
    unsigned char* host = faults::read_back(block, stream_);
    if (!leaning && !TRY(cudaStreamSynchronize, stream_)) host = nullptr;
    if (faults::release(block) && host != nullptr) ledger().check(host, block);
  }

  void call_back() {
    static std::atomic<int> calls{0};
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    TRY(cudaLaunchHostFunc, stream_, count, &calls);
  }

  // Contract 9: allocation and free while a stream captures, then the graph is used.
  void capture(cudaStreamCaptureMode mode) {
    cudaStream_t stream = nullptr;
    Block from;
    Block to;
    if (!TRY(cudaStreamCreateWithFlags, &stream, cudaStreamNonBlocking)) return;
    const bool have_from = faults::allocate(70'000, &from);
    const bool have_to = faults::allocate(70'000, &to);
    if (have_from && have_to && TRY(cudaStreamBeginCapture, stream, mode)) {
      capture_between(&from, &to, mode, stream);
    }
    if (have_from) faults::release(from);
    if (have_to) faults::release(to);
    TRY(cudaStreamDestroy, stream);
  }

  void capture_between(Block* from, Block* to, cudaStreamCaptureMode mode, cudaStream_t stream) {
    faults::fill(from, some_value(), stream);
    const bool copied = TRY(cudaMemcpyAsync, faults::pointer(*to), faults::pointer(*from), to->size,
                            cudaMemcpyDeviceToDevice, stream);
    if (mode == cudaStreamCaptureModeRelaxed) {  // the driver refuses it in the others
      Block inside;
      if (faults::allocate(some_size(), &inside)) faults::release(inside);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (!TRY(cudaStreamEndCapture, stream, &graph)) return;
    if (TRY(cudaGraphInstantiate, &executable, graph, 0)) {
      if (TRY(cudaGraphLaunch, executable, stream) && TRY(cudaStreamSynchronize, stream) &&
          copied) {
        to->value = from->value;
        faults::check(*to, stream);
      }
      TRY(cudaGraphExecDestroy, executable);
    }
    TRY(cudaGraphDestroy, graph);
  }

  int index_;
  std::minstd_rand random_;
  cudaStream_t stream_ = nullptr;
};

void work(int index, Turns* turns, std::vector<Block>* shared) {
  Worker worker(index);
  for (int step = 0; step < kSteps; ++step) {
    turns->wait_for(step * kThreads + index);
    if (step == 0) worker.begin();
    worker.step(shared);
    if (step == kSteps - 1) worker.end();
    turns->pass();
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr size_t kPinned = size_t{16} << 20;
  void* pinned = nullptr;
  if (TRY(cudaMallocHost, &pinned, kPinned)) ledger().use_pinned(pinned, kPinned);
  leaning = !probe::argument_is(argc, argv, "lean", "no");
  Turns turns;
  std::vector<Block> shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i, &turns, &shared);
  for (std::thread& thread : threads) thread.join();
  TRY(cudaDeviceSynchronize);
  for (const Block& block : shared) {
    faults::check(block, nullptr);
    faults::release(block);
  }
  faults::release_again();
  return ledger().report();
}
