// SPDX-License-Identifier: Apache-2.0
// A plain runtime-interface program, linked once with the shared and once with the static libcudart
// (docs/design.md, routes 3 and 4). Arguments: iterations=N threads=N devices=N,
// copies=N (so often a block is copied to the host, waited for and freed; nothing else is done),
// legacy=N (so often blocks are filled and freed, with waits for the legacy stream; nothing else is
// done), other=none, blocking, non_blocking (a stream that does half of that work),
// file_limit=BYTES (RLIMIT_FSIZE, whose signal SIGXFSZ ends a program that does not know it).
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <mutex>
#include <thread>
#include <vector>

#include "probe.h"
#include "runtime_work.h"

namespace {

void copy_and_free(long times) {
  constexpr size_t kBytes = 4096;
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreate(&stream));
  void* host = nullptr;
  MUST(cudaMallocHost(&host, kBytes));
  for (long i = 0; i < times; ++i) {
    void* block = nullptr;
    MUST(cudaMalloc(&block, kBytes));
    MUST(cudaMemsetAsync(block, static_cast<int>(i % 256), kBytes, stream));
    MUST(cudaMemcpyAsync(host, block, kBytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    CHECK(probe::count_other_bytes(static_cast<unsigned char*>(host), kBytes,
                                   static_cast<int>(i % 256)) == 0);
    MUST(cudaFree(block));
  }
  MUST(cudaFreeHost(host));
  MUST(cudaStreamDestroy(stream));
}

// Each block is filled by another stream than the last one, and freed at once.
void fill_and_free(long times, const std::string& other) {
  constexpr size_t kBytes = 4096;
  constexpr int kBlocks = 3;
  cudaStream_t streams[] = {nullptr, nullptr};
  if (other != "none") {
    MUST(cudaStreamCreateWithFlags(
        &streams[1], other == "blocking" ? cudaStreamDefault : cudaStreamNonBlocking));
  }
  for (long i = 0; i < times; ++i) {
    for (int block = 0; block < kBlocks; ++block) {
      void* filled = nullptr;
      MUST(cudaMalloc(&filled, kBytes));
      MUST(cudaMemsetAsync(filled, block, kBytes, streams[(i + block) % 2]));
      MUST(cudaFree(filled));
    }
    MUST(cudaStreamSynchronize(nullptr));
  }
  if (streams[1] != nullptr) MUST(cudaStreamDestroy(streams[1]));
}

}  // namespace

int main(int argc, char** argv) {
  const int iterations = static_cast<int>(probe::number(argc, argv, "iterations", 40));
  const int threads = static_cast<int>(probe::number(argc, argv, "threads", 1));
  const int devices = static_cast<int>(probe::number(argc, argv, "devices", 1));
  if (const long bytes = probe::number(argc, argv, "file_limit", 0); bytes != 0) {
    MUST(cudaFree(nullptr));  // the simulated device's memory is a file, made at the first use
    const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    MUST(setrlimit(RLIMIT_FSIZE, &limit));
  }
  if (const long copies = probe::number(argc, argv, "copies", 0); copies != 0) {
    copy_and_free(copies);
    return 0;
  }
  if (const long times = probe::number(argc, argv, "legacy", 0); times != 0) {
    fill_and_free(times, probe::argument(argc, argv, "other", "none"));
    return 0;
  }
  WorkCounts total;
  if (threads == 1 && devices == 1) {
    total = run_runtime_work(iterations, 0);
  } else {
    std::mutex mutex;
    std::vector<std::thread> workers;
    for (int device = 0; device < devices; ++device) {
      for (int i = 0; i < threads; ++i) {
        workers.emplace_back([&total, &mutex, iterations, device, i] {
          MUST(cudaSetDevice(device));
          const WorkCounts counts = run_runtime_work(iterations, i);
          const std::lock_guard<std::mutex> guard(mutex);
          total.add(counts);
        });
      }
    }
    for (std::thread& worker : workers) worker.join();
  }
  std::printf("checksum=%" PRIu64 " wrong_bytes=%" PRIu64 "\n", total.checksum, total.wrong_bytes);
  std::printf("last_error=%d\n", static_cast<int>(cudaGetLastError()));
  probe::print_counts(total.mallocs, total.frees);
  return total.wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
