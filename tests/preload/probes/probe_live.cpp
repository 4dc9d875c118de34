// SPDX-License-Identifier: Apache-2.0
// Holds memory and stays, for those who look at it from outside (cupool top): allocates blocks= of
// mib= MiB, frees frees= of them, says so, and ends when its standard input does. A byte on it is a
// pair of an allocation and a free. scene=waiting: a free waits for the GPU until the input ends.
// scene=none: loads the driver, and allocates nothing. work=: fills the last
// block so often before.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <vector>

#include "probe.h"

namespace {

void* allocate(long mib) {
  void* block = nullptr;
  MUST(cudaMalloc(&block, static_cast<size_t>(mib) << 20));
  return block;
}

// Until the input ends, on a thread of the driver.
void wait_for_end(void*) {
  char byte = 0;
  while (read(0, &byte, 1) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long mib = probe::number(argc, argv, "mib", 4);
  const long frees = probe::number(argc, argv, "frees", 0);
  const bool waits = probe::argument_is(argc, argv, "scene", "waiting");
  int devices = 0;
  MUST(cudaGetDeviceCount(&devices));
  std::vector<void*> blocks;
  if (!probe::argument_is(argc, argv, "scene", "none")) {
    for (long i = probe::number(argc, argv, "blocks", 1); i > 0; --i) {
      blocks.push_back(allocate(mib));
    }
  }
  for (long i = probe::number(argc, argv, "work", 0); i > 0; --i) {
    MUST(cudaMemsetAsync(blocks.back(), 1, 100, nullptr));
  }
  for (long i = 0; i < frees; ++i) {
    MUST(cudaFree(blocks.back()));
    blocks.pop_back();
  }
  if (waits) MUST(cudaLaunchHostFunc(nullptr, wait_for_end, nullptr));
  probe::say("ready", static_cast<long>(blocks.size()));
  char byte = 0;
  while (!waits && read(0, &byte, 1) > 0) MUST(cudaFree(allocate(mib)));
  for (void* block : blocks) MUST(cudaFree(block));
  return 0;
}
