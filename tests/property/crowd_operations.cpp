// SPDX-License-Identifier: Apache-2.0
// Much at once: hundreds of threads, all memory of the device, hundreds of copies without a free;
// and the step aside, after which the driver serves.
#include <cupool_sim.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// Opens once, for all that wait.
class Turnstile {
 public:
  void arrive() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
  }
  void await(unsigned count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned arrived_ = 0;
};

}  // namespace

// Contract 4: memory that is nobody's can be had, whoever has freed it and whatever lies idle. The
// rest is what blocks may be rounded up to, and what a driver pool with a live block grows by.
void Machine::fill_device(const Operation& op) {
  if (concurrent_ || op.size == 0 || captures_in(0) || captures_in(1) || captures_in(2)) return;
  if (!unsafe_allowed(op.thread) || syncing_thread_ >= 0) return;
  if (threshold_ != 0) return;  // the program has its pool keep memory
  // What was freed in a stream stays in its pool until a wait has covered it, as without cupool.
  for (const int context : {1, 0}) {
    if (!pool_used_ || !enter(context)) continue;
    if (expect(cuCtxSynchronize(), "cuCtxSynchronize")) settled(slots_of(op), context);
  }
  fill_device(op.size);
}

void Machine::fill_device(std::uint64_t bytes) {
  if (!enter(0)) return;
  constexpr std::uint64_t kStep = 32 * kMiB;
  std::uint64_t slack = 24 * kMiB + kStep;
  std::uint64_t live = 0;
  const auto count = [&](CUdeviceptr address, int context, std::uint64_t size) {
    if (address != 0 && context != 2) live += (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  };
  for (const Slots& slots : slots_) {
    for (const Block& block : slots.blocks) count(block.address, block.context, block.size);
    for (const PoolBlock& block : slots.pool_blocks) {
      if (block.address != 0) slack = 24 * kMiB + 2 * kStep;
      count(block.address, block.context, block.size);
    }
    for (const LentBlock& block : slots.lent_blocks) count(block.address, 0, block.size);
  }
  std::vector<Block> filled;
  for (;;) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc(&address, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
    if (!expect(result, "cuMemAlloc")) return;
    adopt(filled.emplace_back(), address, bytes, 0);
  }
  const std::uint64_t had = live + filled.size() * bytes;
  for (const Block& block : filled) {
    disown(block);
    expect(cuMemFree(block.address), "cuMemFree");
  }
  if (had + slack < machinery_.device_bytes) {
    fail("out of memory with " + std::to_string((machinery_.device_bytes - had) / kMiB) +
         " MiB of the device that are nobody's (contract 4)");
  }
}

// All threads keep what they have freed for as long as the device is filled.
void Machine::crowd(const Operation& op) {
  if (captures_ || op.a == 0 || !enter(0)) return;
  constexpr unsigned kRounds = 6;
  const std::uint64_t bytes = machinery_.device_bytes / 4 * 3 / op.a;
  Turnstile begun;
  Turnstile done;
  Turnstile end;
  const auto live = [&](unsigned) {
    begun.arrive();
    begun.await(op.a);
    Block block;
    if (expect(cuCtxSetCurrent(contexts_[0].handle), "cuCtxSetCurrent", kNoContext)) {
      for (unsigned round = 0; round < kRounds; ++round) {
        CUdeviceptr address = 0;
        const CUresult result = cuMemAlloc(&address, bytes);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) continue;
        if (!expect(result, "cuMemAlloc", kNoContext)) break;
        adopt(block, address, bytes, 0);
        std::uint32_t value = round;
        void* arguments[] = {&block.address, &block.words, &value};
        StreamRef own;
        own.handle = CU_STREAM_PER_THREAD;
        expect(launch(contexts_[0].stamp, own, arguments), "a kernel", kNoContext);
        disown(block);
        expect(cuMemFree(block.address), "cuMemFree", kNoContext);
      }
    }
    done.arrive();
    end.await(1);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < op.a; ++i) threads.emplace_back(live, i);
  done.await(op.a);
  if (!concurrent_ && !failed() && threshold_ == 0) {
    // Of a thread that did nothing between two synchronisations the engine keeps less in view.
    for (int i = 0; i < 2; ++i) expect(cuCtxSynchronize(), "cuCtxSynchronize");
    fill_device(2 * kMiB);
  }
  end.arrive();
  for (std::thread& thread : threads) thread.join();
}

// No free, so nobody asks how far the copies are. What cupool keeps for them stays bounded.
void Machine::many_copies(const Operation& op) {
  Buffer& buffer = slots_of(op).buffers[op.a % kBuffers];
  if (concurrent_ || captures_ || syncing_thread_ >= 0) return;
  if (buffer.host == nullptr || !enter(buffer.context)) return;
  constexpr unsigned long long kMost = 300;
  const auto events = [] {
    return cupoolSimCalls("cuEventCreate") - cupoolSimCalls("cuEventDestroy_v2");
  };
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, Buffer::kBytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY || !expect(result, "cuMemAlloc")) return;
  const unsigned long long before = events();
  for (std::uint64_t i = 0; i < op.size && !failed(); ++i) {
    CUstream stream = nullptr;
    const CUresult made = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) break;
    if (!expect(made, "cuStreamCreate")) break;
    expect(cuMemcpyHtoDAsync(address, buffer.host, Buffer::kBytes, stream), "cuMemcpyHtoDAsync");
    // The GPU is done, but nobody has asked for this stream.
    if (cupoolSimPending() > 4) expect(cuStreamSynchronize(stream), "cuStreamSynchronize");
    expect(cuStreamDestroy(stream), "cuStreamDestroy");
  }
  const unsigned long long more = events() - before;
  if (more > kMost) fail(std::to_string(more) + " events for copies that are complete");
  if (expect(cuCtxSynchronize(), "cuCtxSynchronize")) settled(slots_of(op), buffer.context);
  expect(cuMemFree(address), "cuMemFree");
}

// The call alone shows that work may come unseen. Green contexts that work: green_operations.cpp.
void Machine::step_aside() {
  if (concurrent_ || captures_ || !enter(0)) return;
  CUgreenCtx green = nullptr;
  cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

}  // namespace cupool::property
