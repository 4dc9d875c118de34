// SPDX-License-Identifier: Apache-2.0
// Random allocations, kernels and frees in one lane (docs/design.md, Lanes), and then beyond it:
// every block is stamped by its owner's kernel and checked by another before it is freed, with work
// pending all the time. A word of another owner is counted on the GPU.
//
//   lane_stress [pairs=N] [seed=N] [threads=N] [stream=legacy|created] [dependent=1] [leave=WAY]
//     WAY: none, kernel, copy, fill, graph, thread, destroy: half of the pairs come before it
//   prints: result foreign_words=N, info early=N (blocks that came back with work pending)
#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr size_t kSizes[] = {512, 4096, 20000, 65536, 300000, 1 << 20, 3 << 20};
constexpr int kSlots = 24;

struct Settings {
  long pairs = 20000;
  bool created = false;
  bool dependent = false;
  std::string leave = "none";
};
Settings settings;
uint64_t* mismatches = nullptr;
std::atomic<uint32_t> last_value{0};
std::atomic<long> early{0};

const char* text(int argc, char** argv, const char* name, const char* otherwise) {
  const size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
      return argv[i] + length + 1;
  }
  return otherwise;
}

// With `dependent`, stamps may begin before the kernel before them has ended. The program's own
// order permits that: the kernel before one has nothing to do with its block, or checked it for its
// last owner, whose free the stamp comes behind.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), cudaStream_t stream, Arguments... arguments) {
  const bool stamps = reinterpret_cast<void*>(kernel) == reinterpret_cast<void*>(stamp_u32);
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = dim3(32);
  configuration.blockDim = dim3(256);
  configuration.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  configuration.attrs = &attribute;
  configuration.numAttrs = settings.dependent && stamps ? 1 : 0;
  MUST(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...));
}

struct Slot {
  uint32_t* words = nullptr;
  uint64_t count = 0;
  uint32_t value = 0;
};

// One thread's part: its own slots, one stream at a time.
void work(cudaStream_t stream, long pairs, std::mt19937& random) {
  Slot slots[kSlots];
  uint32_t* last_freed = nullptr;
  for (long i = 0; i < pairs; ++i) {
    Slot& slot = slots[random() % kSlots];
    if (slot.words != nullptr) {
      launch(check_u32, stream, slot.words, slot.count, slot.value, mismatches);
      if (random() % 64 == 0) launch(spin_ns, stream, uint64_t{200000});
      last_freed = slot.words;
      MUST(cudaFree(slot.words));
    }
    const size_t size = kSizes[random() % (sizeof kSizes / sizeof *kSizes)];
    MUST(cudaMalloc(&slot.words, size));
    if (slot.words == last_freed) early.fetch_add(1, std::memory_order_relaxed);
    slot.count = size / 4;
    slot.value = last_value.fetch_add(1) + 1;
    launch(stamp_u32, stream, slot.words, slot.count, slot.value);
  }
  for (Slot& slot : slots) {
    if (slot.words == nullptr) continue;
    launch(check_u32, stream, slot.words, slot.count, slot.value, mismatches);
    MUST(cudaFree(slot.words));
  }
}

// Blocks that were freed with work pending, and their next owners' work in `way`.
void leave(cudaStream_t lane, const std::string& way, std::mt19937& random) {
  cudaStream_t other = nullptr;
  MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  Slot slots[kSlots];
  for (Slot& slot : slots) {
    const size_t size = kSizes[random() % (sizeof kSizes / sizeof *kSizes)];
    MUST(cudaMalloc(&slot.words, size));
    slot.count = size / 4;
    slot.value = last_value.fetch_add(1) + 1;
  }
  launch(spin_ns, lane, uint64_t{20000000});
  for (const Slot& slot : slots) launch(stamp_u32, lane, slot.words, slot.count, slot.value);
  for (Slot& slot : slots) {
    launch(check_u32, lane, slot.words, slot.count, slot.value, mismatches);
    MUST(cudaFree(slot.words));
  }
  for (Slot& slot : slots) MUST(cudaMalloc(&slot.words, slot.count * 4));
  if (way == "destroy" && settings.created) {
    MUST(cudaStreamDestroy(lane));
    MUST(cudaStreamDestroy(other));
    MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  }
  const auto all_on = [&](cudaStream_t stream) {
    for (Slot& slot : slots) {
      slot.value = last_value.fetch_add(1) + 1;
      launch(stamp_u32, stream, slot.words, slot.count, slot.value);
    }
  };
  if (way == "copy") {
    uint32_t* source = nullptr;
    MUST(cudaMalloc(&source, 3 << 20));
    const uint32_t value = last_value.fetch_add(1) + 1;
    launch(stamp_u32, other, source, uint64_t{(3 << 20) / 4}, value);
    for (Slot& slot : slots) {
      slot.value = value;
      MUST(cudaMemcpyAsync(slot.words, source, slot.count * 4, cudaMemcpyDeviceToDevice, other));
    }
    MUST(cudaFree(source));
  } else if (way == "fill") {
    for (Slot& slot : slots) {
      slot.value = 0x5a5a5a5a;
      MUST(cudaMemsetAsync(slot.words, 0x5a, slot.count * 4, other));
    }
  } else if (way == "graph") {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    MUST(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    all_on(other);
    MUST(cudaStreamEndCapture(other, &graph));
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphLaunch(executable, other));
  } else if (way == "thread") {
    std::thread([&] {
      MUST(cudaSetDevice(0));
      all_on(other);
    }).join();
  } else {
    all_on(other);
  }
  for (Slot& slot : slots) launch(check_u32, other, slot.words, slot.count, slot.value, mismatches);
  MUST(cudaStreamSynchronize(other));
  for (Slot& slot : slots) MUST(cudaFree(slot.words));
  MUST(cudaStreamDestroy(other));
}

}  // namespace

int main(int argc, char** argv) {
  settings.pairs = gpu_test::number(argc, argv, "pairs", 20000);
  settings.created = std::strcmp(text(argc, argv, "stream", "legacy"), "created") == 0;
  settings.dependent = gpu_test::number(argc, argv, "dependent", 0) != 0;
  settings.leave = text(argc, argv, "leave", "none");
  const long threads = gpu_test::number(argc, argv, "threads", 1);
  const auto seed = static_cast<uint32_t>(gpu_test::number(argc, argv, "seed", 1));
  MUST(cudaSetDevice(0));
  cudaStream_t lane = nullptr;
  if (settings.created) MUST(cudaStreamCreateWithFlags(&lane, cudaStreamNonBlocking));
  MUST(cudaMalloc(&mismatches, sizeof *mismatches));
  MUST(cudaMemsetAsync(mismatches, 0, sizeof *mismatches, lane));
  const auto begin = gpu_test::Clock::now();
  const auto run = [&](cudaStream_t stream, long pairs, uint32_t of_seed) {
    std::vector<std::thread> crew;
    for (long t = 0; t < threads; ++t) {
      crew.emplace_back([=] {
        MUST(cudaSetDevice(0));
        std::mt19937 random(of_seed * 1000 + static_cast<uint32_t>(t));
        work(stream, pairs / threads, random);
      });
    }
    for (std::thread& member : crew) member.join();
  };
  std::mt19937 random(seed);
  const bool leaves = settings.leave != "none";
  run(lane, leaves ? settings.pairs / 2 : settings.pairs, seed);
  const long in_lane = early.load();
  if (leaves) {
    leave(lane, settings.leave, random);
    const bool destroyed = settings.leave == "destroy" && settings.created;
    run(destroyed ? nullptr : lane, settings.pairs / 2, seed + 1);
  }
  MUST(cudaDeviceSynchronize());
  uint64_t foreign = 0;
  MUST(cudaMemcpy(&foreign, mismatches, sizeof foreign, cudaMemcpyDeviceToHost));
  std::printf("result foreign_words=%" PRIu64 "\n", foreign);
  std::printf("info early=%ld early_in_lane=%ld pairs=%ld ms=%.0f\n", early.load(), in_lane,
              settings.pairs, 1e3 * gpu_test::seconds_since(begin));
  return foreign == 0 ? 0 : 3;
}
