// SPDX-License-Identifier: Apache-2.0
// Contexts that come and go (contract 10). mode= resets (cudaDeviceReset again and again with
// live, retired and cached blocks), contexts (created, handed from thread to thread, destroyed with
// such blocks), primary (retained and released). Host memory and the device's must not grow.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kMiB = 1 << 20;
size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  unsigned long long pages = 0;
  unsigned long long resident = 0;
  CHECK(std::fscanf(file, "%llu %llu", &pages, &resident) == 2);
  std::fclose(file);
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t free_memory() {
  size_t available = 0;
  size_t total = 0;
  MUST(cuMemGetInfo(&available, &total));
  return available;
}

// Leaves live, retired and cached blocks of small and large sizes; their contents are right.
void use(CUstream stream, int value) {
  for (int i = 0; i < 12; ++i) {
    const size_t size = i % 4 == 3 ? 3 * kMiB : size_t{700} << i;
    CUdeviceptr p = 0;
    CUdeviceptr kept = 0;
    MUST(cuMemAlloc(&p, size));
    MUST(cuMemAlloc(&kept, size));
    probe::own(reinterpret_cast<void*>(p), size);
    MUST(cuMemsetD8Async(p, static_cast<unsigned char>(value), size < 4096 ? size : 4096, stream));
    std::vector<unsigned char> host(size < 4096 ? size : 4096);
    MUST(cuMemcpyDtoHAsync(host.data(), p, host.size(), stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(probe::count_other_bytes(host.data(), host.size(), value) == 0);
    // Retired with work pending, when the context ends.
    MUST(cuMemsetD8Async(p, 0xEE, 512, stream));
    probe::disown(reinterpret_cast<void*>(p), size);
    MUST(cuMemFree(p));
    if (i % 2 == 0) MUST(cuMemFree(kept));
  }
}

struct Growth {
  size_t resident = 0;
  size_t available = 0;

  void begin() {
    resident = resident_bytes();
    available = free_memory();
  }
  void end() const {
    // What the simulated device itself leaks for each context is in the run without us as well.
    std::printf(
        "grown_kib=%lld\n",
        (static_cast<long long>(resident_bytes()) - static_cast<long long>(resident)) / 1024);
    std::printf("device memory as before: %d\n", free_memory() == available);
  }
};

void resets(int rounds) {
  Growth growth;
  for (int round = 0; round < rounds; ++round) {
    cudaStream_t stream = nullptr;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    use(stream, 1 + round % 200);
    MUST(cudaDeviceReset());
    MUST(cudaFree(nullptr));
    if (round == rounds / 3) growth.begin();
  }
  growth.end();
  // After all of it the whole device is there.
  const size_t most = free_memory() / (2 * kMiB) * (2 * kMiB);
  void* p = nullptr;
  MUST(cudaMalloc(&p, most));
  MUST(cudaFree(p));
}

void in_thread(CUcontext context, CUstream stream, int value) {
  std::thread([=] {
    MUST(cuCtxSetCurrent(context));
    use(stream, value);
    CUcontext popped = nullptr;
    MUST(cuCtxPopCurrent(&popped));
    CHECK(popped == context);
  }).join();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // as programs that use them see them
// Its end by its last use: no call says that it is destroyed.
void leave_attached(CUcontext context) {
  MUST(cuCtxPushCurrent(context));
  CUcontext again = nullptr;
  MUST(cuCtxAttach(&again, 0));
  CHECK(again == context);
  MUST(cuCtxDetach(context));
  CUdeviceptr p = 0;
  MUST(cuMemAlloc(&p, 5000));  // it is still there
  MUST(cuMemFree(p));
  MUST(cuCtxDetach(context));
}
#pragma GCC diagnostic pop

void contexts(int rounds) {
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  CUcontext home = nullptr;
  CUctxCreateParams parameters{};
  MUST(cuCtxCreate(&home, &parameters, 0, device));
  Growth growth;
  for (int round = 0; round < rounds; ++round) {
    CUcontext made[2] = {};
    CUstream streams[2] = {};
    for (int i = 0; i < 2; ++i) {
      MUST(cuCtxCreate(&made[i], &parameters, 0, device));
      MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
      use(streams[i], 11 + i);
      CUcontext popped = nullptr;
      MUST(cuCtxPopCurrent(&popped));  // floating: any thread may take it
    }
    in_thread(made[0], streams[0], 21);
    in_thread(made[1], streams[1], 22);
    in_thread(made[0], streams[0], 23);
    // A block of one context freed while the other is current; another is lost with its context.
    CUdeviceptr p = 0;
    CUdeviceptr lost = 0;
    MUST(cuCtxSetCurrent(made[0]));
    MUST(cuMemAlloc(&p, 5000));
    MUST(cuMemAlloc(&lost, 5 * kMiB));
    MUST(cuCtxSetCurrent(made[1]));
    MUST(cuMemFree(p));
    MUST(cuCtxSetCurrent(home));
    if (round % 3 == 0) {
      leave_attached(made[round % 2]);
    } else {
      MUST(cuCtxDestroy(made[round % 2]));
    }
    MUST(cuCtxDestroy(made[1 - round % 2]));
    const int code = static_cast<int>(cuMemFree(lost));
    if (round == 0) std::printf("free of a lost block: %d\n", code);
    if (round == rounds / 3) growth.begin();
  }
  growth.end();
  MUST(cuCtxDestroy(home));
}

void primary(int rounds) {
  CUdevice device = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  Growth growth;
  for (int round = 0; round < rounds; ++round) {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    if (round == rounds / 3) growth.begin();
    if (round == rounds - 1) growth.end();
    use(stream, 1 + round % 200);
    MUST(cuCtxSetCurrent(nullptr));
    MUST(cuDevicePrimaryCtxRelease(device));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "resets");
  const auto rounds = static_cast<int>(probe::number(argc, argv, "rounds", 200));
  if (mode == "resets") resets(rounds);
  if (mode == "contexts") contexts(rounds);
  if (mode == "primary") primary(rounds);
  return 0;
}
