// SPDX-License-Identifier: Apache-2.0
// The demo: an inference server as legacy code writes it. Each request allocates its buffers with
// cudaMalloc, copies its input in, computes on several layers, copies the result out, checks it and
// frees everything with cudaFree. It knows nothing of cupool and is not changed for it.
// Runtime interface only, and no kernel syntax: the same source links with the real libcudart and
// with the simulated one. Arguments: threads=N requests=N (per thread)
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLayers = 6;
// Bytes of the activations of a request's layers: requests come in a few shapes, as batches do.
constexpr size_t kShapes[][kLayers] = {
    {150528, 802816, 401408, 200704, 100352, 4000},
    {301056, 1605632, 802816, 401408, 200704, 8000},
    {602112, 3211264, 1605632, 802816, 401408, 16000},
    {37632, 200704, 100352, 50176, 25088, 4000},
};
constexpr int kShapeCount = static_cast<int>(sizeof(kShapes) / sizeof(kShapes[0]));

void must(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(code));
  std::exit(1);
}

struct Totals {
  std::mutex mutex;
  std::vector<double> latencies_us;
  uint64_t checksum = 0;
  uint64_t wrong_bytes = 0;
};

// One worker of the server: a stream and pinned staging buffers that live as long as it does.
class Worker {
 public:
  Worker() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaMallocHost(&input_, kShapes[2][0]), "cudaMallocHost");
    must(cudaMallocHost(&output_, kShapes[2][kLayers - 1]), "cudaMallocHost");
  }
  ~Worker() {
    must(cudaFreeHost(input_), "cudaFreeHost");
    must(cudaFreeHost(output_), "cudaFreeHost");
    must(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves one request; returns the number of wrong bytes in its result.
  uint64_t serve(const size_t (&shape)[kLayers], unsigned char seed, uint64_t* checksum) {
    void* activations[kLayers] = {};
    void* workspace = nullptr;
    for (int i = 0; i < kLayers; ++i) must(cudaMalloc(&activations[i], shape[i]), "cudaMalloc");
    must(cudaMalloc(&workspace, 2 * shape[1]), "cudaMalloc");

    std::memset(input_, seed, shape[0]);
    must(cudaMemcpyAsync(activations[0], input_, shape[0], cudaMemcpyHostToDevice, stream_),
         "cudaMemcpyAsync");
    for (int i = 1; i < kLayers; ++i) {
      // The work of a layer: clear the output, use the workspace, carry the input over.
      const size_t carried = std::min(shape[i - 1], shape[i]);
      must(cudaMemsetAsync(activations[i], seed, shape[i], stream_), "cudaMemsetAsync");
      must(cudaMemcpyAsync(workspace, activations[i - 1], carried, cudaMemcpyDeviceToDevice,
                           stream_),
           "cudaMemcpyAsync");
      must(cudaMemcpyAsync(activations[i], workspace, carried, cudaMemcpyDeviceToDevice, stream_),
           "cudaMemcpyAsync");
    }
    const size_t result_bytes = shape[kLayers - 1];
    must(cudaMemcpyAsync(output_, activations[kLayers - 1], result_bytes, cudaMemcpyDeviceToHost,
                         stream_),
         "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");

    uint64_t wrong = 0;
    const auto* bytes = static_cast<const unsigned char*>(output_);
    for (size_t i = 0; i < result_bytes; ++i) {
      wrong += bytes[i] != seed;
      *checksum += bytes[i];
    }
    // The workspace is released while a last clearing is under way, as careless code does.
    must(cudaMemsetAsync(workspace, 0xEE, shape[1], stream_), "cudaMemsetAsync");
    must(cudaFree(workspace), "cudaFree");
    for (void* activation : activations) must(cudaFree(activation), "cudaFree");
    return wrong;
  }

 private:
  cudaStream_t stream_ = nullptr;
  void* input_ = nullptr;
  void* output_ = nullptr;
};

void work(int thread_index, int requests, Totals* totals) {
  Worker worker;
  std::vector<double> latencies;
  uint64_t checksum = 0;
  uint64_t wrong = 0;
  for (int i = 0; i < requests; ++i) {
    const auto seed = static_cast<unsigned char>(1 + (thread_index * 37 + i) % 255);
    const Clock::time_point begin = Clock::now();
    wrong += worker.serve(kShapes[(thread_index + i) % kShapeCount], seed, &checksum);
    latencies.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  const std::lock_guard<std::mutex> guard(totals->mutex);
  totals->latencies_us.insert(totals->latencies_us.end(), latencies.begin(), latencies.end());
  totals->checksum += checksum;
  totals->wrong_bytes += wrong;
}

int argument(int argc, char** argv, const char* name, int otherwise) {
  const size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
      return std::atoi(argv[i] + length + 1);
    }
  }
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = std::max(1, argument(argc, argv, "threads", 4));
  const int requests = std::max(1, argument(argc, argv, "requests", 200));
  void* warm_up = nullptr;
  must(cudaMalloc(&warm_up, 1 << 20), "cudaMalloc");
  must(cudaFree(warm_up), "cudaFree");

  Totals totals;
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work, i, requests, &totals);
  for (std::thread& worker : workers) worker.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  std::vector<double>& latencies = totals.latencies_us;
  std::sort(latencies.begin(), latencies.end());
  std::printf("requests=%zu\n", latencies.size());
  std::printf("requests_per_second=%.0f\n", static_cast<double>(latencies.size()) / seconds);
  std::printf("median_us=%.1f\n", latencies[latencies.size() / 2]);
  std::printf("p99_us=%.1f\n", latencies[latencies.size() * 99 / 100]);
  std::printf("checksum=%" PRIu64 "\n", totals.checksum);
  std::printf("wrong_bytes=%" PRIu64 "\n", totals.wrong_bytes);
  return totals.wrong_bytes == 0 ? 0 : 1;
}
