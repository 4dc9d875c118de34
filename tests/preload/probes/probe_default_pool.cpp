// SPDX-License-Identifier: Apache-2.0
// The program's own stream-ordered memory and the device's default pool (contract 4, 5 and 12).
// mode= reads (what the program reads of the pool), oom (every allocator gets what lies idle
// there), pending (what lies behind a kernel that does not end is refused at once), info (idle
// memory counts as free), stays (until decay), peaks (what is needed again and again stays), owned
// (the program sets or trims the pool: how= threshold, zero, trim; or first=1: before its first
// allocation), managed, fragments (blocks in use lie between what is idle), reset (no context is
// left), aside (cupool steps aside), other (pools of the program's own), beyond (more than the
// device has), capture, captures, threads (allocations beside calls that set and trim
// the pool). threads=0: no thread can be created.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"
#include "probe_memory.h"

namespace {

using probe::free_memory;
using Clock = std::chrono::steady_clock;
constexpr useconds_t kSpans = 1'200'000;  // longer than decay takes where the tests set it
constexpr size_t kMiB = 1 << 20;
constexpr size_t kMuch = 96 * kMiB;

cudaStream_t stream = nullptr;
cudaMemPool_t default_pool = nullptr;

uint64_t read(cudaMemPoolAttr attribute, cudaMemPool_t pool = default_pool) {
  uint64_t value = 1;
  MUST(cudaMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

void write(cudaMemPoolAttr attribute, uint64_t value) {
  MUST(cudaMemPoolSetAttribute(default_pool, attribute, &value));
}

uint64_t reserved() {
  return read(cudaMemPoolAttrReservedMemCurrent);
}

void* allocate(size_t bytes) {
  void* block = nullptr;
  MUST(cudaMallocAsync(&block, bytes, stream));
  MUST(cudaMemsetAsync(block, 1, bytes < 4096 ? bytes : 4096, stream));
  return block;
}

void synchronize() {
  MUST(cudaStreamSynchronize(stream));
}

void leave_idle(size_t bytes = kMuch) {
  void* const block = allocate(bytes);
  synchronize();
  MUST(cudaFreeAsync(block, stream));
  synchronize();
}

template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (Clock::now() > end) return false;
    usleep(5'000);
  }
  return true;
}

void say_mark(const char* when) {
  std::printf("%s: threshold %llu, %llu bytes in use, %llu at most\n", when,
              static_cast<unsigned long long>(read(cudaMemPoolAttrReleaseThreshold)),
              static_cast<unsigned long long>(read(cudaMemPoolAttrUsedMemCurrent)),
              static_cast<unsigned long long>(read(cudaMemPoolAttrUsedMemHigh)));
}

// Between the steps decay looks at the pool several times.
void reads() {
  const auto pause = [] { usleep(150'000); };
  say_mark("before");
  void* const kept = allocate(3 * kMiB);
  leave_idle();
  say_mark("after");
  pause();
  say_mark("later");
  leave_idle(5 * kMiB);
  say_mark("after less");
  write(cudaMemPoolAttrUsedMemHigh, 0);
  say_mark("reset");
  leave_idle(7 * kMiB);
  pause();
  say_mark("after the reset");
  uint64_t value = 1;
  std::printf("high to 1: %d\n", static_cast<int>(cudaMemPoolSetAttribute(
                                     default_pool, cudaMemPoolAttrUsedMemHigh, &value)));
  std::printf("null: %d\n",
              static_cast<int>(cuMemPoolGetAttribute(reinterpret_cast<CUmemoryPool>(default_pool),
                                                     CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr)));
  std::printf("null pool: %d\n", static_cast<int>(cuMemPoolGetAttribute(
                                     nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value)));
  write(cudaMemPoolAttrReleaseThreshold, 64 * kMiB);
  say_mark("set");
  write(cudaMemPoolAttrReleaseThreshold, 0);
  MUST(cudaFreeAsync(kept, stream));
  synchronize();
  say_mark("end");
}

CUarray array_of(size_t bytes, int* code) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 1 << 16;
  shape.Height = bytes / shape.Width;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  *code = cuArrayCreate(&array, &shape);
  return array;
}

cudaMemPool_t own_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  cudaMemPool_t pool = nullptr;
  MUST(cudaMemPoolCreate(&pool, &properties));
  return pool;
}

// Each takes three quarters of the device, most of which lies idle in the default pool.
void others() {
  const size_t most = free_memory() / 4 * 3 / kMiB * kMiB;
  const auto leave_all = [&] { leave_idle(most); };
  void* block = nullptr;
  int code = 0;
  leave_all();
  probe::say("malloc", code = cudaMalloc(&block, most));
  if (code == 0) MUST(cudaFree(block));
  leave_all();
  const CUarray array = array_of(most, &code);
  probe::say("array", code);
  if (code == 0) MUST(cuArrayDestroy(array));
  leave_all();
  cudaMemPool_t const pool = own_pool();
  probe::say("another pool", code = cudaMallocFromPoolAsync(&block, most, pool, stream));
  if (code == 0) MUST(cudaFreeAsync(block, stream));
  synchronize();
  MUST(cudaMemPoolDestroy(pool));
  // In pieces, so that the pool has to grow between what it holds.
  std::vector<void*> pieces;
  for (size_t at = 0; at < most; at += 8 * kMiB) {
    pieces.push_back(allocate(6 * kMiB));
    MUST(cudaFreeAsync(allocate(2 * kMiB), stream));
  }
  for (void* piece : pieces) MUST(cudaFreeAsync(piece, stream));
  synchronize();
  probe::say("in one piece", code = cudaMallocAsync(&block, most, stream));
  if (code == 0) MUST(cudaFreeAsync(block, stream));
  synchronize();
  probe::say("last error", cudaGetLastError());
}

// With idle memory, which is no cure.
void beyond() {
  void* block = nullptr;
  MUST(cudaMalloc(&block, 16 * kMiB));
  MUST(cudaFree(block));
  MUST(cudaDeviceSynchronize());
  probe::say("beyond the device", cudaMallocAsync(&block, size_t{1} << 50, stream));
  cudaGetLastError();
}

void info() {
  const size_t before = free_memory();
  leave_idle();
  probe::say("all of it is free", free_memory() == before);
  void* const kept = allocate(3 * kMiB);
  synchronize();
  const size_t beside = free_memory();
  leave_idle();
  probe::say("as much is free", free_memory() == beside);
  MUST(cudaFreeAsync(kept, stream));
  synchronize();
  probe::say("all of it is free", free_memory() == before);
}

// A small block in use in each step: a trim gives nothing back, and the program cannot have it.
std::vector<void*> leave_fragments(int steps) {
  std::vector<void*> large;
  std::vector<void*> small;
  for (int i = 0; i < steps; ++i) {
    small.push_back(allocate(kMiB));
    large.push_back(allocate(31 * kMiB));
  }
  for (void* block : large) MUST(cudaFreeAsync(block, stream));
  synchronize();
  return small;
}

void release_fragments(const std::vector<void*>& small) {
  for (void* block : small) MUST(cudaFreeAsync(block, stream));
  synchronize();
}

void fragments() {
  const size_t before = free_memory();
  const std::vector<void*> small = leave_fragments(6);
  const size_t beside = free_memory();
  probe::say("MiB taken", static_cast<long>((before - beside) / kMiB));
  leave_idle();
  probe::say("as much is free", free_memory() == beside);
  MUST(cudaFreeAsync(small.back(), stream));
  synchronize();
  probe::say("MiB more are free", static_cast<long>((free_memory() - beside) / kMiB));
  release_fragments({small.begin(), small.end() - 1});
  probe::say("all of it is free", free_memory() == before);
}

// The pool is asked without a context.
void reset() {
  leave_idle();
  MUST(cudaDeviceReset());
  uint64_t bytes = 1;
  MUST(cuMemPoolGetAttribute(reinterpret_cast<CUmemoryPool>(default_pool),
                             CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  probe::say("gone", bytes == 0);
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  leave_idle();
  probe::say("stays", reserved() >= kMuch);
}

// A trim takes only what a wait for a stream or the context has covered: what lies behind work is
// refused, and nobody waits for that work.
void pending() {
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  MUST(cuModuleLoadData(&module, ""));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  void* block = allocate(size_t{300} * kMiB);
  synchronize();
  uint64_t ns = 25'000'000'000;
  void* arguments[] = {&ns};
  MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  MUST(cudaFreeAsync(block, stream));
  const auto begin = Clock::now();
  probe::say("malloc", cudaMalloc(&block, size_t{300} * kMiB));
  probe::say("at once", Clock::now() - begin < std::chrono::seconds(2));
  std::printf("done\n");
  std::fflush(stdout);
  std::_Exit(0);  // not behind the kernel
}

void stays() {
  leave_idle();
  probe::say("stays", reserved() >= kMuch);
  synchronize();
  probe::say("stays", reserved() >= kMuch);
  probe::say("goes", comes_true([] { return reserved() == 0; }));
}

// Nothing is in use at most times; what the peaks need has to be there all the same. Something that
// was needed once goes.
void peaks() {
  leave_idle(4 * kMuch);
  bool stayed = true;
  const auto begin = Clock::now();
  const auto lasts = [&](int milliseconds) {
    return Clock::now() < begin + std::chrono::milliseconds(milliseconds);
  };
  // On a busy machine decay comes late.
  while (lasts(1500) || (reserved() >= 2 * kMuch && lasts(10'000))) {
    leave_idle();
    usleep(20'000);
    stayed = stayed && reserved() >= kMuch;
  }
  probe::say("what is needed stays", stayed);
  probe::say("the rest has gone", reserved() < 2 * kMuch);
}

void owned(const std::string& how, bool first) {
  if (!first) leave_idle();
  if (how == "threshold") write(cudaMemPoolAttrReleaseThreshold, 1 << 30);
  if (how == "zero") write(cudaMemPoolAttrReleaseThreshold, 0);
  if (how == "trim") MUST(cudaMemPoolTrimTo(default_pool, 0));
  probe::say("gone", reserved() == 0);
  leave_idle();
  usleep(kSpans);
  probe::say("stays", reserved() >= kMuch);
  probe::say("threshold", static_cast<long>(read(cudaMemPoolAttrReleaseThreshold)));
}

void managed() {
  leave_idle();
  void* block = nullptr;
  MUST(cudaMallocManaged(&block, kMiB, cudaMemAttachGlobal));
  probe::say("gone", reserved() == 0);
  leave_idle();
  probe::say("gone", reserved() == 0);
  MUST(cudaFree(block));
}

// From the first green context on the driver is left alone.
void aside() {
  CUgreenCtx green = nullptr;
  leave_idle();
  cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM);
  probe::say("gone", reserved() == 0);
  leave_idle();
  probe::say("gone", reserved() == 0);
}

// Allocations from pools of its own do not concern the default one, nor does cupool these.
void other() {
  cudaMemPool_t const pool = own_pool();
  MUST(cudaDeviceSetMemPool(0, pool));
  leave_idle();
  probe::say("own pool", static_cast<long>(read(cudaMemPoolAttrReservedMemCurrent, pool)));
  uint64_t threshold = 2 * kMuch;
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  leave_idle();
  usleep(kSpans);
  probe::say("own pool keeps", read(cudaMemPoolAttrReservedMemCurrent, pool) >= kMuch);
  probe::say("threshold", read(cudaMemPoolAttrReleaseThreshold, pool) == threshold);
  void* block = nullptr;
  MUST(cudaMallocFromPoolAsync(&block, kMuch, default_pool, stream));
  MUST(cudaFreeAsync(block, stream));
  synchronize();
  probe::say("default pool keeps", reserved() >= kMuch);
  MUST(cudaDeviceSetMemPool(0, default_pool));
  MUST(cudaMemPoolDestroy(pool));
}

void capture() {
  cudaGraph_t graph = nullptr;
  cudaStream_t captured = nullptr;
  void* block = nullptr;
  MUST(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  MUST(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal));
  std::thread([&] { leave_idle(); }).join();
  MUST(cudaMallocAsync(&block, kMiB, captured));
  MUST(cudaFreeAsync(block, captured));
  probe::say("capture", cudaStreamEndCapture(captured, &graph));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaStreamDestroy(captured));
  probe::say("gone", reserved() == 0);
  leave_idle();
  probe::say("stays", reserved() >= kMuch);
}

// While decay looks at the pool all the time; and memory runs out in one of them.
void captures() {
  cudaGraph_t graph = nullptr;
  void* const block = allocate(kMiB);
  synchronize();
  int failed = 0;
  for (int i = 0; i < 400; ++i) {
    if (i % 8 == 0) leave_idle();
    const bool good = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess &&
                      cudaMemsetAsync(block, 2, 4096, stream) == cudaSuccess && usleep(100) == 0 &&
                      cudaStreamEndCapture(stream, &graph) == cudaSuccess;
    failed += !good;
    if (good) MUST(cudaGraphDestroy(graph));
  }
  probe::say("failed", failed);
  const size_t most = free_memory() / 4 * 3 / kMiB * kMiB;
  leave_idle(most);
  void* large = nullptr;
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  probe::say("malloc", cudaMalloc(&large, most));
  probe::say("capture", cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaFree(large));
  MUST(cudaFreeAsync(block, stream));
  synchronize();
}

void threads() {
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) {
    all.emplace_back([i] {
      cudaStream_t own = nullptr;
      MUST(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
      for (int round = 0; round < 200; ++round) {
        void* block = nullptr;
        MUST(cudaMallocAsync(&block, kMiB << (round + i) % 5, own));
        MUST(cudaFreeAsync(block, own));
        if (round % 8 == 0) MUST(cudaStreamSynchronize(own));
        CHECK(read(cudaMemPoolAttrReleaseThreshold) <= 1);
        free_memory();
      }
      MUST(cudaStreamDestroy(own));
    });
  }
  usleep(20'000);
  write(cudaMemPoolAttrUsedMemHigh, 0);
  write(cudaMemPoolAttrReleaseThreshold, 1);
  CHECK(read(cudaMemPoolAttrReleaseThreshold) == 1);
  MUST(cudaMemPoolTrimTo(default_pool, 0));
  for (std::thread& thread : all) thread.join();
  MUST(cudaDeviceSynchronize());
  CHECK(read(cudaMemPoolAttrReleaseThreshold) == 1);
}

std::atomic<bool> refuses_threads{false};

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  static auto* const real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return refuses_threads ? EAGAIN : real(thread, attributes, run, argument);
}

int main(int argc, char** argv) {
  refuses_threads = probe::number(argc, argv, "threads", 1) == 0;
  const std::string mode = probe::argument(argc, argv, "mode", "reads");
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  if (mode == "reads") reads();
  if (mode == "oom") others();
  if (mode == "pending") pending();
  if (mode == "info") info();
  if (mode == "fragments") fragments();
  if (mode == "reset") reset();
  if (mode == "stays") stays();
  if (mode == "peaks") peaks();
  if (mode == "owned")
    owned(probe::argument(argc, argv, "how", "trim"), probe::number(argc, argv, "first", 0) != 0);
  if (mode == "managed") managed();
  if (mode == "aside") aside();
  if (mode == "other") other();
  if (mode == "beyond") beyond();
  if (mode == "capture") capture();
  if (mode == "captures") captures();
  if (mode == "threads") threads();
  MUST(cudaStreamDestroy(stream));
  std::printf("done\n");
  return 0;
}
