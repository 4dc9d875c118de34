// SPDX-License-Identifier: Apache-2.0
// A process of an IPC scenario: does what the conductor orders (probe_ipc.h) and answers with the
// codes that it got. channel= is the descriptor of its end of the socket pair.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_ipc.h"

using ipc_probe::Answer;
using ipc_probe::Order;
using ipc_probe::Verb;

namespace {

std::map<int, void*> slots;
cudaStream_t capturing = nullptr;
cudaStream_t working = nullptr;
void* mismatches = nullptr;

int driver_code(CUresult code) {
  return static_cast<int>(code);
}

// Bits of what the queries say of a pointer: same size, context there, device 0, a device pointer,
// no pool, range of the requested size, suitable for IPC (asked of the process that allocated it).
uint64_t describe(const Order& order, int* code) {
  const auto address = reinterpret_cast<CUdeviceptr>(slots[order.slot]);
  uint64_t bits = 0;
  CUcontext context = nullptr;
  size_t range = 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned capable = 0;
  CUmemoryPool pool = nullptr;
  unsigned long long handles = 0;
  cudaPointerAttributes attributes{};
  *code = static_cast<int>(cudaPointerGetAttributes(&attributes, slots[order.slot]));
  if (attributes.type == cudaMemoryTypeDevice) bits |= 1;
  if (attributes.device == 0) bits |= 2;
  if (cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS &&
      context != nullptr) {
    bits |= 4;
  }
  if (cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) == CUDA_SUCCESS &&
      range == order.bytes) {
    bits |= 8;
  }
  if (cuMemGetAddressRange(&base, &bytes, address + order.bytes - 1) == CUDA_SUCCESS &&
      base == address && bytes == order.bytes) {
    bits |= 16;
  }
  if (cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS &&
      pool == nullptr) {
    bits |= 32;
  }
  if (cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address) ==
          CUDA_SUCCESS &&
      handles == 0) {
    bits |= 64;
  }
  const CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  if (order.value != 0 && cuPointerGetAttribute(&capable, asked, address) == CUDA_SUCCESS &&
      capable == 1) {
    bits |= 128;
  }
  return bits;
}

Answer open(const Order& order) {
  Answer answer;
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, order.handle, sizeof handle);
  void* address = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  answer.code = cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess);
  answer.number = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                            std::chrono::steady_clock::now() - begin)
                                            .count());
  if (answer.code == 0) slots[order.slot] = address;
  answer.address = reinterpret_cast<uint64_t>(address);
  return answer;
}

Answer get_handle(const Order& order) {
  Answer answer;
  cudaIpcMemHandle_t handle{};
  answer.code =
      cudaIpcGetMemHandle(&handle, static_cast<unsigned char*>(slots[order.slot]) + order.bytes);
  std::memcpy(answer.handle, &handle, sizeof handle);
  return answer;
}

Answer fill(const Order& order, bool wait) {
  Answer answer;
  if (working == nullptr) MUST(cudaStreamCreateWithFlags(&working, cudaStreamNonBlocking));
  answer.code = cudaMemsetAsync(slots[order.slot], order.value, order.bytes, working);
  if (wait && answer.code == 0) answer.code = cudaStreamSynchronize(working);
  return answer;
}

// By a kernel: copies of the driver reach memory that kernels may not.
uint64_t wrong_words(const void* block, uint64_t bytes, int value) {
  if (mismatches == nullptr) MUST(cudaMalloc(&mismatches, sizeof(uint64_t)));
  CUmodule module = nullptr;
  CUfunction check = nullptr;
  MUST(driver_code(cuModuleLoadData(&module, "the simulated device knows kernels by name")));
  MUST(driver_code(cuModuleGetFunction(&check, module, "check_u32")));
  auto words = reinterpret_cast<CUdeviceptr>(block);
  auto counter = reinterpret_cast<CUdeviceptr>(mismatches);
  uint64_t count = bytes / sizeof(uint32_t);
  uint32_t expected = static_cast<uint32_t>(value) * 0x01010101u;
  void* arguments[] = {&words, &count, &expected, &counter};
  uint64_t wrong = 0;
  MUST(cudaMemset(mismatches, 0, sizeof wrong));
  MUST(driver_code(cuLaunchKernel(check, 8, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr)));
  MUST(cudaMemcpy(&wrong, mismatches, sizeof wrong, cudaMemcpyDeviceToHost));
  MUST(driver_code(cuModuleUnload(module)));
  return wrong;
}

Answer check(const Order& order) {
  Answer answer;
  std::vector<unsigned char> host(order.bytes);
  answer.code = cudaMemcpy(host.data(), slots[order.slot], order.bytes, cudaMemcpyDeviceToHost);
  answer.number = probe::count_other_bytes(host.data(), host.size(), order.value);
  if (order.by_kernel != 0) {
    answer.number += wrong_words(slots[order.slot], order.bytes, order.value);
  }
  return answer;
}

Answer allocate(const Order& order) {
  Answer answer;
  void* address = nullptr;
  answer.code = cudaMalloc(&address, order.bytes);
  slots[order.slot] = address;
  answer.address = reinterpret_cast<uint64_t>(address);
  return answer;
}

Answer free_bytes() {
  Answer answer;
  size_t available = 0;
  size_t total = 0;
  answer.code = cudaMemGetInfo(&available, &total);
  answer.number = available;
  return answer;
}

Answer end_capture() {
  Answer answer;
  cudaGraph_t graph = nullptr;
  answer.code = cudaStreamEndCapture(capturing, &graph);
  if (graph == nullptr && answer.code == 0) answer.code = -1;
  return answer;
}

int begin_capture() {
  if (capturing == nullptr) MUST(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
  return cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal);
}

constexpr int kThreads = 4;
constexpr int kRounds = 25;

template <typename Work>
uint64_t race(const Work& work) {
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) wrong += work(i * kRounds + round);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

// Handles of blocks that are live at the same time differ.
uint64_t race_exports() {
  std::mutex mutex;
  std::set<std::string> seen;
  return race([&](int i) -> uint64_t {
    void* block = nullptr;
    cudaIpcMemHandle_t handle{};
    uint64_t wrong = cudaMalloc(&block, 512 + static_cast<size_t>(i) * 100) != cudaSuccess;
    wrong += cudaIpcGetMemHandle(&handle, block) != cudaSuccess;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      wrong += !seen.insert(std::string(handle.reserved, sizeof handle.reserved)).second;
    }
    return wrong + (cudaFree(block) != cudaSuccess);
  });
}

uint64_t race_opens(const Order& order) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, order.handle, sizeof handle);
  return race([&](int) -> uint64_t {
    void* block = nullptr;
    std::vector<unsigned char> host(order.bytes);
    uint64_t wrong =
        cudaIpcOpenMemHandle(&block, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess;
    wrong += cudaMemcpy(host.data(), block, host.size(), cudaMemcpyDeviceToHost) != cudaSuccess;
    wrong += probe::count_other_bytes(host.data(), host.size(), order.value);
    return wrong + (cudaIpcCloseMemHandle(block) != cudaSuccess);
  });
}

std::vector<int> own_files;
std::clock_t used_before = 0;

// As a daemon does, which then opens files of its own. What the driver has open stays: no CUDA
// program can do without.
void close_files(int channel) {
  int top = 0;
  for (int file = 3; file < 256; ++file) {
    struct stat status {};
    if (file == channel || fstat(file, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    close(file);
    top = file;
  }
  for (int file = 0; file < top;) {
    file = ::open("/dev/null", O_RDWR);
    if (file < 0) break;
    const int own = static_cast<int>(
        syscall(SYS_memfd_create, "own", 0));  // one file for each, as a program has them
    dup2(own, file);
    close(own);
    own_files.push_back(file);
  }
  used_before = std::clock();
}

uint64_t broken_files() {
  uint64_t broken = 0;
  for (const int file : own_files) {
    struct stat status {};
    broken += fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || write(file, "x", 1) != 1;
  }
  return broken;
}

Answer check_files() {
  Answer answer;
  const std::clock_t used = std::clock() - used_before;
  answer.code = used > CLOCKS_PER_SEC / 5;
  answer.number = broken_files();
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(broken_files()));
  int status = 0;
  waitpid(child, &status, 0);
  answer.number += WIFEXITED(status) ? static_cast<uint64_t>(WEXITSTATUS(status)) : 1;
  return answer;
}

// The child has all that this process has open, and does nothing.
uint64_t fork_child(int channel) {
  const pid_t child = fork();
  if (child == 0) {
    close(channel);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    sleep(20);
    _exit(0);
  }
  return static_cast<uint64_t>(child);
}

Answer obey(const Order& order, int channel) {
  Answer answer;
  switch (order.verb) {
    case Verb::allocate:
      return allocate(order);
    case Verb::release:
      answer.code = cudaFree(slots[order.slot]);
      return answer;
    case Verb::fill:
      return fill(order, true);
    case Verb::fill_async:
      return fill(order, false);
    case Verb::check:
      return check(order);
    case Verb::get_handle:
      return get_handle(order);
    case Verb::open:
      return open(order);
    case Verb::close:
      answer.code = cudaIpcCloseMemHandle(slots[order.slot]);
      return answer;
    case Verb::attributes:
      answer.number = describe(order, &answer.code);
      return answer;
    case Verb::free_bytes:
      return free_bytes();
    case Verb::capture:
      answer.code = begin_capture();
      return answer;
    case Verb::end_capture:
      return end_capture();
    case Verb::reset:
      answer.code = cudaDeviceReset();
      working = nullptr;
      capturing = nullptr;
      mismatches = nullptr;
      return answer;
    case Verb::set_device:
      answer.code = cudaSetDevice(order.value);
      return answer;
    case Verb::race_export:
      answer.number = race_exports();
      return answer;
    case Verb::race_open:
      answer.number = race_opens(order);
      return answer;
    case Verb::become:
      answer.code = setuid(static_cast<uid_t>(order.bytes));
      return answer;
    case Verb::close_files:
      close_files(channel);
      return answer;
    case Verb::check_files:
      return check_files();
    case Verb::fork_child:
      answer.number = fork_child(channel);
      return answer;
    case Verb::quit:
      break;
  }
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  const int channel = static_cast<int>(probe::number(argc, argv, "channel", -1));
  MUST(driver_code(cuInit(0)));
  MUST(cudaSetDevice(0));
  Order order;
  while (read(channel, &order, sizeof order) == static_cast<ssize_t>(sizeof order)) {
    const Answer answer = obey(order, channel);
    cudaGetLastError();
    if (order.verb == Verb::quit) {
      // Opening alone is no allocation, and without one there is no report to look into.
      void* block = nullptr;
      cudaMalloc(&block, 512);
      cudaFree(block);
    }
    if (write(channel, &answer, sizeof answer) != static_cast<ssize_t>(sizeof answer)) return 1;
    if (order.verb == Verb::quit) return 0;
  }
  return 1;  // the conductor is gone
}
