// SPDX-License-Identifier: Apache-2.0
// The runtime-interface work that several probes share; see runtime_work.h. Kept out of the mains
// so that the very same object can sit in a program or in a plugin.
#include "runtime_work.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

constexpr size_t kSizes[] = {1,         511,        512,     513,     4096,
                             64 * 1024, 100 * 1000, 1 << 20, 2 << 20, (3 << 20) + 17};
constexpr int kSizeCount = static_cast<int>(sizeof(kSizes) / sizeof(kSizes[0]));

// Lane 0 uses the legacy stream, the others a stream of their own, of both kinds.
class LaneStream {
 public:
  explicit LaneStream(int lane) {
    if (lane % 4 == 1) MUST(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (lane % 4 == 2) MUST(cudaStreamCreate(&stream_));
    if (lane % 4 == 3) stream_ = cudaStreamPerThread;
    owned_ = lane % 4 == 1 || lane % 4 == 2;
  }
  ~LaneStream() {
    if (owned_) MUST(cudaStreamDestroy(stream_));
  }
  LaneStream(const LaneStream&) = delete;
  LaneStream& operator=(const LaneStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  bool owned_ = false;
};

}  // namespace

WorkCounts run_runtime_work(int iterations, int lane) {
  WorkCounts counts;
  LaneStream stream(lane);
  std::vector<unsigned char> host;
  for (int i = 0; i < iterations; ++i) {
    const size_t size = kSizes[(i + lane) % kSizeCount];
    const int value = 1 + (i * 7 + lane * 31) % 250;
    void* source = nullptr;
    void* copy = nullptr;
    MUST(cudaMalloc(&source, size));
    MUST(cudaMalloc(&copy, size));
    probe::own(source, size);
    probe::own(copy, size);
    counts.mallocs += 2;
    host.assign(size, 0);
    MUST(cudaMemsetAsync(source, value, size, stream.get()));
    MUST(cudaMemcpyAsync(copy, source, size, cudaMemcpyDeviceToDevice, stream.get()));
    MUST(cudaMemcpyAsync(host.data(), copy, size, cudaMemcpyDeviceToHost, stream.get()));
    MUST(cudaStreamSynchronize(stream.get()));
    const uint64_t wrong = probe::count_other_bytes(host.data(), size, value);
    counts.wrong_bytes += wrong;
    counts.checksum += (size - wrong) * static_cast<uint64_t>(value);
    // Still pending when the memory is freed: its late writes must hit no later owner.
    MUST(cudaMemsetAsync(source, 0xEE, size, stream.get()));
    MUST(cudaMemcpyAsync(copy, source, size, cudaMemcpyDeviceToDevice, stream.get()));
    probe::disown(copy, size);
    MUST(cudaFree(copy));
    probe::disown(source, size);
    MUST(cudaFree(source));
    counts.frees += 2;
  }
  return counts;
}
