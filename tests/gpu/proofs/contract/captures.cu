// SPDX-License-Identifier: Apache-2.0
// Stream captures with allocation and free inside them (contract 9): what is refused, what stays
// valid, and whether what the graphs compute is right. captures matrix | launches
#include <cuda_runtime.h>

#include <thread>

#include "common/kernels.cuh"
#include "contract.h"

namespace {

using contract::fact;
using contract::kMiB;
using contract::verdict;

constexpr uint64_t kWords = 1 << 18;

uint64_t* wrong = nullptr;

// Wrong words since the last call.
uint64_t take_wrong() {
  uint64_t count = 0;
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
  MUST(cudaMemset(wrong, 0, sizeof count));
  MUST(cudaDeviceSynchronize());
  return count;
}

struct Case {
  cudaStreamCaptureMode mode;
  const char* operation;  // malloc, free, both, or churn: many of both
  bool other_thread;
  const char*
      play;  // the capturing stream is blocking, or legacy: as that, and legacy is busy before

  std::string name() const {
    const char* modes[] = {"global", "thread_local", "relaxed"};
    return std::string(modes[mode]) + "." + operation + "." + (other_thread ? "other" : "same") +
           "_thread." + play;
  }
  bool does(const char* one) const {
    return std::strcmp(operation, one) == 0 || std::strcmp(operation, "both") == 0;
  }
};

struct Outcome {
  int allocated = 0;
  int freed = 0;
  uint32_t* fresh = nullptr;
};

// Between begin and end of the capture. A free that is refused leaves the block with the caller.
void operate(const Case& one, uint32_t** spare, Outcome* outcome) {
  if (one.does("malloc")) outcome->allocated = cudaMalloc(&outcome->fresh, kWords * 4);
  if (one.does("free")) {
    outcome->freed = cudaFree(*spare);
    if (outcome->freed == 0) *spare = nullptr;
  }
  if (std::strcmp(one.operation, "churn") == 0) {
    for (int i = 0; i < 200 && outcome->allocated == 0 && outcome->freed == 0; ++i) {
      void* block = nullptr;
      outcome->allocated = cudaMalloc(&block, 1000 << (i % 14));
      if (outcome->allocated == 0) outcome->freed = cudaFree(block);
    }
  }
  cudaGetLastError();
}

// Whether the capture was valid and, if so, the data of its launches right.
void capture(const Case& one) {
  const uint32_t value = 0x600Du;
  cudaStream_t stream = nullptr;
  uint32_t* blocks[3] = {};
  for (uint32_t*& block : blocks) MUST(cudaMalloc(&block, kWords * 4));
  const bool non_blocking = std::strcmp(one.play, "non_blocking") == 0;
  MUST(cudaStreamCreateWithFlags(&stream, non_blocking ? cudaStreamNonBlocking : 0));
  MUST(cudaMemset(blocks[1], 0, kWords * 4));
  if (std::strcmp(one.play, "legacy") == 0) spin_ns<<<1, 1>>>(1000000);
  MUST(cudaStreamBeginCapture(stream, one.mode));
  stamp_u32<<<64, 256, 0, stream>>>(blocks[0], kWords, value);
  Outcome outcome;
  if (one.other_thread) {
    std::thread(operate, std::cref(one), &blocks[2], &outcome).join();
  } else {
    operate(one, &blocks[2], &outcome);
  }
  copy_u32<<<64, 256, 0, stream>>>(blocks[1], blocks[0], kWords);
  cudaGraph_t graph = nullptr;
  const int ended = cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();
  const bool valid = ended == 0 && graph != nullptr;
  fact("same.%s=malloc %d free %d end %d", one.name().c_str(), outcome.allocated, outcome.freed,
       ended);
  uint64_t count = 0;
  if (valid) {
    cudaGraphExec_t executable = nullptr;
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; ++i) {
      MUST(cudaGraphLaunch(executable, stream));
      // What was allocated during the capture is the program's own, whatever the graph does.
      if (outcome.fresh != nullptr) {
        stamp_u32<<<64, 256, 0, stream>>>(outcome.fresh, kWords, 0xBADu + i);
      }
      check_u32<<<64, 256, 0, stream>>>(blocks[1], kWords, value, wrong);
      if (outcome.fresh != nullptr) {
        check_u32<<<64, 256, 0, stream>>>(outcome.fresh, kWords, 0xBADu + i, wrong);
      }
      MUST(cudaGetLastError());
    }
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaGraphExecDestroy(executable));
  }
  if (graph != nullptr) MUST(cudaGraphDestroy(graph));
  MUST(cudaDeviceSynchronize());
  count = take_wrong();
  verdict(count == 0, "data of " + one.name() + ": " + std::to_string(count) + " wrong words");
  if (outcome.fresh != nullptr) MUST(cudaFree(outcome.fresh));
  for (uint32_t* block : blocks) MUST(cudaFree(block));
  MUST(cudaStreamDestroy(stream));
}

void matrix() {
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    for (const char* operation : {"malloc", "free", "both", "churn"}) {
      for (const bool other_thread : {false, true}) {
        for (const char* play : {"non_blocking", "blocking", "legacy"}) {
          capture({mode, operation, other_thread, play});
        }
      }
    }
  }
}

struct Recorded {
  uint32_t* source = nullptr;
  uint32_t* result = nullptr;
  cudaGraphExec_t executable = nullptr;
};

// A graph that stamps and copies between two blocks made before it.
Recorded record(cudaStream_t stream, uint32_t value) {
  Recorded made;
  cudaGraph_t graph = nullptr;
  MUST(cudaMalloc(&made.source, kWords * 4));
  MUST(cudaMalloc(&made.result, kWords * 4));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  stamp_u32<<<64, 256, 0, stream>>>(made.source, kWords, value);
  spin_ns<<<1, 1, 0, stream>>>(200000);
  copy_u32<<<64, 256, 0, stream>>>(made.result, made.source, kWords);
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&made.executable, graph, 0));
  MUST(cudaGraphDestroy(graph));
  return made;
}

void launches() {
  cudaStream_t stream = nullptr;
  cudaStream_t beside = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
  const Recorded kept = record(stream, 0x11110000u);
  std::vector<uint32_t*> others(8, nullptr);
  for (uint32_t*& other : others) MUST(cudaMalloc(&other, kWords * 4));
  for (uint32_t i = 0; i < 100; ++i) {
    MUST(cudaGraphLaunch(kept.executable, stream));
    uint32_t*& other = others[i % others.size()];
    stamp_u32<<<64, 256, 0, stream>>>(other, kWords, i);
    MUST(cudaFree(other));
    MUST(cudaMalloc(&other, kWords * 4));
    stamp_u32<<<64, 256, 0, beside>>>(other, kWords, 0x33330000u + i);
    check_u32<<<64, 256, 0, beside>>>(other, kWords, 0x33330000u + i, wrong);
    check_u32<<<64, 256, 0, stream>>>(kept.result, kWords, 0x11110000u, wrong);
    MUST(cudaGetLastError());
    // `other` is freed next after work on the first stream: both must be done with it by then.
    MUST(cudaStreamSynchronize(beside));
  }
  const uint64_t kept_wrong = take_wrong();
  verdict(kept_wrong == 0,
          "100 launches with frees between: " + std::to_string(kept_wrong) + " wrong words");
  // The graph's own source is freed while its launch is pending; who gets it next must not meet it.
  for (uint32_t i = 0; i < 30; ++i) {
    const Recorded made = record(stream, 0x44440000u + i);
    MUST(cudaGraphLaunch(made.executable, stream));
    MUST(cudaFree(made.source));
    uint32_t* next = nullptr;
    MUST(cudaMalloc(&next, kWords * 4));
    stamp_u32<<<64, 256, 0, beside>>>(next, kWords, 0x55550000u + i);
    check_u32<<<64, 256, 0, beside>>>(next, kWords, 0x55550000u + i, wrong);
    check_u32<<<64, 256, 0, stream>>>(made.result, kWords, 0x44440000u + i, wrong);
    MUST(cudaGetLastError());
    MUST(cudaFree(next));
    MUST(cudaFree(made.result));
    MUST(cudaGraphExecDestroy(made.executable));
  }
  const uint64_t freed_wrong = take_wrong();
  verdict(freed_wrong == 0,
          "memory of a pending launch is freed: " + std::to_string(freed_wrong) + " wrong words");
  MUST(cudaGraphExecDestroy(kept.executable));
}

}  // namespace

int main(int argc, char** argv) {
  MUST(cudaMalloc(&wrong, sizeof(uint64_t)));
  MUST(cudaMemset(wrong, 0, sizeof(uint64_t)));
  // Loading code is no part of this: it breaks captures of its own accord.
  uint32_t* words = nullptr;
  MUST(cudaMalloc(&words, 8));
  stamp_u32<<<1, 1>>>(words, 1, 1u);
  check_u32<<<1, 1>>>(words, 1, 1u, wrong);
  copy_u32<<<1, 1>>>(words + 1, words, 1);
  spin_ns<<<1, 1>>>(1);
  MUST(cudaDeviceSynchronize());
  MUST(cudaFree(words));
  if (contract::asked(argc, argv, "matrix")) {
    matrix();
  } else if (contract::asked(argc, argv, "launches")) {
    launches();
  } else {
    return 2;
  }
  return contract::exit_code();
}
