// SPDX-License-Identifier: Apache-2.0
// A process that leaves while another of its threads ends a context whose kernel does not end
// (contract 11). mode= exit, quick_exit; ends=no: no context ends; looks=N: once the driver was
// asked so often for a figure of a pool. Exit code 7, so that a lost code shows.
#include <cupool_sim.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "probe_gpu.h"

int main(int argc, char** argv) {
  constexpr std::uint64_t kKernelNs = 40'000'000'000;
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  MUST(cuModuleLoadData(&module, "image"));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  probe::warm_up();
  if (!probe::argument_is(argc, argv, "ends", "no")) {
    std::uint64_t ns = kKernelNs;
    void* arguments[] = {&ns};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    std::thread([context] { cuCtxDestroy(context); }).detach();
  }
  const auto looks = static_cast<unsigned long long>(probe::number(argc, argv, "looks", 0));
  if (looks == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  while (cupoolSimCalls("cuMemPoolGetAttribute") < looks) std::this_thread::yield();
  std::printf("leaving\n");
  std::fflush(stdout);
  if (probe::argument_is(argc, argv, "mode", "quick_exit")) std::quick_exit(7);
  std::exit(7);
}
