// SPDX-License-Identifier: Apache-2.0
// A program that goes on after errors, for the tests with injected faults ("fail open"): counts the
// codes that it got and checks the data of every call sequence that succeeded.
#include <cuda_runtime_api.h>

#include <map>
#include <vector>

#include "probe.h"

namespace {

std::map<int, int> codes;
uint64_t wrong_bytes = 0;

bool ok(cudaError_t code) {
  if (code == cudaSuccess) return true;
  ++codes[static_cast<int>(code)];
  cudaGetLastError();
  return false;
}

void request(int i) {
  const size_t size = size_t{700} << (i % 12);
  const int value = 1 + i % 250;
  void* p = nullptr;
  void* q = nullptr;
  if (!ok(cudaMalloc(&p, size))) return;
  if (ok(cudaMalloc(&q, size))) {
    std::vector<unsigned char> host(size);
    const bool done = ok(cudaMemsetAsync(p, value, size, nullptr)) &&
                      ok(cudaMemcpyAsync(q, p, size, cudaMemcpyDeviceToDevice, nullptr)) &&
                      ok(cudaMemcpyAsync(host.data(), q, size, cudaMemcpyDeviceToHost, nullptr)) &&
                      ok(cudaStreamSynchronize(nullptr));
    if (done) wrong_bytes += probe::count_other_bytes(host.data(), size, value);
    ok(cudaFree(q));
  }
  ok(cudaFree(p));
}

}  // namespace

int main() {
  for (int i = 0; i < 30; ++i) request(i);
  std::printf("wrong_bytes=%" PRIu64 "\n", wrong_bytes);
  std::printf("errors:");
  for (const auto& code : codes) std::printf(" %d x%d", code.first, code.second);
  std::printf("\n");
  return wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
