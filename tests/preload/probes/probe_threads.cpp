// SPDX-License-Identifier: Apache-2.0
// Threads that come and go (contract 11), blocks freed by another thread than allocated them, and
// per-thread default streams. Every block is filled by one owner and checked at once; a block that
// is handed out twice shows as a wrong byte (contract 1 and 2).
#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "owner.h"
#include "probe.h"

namespace {

struct Block {
  void* pointer;
  size_t size;
  int value;
};

// Blocks on their way to another thread.
class Exchange {
 public:
  // Puts one in, takes the oldest out once there are a few: it then comes from another thread.
  bool swap(Block in, Block* out) {
    const std::lock_guard<std::mutex> guard(mutex_);
    blocks_.push_back(in);
    if (blocks_.size() < 16) return false;
    *out = blocks_.front();
    blocks_.erase(blocks_.begin());
    return true;
  }
  std::vector<Block> drain() { return std::exchange(blocks_, {}); }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

std::atomic<uint64_t> mallocs{0};
std::atomic<uint64_t> frees{0};
std::atomic<uint64_t> wrong_bytes{0};

void check_and_free(const Block& block) {
  std::vector<unsigned char> host(block.size);
  MUST(cudaMemcpyAsync(host.data(), block.pointer, block.size, cudaMemcpyDeviceToHost,
                       cudaStreamPerThread));
  MUST(cudaStreamSynchronize(cudaStreamPerThread));
  wrong_bytes += probe::count_other_bytes(host.data(), block.size, block.value);
  // A late write on this thread's stream, which the freeing must cover.
  MUST(cudaMemsetAsync(block.pointer, 0xEE, block.size, cudaStreamPerThread));
  probe::disown(block.pointer, block.size);
  MUST(cudaFree(block.pointer));
  ++frees;
}

void work(Exchange& exchange, int thread_index, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    Block block{nullptr, size_t{256} << ((i + thread_index) % 10),
                1 + (i * 13 + thread_index) % 250};
    MUST(cudaMalloc(&block.pointer, block.size));
    probe::own(block.pointer, block.size);
    ++mallocs;
    MUST(cudaMemsetAsync(block.pointer, block.value, block.size, cudaStreamPerThread));
    // The program's own order: the filling is complete before another thread gets the block.
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    Block other{};
    if (exchange.swap(block, &other)) check_and_free(other);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = static_cast<int>(probe::number(argc, argv, "rounds", 6));
  const int threads = static_cast<int>(probe::number(argc, argv, "threads", 8));
  const int iterations = static_cast<int>(probe::number(argc, argv, "iterations", 40));
  Exchange exchange;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&exchange, i, iterations] { work(exchange, i, iterations); });
    }
    for (std::thread& worker : workers) worker.join();
  }
  for (const Block& block : exchange.drain()) check_and_free(block);
  MUST(cudaDeviceSynchronize());
  std::printf("wrong_bytes=%" PRIu64 "\n", wrong_bytes.load());
  probe::print_counts(mallocs, frees);
  return wrong_bytes == 0 ? 0 : probe::kWrongResult;
}
