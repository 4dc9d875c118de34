// SPDX-License-Identifier: Apache-2.0
// A program whose memory changes in known steps, for the time series (CUPOOL_STATS_INTERVAL). mode=
// steps (1 MiB, 64 MiB, 1 MiB, each for a while), small (three blocks of 100 KiB), seconds (until a
// second has begun twice), growth (more all the time), contexts (destroys contexts all the time),
// reset (resets the device all the time), prometheus (reads the file of its own figures while it
// runs).
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "probe.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr useconds_t kWhile = 150'000;

// For a while, and until a sample has begun and ended: each asks the driver once, after it has read
// the levels.
void stay() {
  using Calls = unsigned long long (*)(const char*);
  const bool is_sampled = std::getenv("CUPOOL_STATS_INTERVAL") != nullptr &&
                          dlsym(RTLD_DEFAULT, "cupool_snapshot") != nullptr;
  const auto calls = reinterpret_cast<Calls>(dlsym(RTLD_DEFAULT, "cupoolSimCalls"));
  const auto looks = [&] { return calls == nullptr ? 0 : calls("cuMemGetInfo_v2"); };
  const unsigned long long before = looks();
  const auto patience = Clock::now() + std::chrono::seconds(20);
  usleep(kWhile);
  while (is_sampled && looks() < before + 2 && Clock::now() < patience) usleep(1000);
}

void steps() {
  void* small = nullptr;
  void* large = nullptr;
  MUST(cudaMalloc(&small, size_t{1} << 20));
  stay();
  MUST(cudaMalloc(&large, size_t{64} << 20));
  stay();
  MUST(cudaFree(large));
  stay();
  MUST(cudaFree(small));
}

void small() {
  void* blocks[3] = {};
  for (void*& block : blocks) MUST(cudaMalloc(&block, size_t{100} << 10));
  for (void* block : blocks) MUST(cudaFree(block));
}

void seconds() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 4096));
  for (const time_t begin = time(nullptr); time(nullptr) < begin + 2;) usleep(kWhile);
  MUST(cudaFree(address));
}

// Each block has a chunk of the pool for itself, so that figures from before it show.
void growth() {
  std::vector<void*> blocks(390);
  for (void*& block : blocks) MUST(cudaMalloc(&block, size_t{40} << 20));
  for (void* block : blocks) MUST(cudaFree(block));
}

void contexts() {
  MUST(cuInit(0));
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  while (Clock::now() < end) {
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    MUST(cuCtxCreate(&context, nullptr, 0, 0));
    MUST(cuMemAlloc(&address, 4096));
    MUST(cuMemFree(address));
    MUST(cuCtxDestroy(context));
  }
}

void reset() {
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  while (Clock::now() < end) {
    void* address = nullptr;
    MUST(cudaMalloc(&address, 4096));
    MUST(cudaDeviceReset());
  }
}

std::string own_file() {
  std::ifstream file(std::getenv("PROBE_SERIES_FILE"));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The file comes and changes while the program runs, and is whole whenever it is looked at.
void prometheus() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, size_t{3} << 20));
  std::string before;
  const auto patience = Clock::now() + std::chrono::seconds(20);
  // Each read finds a whole file, however often it is replaced meanwhile.
  for (int changes = 0; changes < 10;) {
    CHECK(Clock::now() < patience);
    const std::string text = own_file();
    if (text.empty()) continue;
    CHECK(text.rfind("# HELP ", 0) == 0 && text.back() == '\n');
    CHECK(text.find("cupool_device_memory_bytes{") != std::string::npos);  // the last metric
    if (text == before || text.find("cupool_held_bytes{device=\"0\"") == text.npos) continue;
    before = text;
    ++changes;
  }
  MUST(cudaFree(address));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "steps");
  if (mode == "steps") steps();
  if (mode == "small") small();
  if (mode == "seconds") seconds();
  if (mode == "growth") growth();
  if (mode == "contexts") contexts();
  if (mode == "reset") reset();
  if (mode == "prometheus") prometheus();
  std::printf("done\n");
  return 0;
}
