// SPDX-License-Identifier: Apache-2.0
// The program's own stream-ordered memory, served from caches (contract 12, CUPOOL_ASYNC=serve).
// The output is the driver's, too; the simulated device's judge sees memory that is handed out too
// early.
// mode= pairs (in one stream, and on n= threads with a stream each, or own=1 their per-thread one),
// others (freed in one stream, wanted in another), implicit (the legacy stream orders two others),
// order (of other memory: what an allocation and a free in stream= legacy or a blocking one order),
// again (a stream's handle comes again), errors,
// reads (bytes in use, and trims), queries, capture, pool (another current pool), same_pool (the
// current one set again), context (its end and a reset), end (of a context, while how= another
// thread captures, no event can be had, or after a sticky error), info (free memory, idle in
// another context), oom (every allocator gets what is idle), free (by cuMemFree, and in other
// streams), managed (there is managed memory), decay (threshold=1: the program has set the pool's
// threshold), sizes.
#include <cuda.h>
#include <cupool_sim.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "probe.h"

extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

constexpr size_t kMiB = 1 << 20;

CUcontext context = nullptr;
CUmemoryPool pool = nullptr;
std::atomic<unsigned long long> last_owner{0};

CUstream make_stream() {
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

void use(CUdeviceptr block, size_t bytes, CUstream stream) {
  MUST(cuMemsetD8Async(block, 1, bytes < 4096 ? bytes : 4096, stream));
}

CUdeviceptr allocate(size_t bytes, CUstream stream) {
  CUdeviceptr block = 0;
  MUST(cuMemAllocAsync(&block, bytes, stream));
  cupoolSimOwner(pointer(block), bytes, ++last_owner);
  use(block, bytes, stream);
  return block;
}

void release(CUdeviceptr block, size_t bytes, CUstream stream) {
  cupoolSimOwner(pointer(block), bytes, 0);
  MUST(cuMemFreeAsync(block, stream));
}

uint64_t used() {
  cuuint64_t bytes = 0;
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
  return bytes;
}

uint64_t reserved() {
  cuuint64_t bytes = 0;
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

size_t free_bytes() {
  size_t available = 0;
  size_t total = 0;
  MUST(cuMemGetInfo(&available, &total));
  return available;
}

// Blocks idle in two streams.
void leave_idle(size_t bytes) {
  const CUstream streams[] = {make_stream(), make_stream()};
  const CUdeviceptr blocks[] = {allocate(bytes, streams[0]), allocate(bytes, streams[1])};
  for (int i : {0, 1}) release(blocks[i], bytes, streams[i]);
}

void pairs(long threads, bool per_thread) {
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([per_thread] {
      MUST(cuCtxSetCurrent(context));
      const CUstream stream = per_thread ? CU_STREAM_PER_THREAD : make_stream();
      for (size_t round = 0; round < 100; ++round) {
        const size_t bytes = 512 << (round % 8);
        const CUdeviceptr a = allocate(bytes, stream);
        const CUdeviceptr b = allocate(bytes, stream);
        CHECK(a != b);
        release(a, bytes, stream);
        release(b, bytes, stream);
      }
    });
  }
  for (std::thread& each : all) each.join();
  probe::say("pairs", threads * 200);
}

void others() {
  const CUstream one = make_stream();
  const CUstream other = make_stream();
  const CUdeviceptr first = allocate(kMiB, one);
  release(first, kMiB, one);
  const CUdeviceptr second = allocate(kMiB, other);
  release(second, kMiB, other);
  MUST(cuCtxSynchronize());
  // Any stream may have what a wait has covered.
  const CUstream third = make_stream();
  const CUdeviceptr blocks[] = {allocate(kMiB, third), allocate(kMiB, third)};
  CHECK(blocks[0] != blocks[1]);
  for (const CUdeviceptr block : blocks) release(block, kMiB, third);
  // Allocated in one stream, ordered behind it and freed in another.
  const CUdeviceptr handed = allocate(kMiB, one);
  CUevent event = nullptr;
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  MUST(cuEventRecord(event, one));
  MUST(cuStreamWaitEvent(other, event, 0));
  release(handed, kMiB, other);
  release(allocate(kMiB, other), kMiB, other);
  release(allocate(kMiB, one), kMiB, one);
  probe::say("others", 1);
}

// A free in the legacy stream comes behind one blocking stream, the next allocation before another.
void implicit() {
  CUstream streams[2] = {};
  for (CUstream& stream : streams) MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  for (int i = 0; i < 16; ++i) {
    CUdeviceptr block = 0;
    MUST(cuMemAllocAsync(&block, kMiB, nullptr));
    cupoolSimOwner(pointer(block), kMiB, ++last_owner);
    use(block, kMiB, streams[i % 2]);
    release(block, kMiB, nullptr);
  }
  MUST(cuCtxSynchronize());
  for (CUstream stream : streams) MUST(cuStreamDestroy(stream));
  probe::say("implicit", 16);
}

// Other memory is ordered by nothing but an allocation or a free of stream-ordered memory: the ones
// in the legacy stream come behind one blocking stream and before another, and those in a blocking
// stream behind the legacy one, and before what waits for the blocking stream.
void order(const std::string& kind) {
  const CUstream unordered = make_stream();
  CUstream streams[2] = {};
  for (CUstream& stream : streams) MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  if (kind == "per-thread") streams[0] = CU_STREAM_PER_THREAD;
  CUdeviceptr other = 0;
  MUST(cuMemAlloc(&other, kMiB));
  const auto own = [&] { cupoolSimOwner(pointer(other), kMiB, ++last_owner); };
  const auto check = [&](const auto& call) {
    MUST(cuCtxSynchronize());
    own();
    if (kind == "legacy") {
      use(other, kMiB, streams[0]);
      call(CU_STREAM_LEGACY);
      own();
      use(other, kMiB, streams[1]);
    } else {
      use(other, kMiB, CU_STREAM_LEGACY);
      call(streams[0]);
      MUST(cuStreamSynchronize(streams[0]));
      cupoolSimHostAccess(pointer(other), kMiB, 0);
    }
  };
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr block = allocate(kMiB, unordered);
    release(allocate(kMiB, unordered), kMiB, unordered);
    cupoolSimOwner(pointer(block), kMiB, 0);
    check([&](CUstream stream) { MUST(cuMemFreeAsync(block, stream)); });
    check([&](CUstream stream) { MUST(cuMemAllocAsync(&block, kMiB, stream)); });
    MUST(cuCtxSynchronize());
    MUST(cuMemFreeAsync(block, unordered));
  }
  MUST(cuMemFree(other));
  probe::say("order", 3);
}

// Work of the destroyed stream is pending when its handle comes again.
void again() {
  for (int round = 0; round < 50; ++round) {
    const CUstream first = make_stream();
    release(allocate(kMiB, first), kMiB, first);
    MUST(cuStreamDestroy(first));
    const CUstream second = make_stream();
    release(allocate(kMiB, second), kMiB, second);
    MUST(cuStreamDestroy(second));
  }
  probe::say("again", 50);
}

void errors() {
  const CUstream stream = make_stream();
  const CUdeviceptr block = allocate(1000, stream);
  CUdeviceptr none = 7;
  probe::say("interior", cuMemFreeAsync(block + 512, stream));
  release(block, 1000, stream);
  probe::say("twice", cuMemFreeAsync(block, stream));
  probe::say("twice, waiting", cuMemFree(block));
  probe::say("null", cuMemFreeAsync(0, stream));
  probe::say("nothing", cuMemAllocAsync(&none, 0, stream));
  probe::say("no address", static_cast<long>(none));
  probe::say("no pointer", cuMemAllocAsync(nullptr, 1000, stream));
  probe::say("too much", cuMemAllocAsync(&none, size_t{1} << 45, stream));
}

void reads() {
  const CUstream stream = make_stream();
  const CUdeviceptr block = allocate(9 * 512, stream);
  probe::say("used", static_cast<long>(used()));
  release(block, 9 * 512, stream);
  const CUdeviceptr large = allocate(33 * kMiB, stream);
  MUST(cuStreamSynchronize(stream));
  probe::say("used", static_cast<long>(used()));
  release(large, 33 * kMiB, stream);
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
  MUST(cuMemPoolTrimTo(pool, 0));
  probe::say("reserved", static_cast<long>(reserved()));
}

void queries() {
  const CUstream stream = make_stream();
  for (const size_t bytes : {size_t{4700}, size_t{4650}}) {
    const CUdeviceptr block = allocate(bytes, stream);
    CUdeviceptr base = 0;
    size_t size = 0;
    MUST(cuMemGetAddressRange(&base, &size, block + 100));
    CHECK(base == block);
    probe::say("range", static_cast<long>(size));
    CUcontext owner = context;
    probe::say("context", cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    probe::say("none", owner == nullptr);
    CUmemoryPool of = nullptr;
    MUST(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    probe::say("pool", of == pool);
    release(block, bytes, stream);
    MUST(cuStreamSynchronize(stream));
    unsigned type = 0;
    probe::say("freed", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
  }
}

void capture() {
  const CUstream stream = make_stream();
  const CUstream captured = make_stream();
  const CUdeviceptr outside = allocate(kMiB, stream);
  release(allocate(kMiB, captured), kMiB, captured);
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    CUgraph graph = nullptr;
    CUdeviceptr inside = 0;
    MUST(cuStreamBeginCapture(captured, mode));
    MUST(cuMemAllocAsync(&inside, kMiB, captured));
    probe::say("free of other memory", cuMemFreeAsync(outside, captured));
    MUST(cuMemFreeAsync(inside, captured));
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
      release(allocate(kMiB, stream), kMiB, stream);
    }
    probe::say("capture", cuStreamEndCapture(captured, &graph));
    if (graph != nullptr) MUST(cuGraphDestroy(graph));
  }
  release(outside, kMiB, stream);
  release(allocate(kMiB, stream), kMiB, stream);
}

void other_pool() {
  const CUstream stream = make_stream();
  const CUdeviceptr live = allocate(kMiB, stream);
  leave_idle(kMiB);
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool own = nullptr;
  MUST(cuMemPoolCreate(&own, &properties));
  MUST(cuDeviceSetMemPool(0, own));
  const CUdeviceptr block = allocate(kMiB, stream);
  CUmemoryPool of = nullptr;
  MUST(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  probe::say("of the pool", of == own);
  release(block, kMiB, stream);
  release(live, kMiB, stream);
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
}

void same_pool() {
  const CUstream stream = make_stream();
  MUST(cuDeviceSetMemPool(0, pool));
  for (int i = 0; i < 10; ++i) release(allocate(kMiB, stream), kMiB, stream);
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
}

void contexts() {
  CUcontext other = nullptr;
  const CUstream stream = make_stream();
  const CUdeviceptr before = allocate(kMiB, stream);
  MUST(cuCtxCreate_v2(&other, 0, 0));
  leave_idle(3 * kMiB);
  MUST(cuCtxDestroy(other));
  MUST(cuCtxSetCurrent(context));
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
  release(before, kMiB, stream);
  leave_idle(3 * kMiB);
  MUST(cuCtxSynchronize());
  MUST(cuDevicePrimaryCtxReset(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  probe::say("after a reset", static_cast<long>(used()));
  leave_idle(kMiB);
}

void capture_beside(const std::function<void()>& body) {
  std::thread([&] {
    CUgraph graph = nullptr;
    MUST(cuCtxSetCurrent(context));
    const CUstream captured = make_stream();
    MUST(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    std::thread(body).join();
    MUST(cuStreamEndCapture(captured, &graph));
    MUST(cuGraphDestroy(graph));
  }).join();
}

// The pool outlives the context, whose idle memory cannot go back before it ends.
void ends(const std::string& how) {
  for (int round = 0; round < 3; ++round) {
    CUcontext other = nullptr;
    MUST(cuCtxCreate_v2(&other, 0, 0));
    leave_idle(3 * kMiB);
    MUST(cuCtxSynchronize());
    if (how == "sticky") {
      CUmodule module = nullptr;
      CUfunction trap = nullptr;
      MUST(cuModuleLoadData(&module, "any"));
      MUST(cuModuleGetFunction(&trap, module, "trap"));
      probe::say("trap", cuLaunchKernel(trap, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
      probe::say("error", cuCtxSynchronize());
    }
    if (how == "events") cupoolSimFail("cuEventCreate:*=2");
    if (how == "capture") {
      capture_beside([other] { MUST(cuCtxDestroy(other)); });
    } else {
      MUST(cuCtxDestroy(other));
    }
    cupoolSimFail("");
    MUST(cuCtxSetCurrent(context));
    probe::say("used", static_cast<long>(used()));
  }
  MUST(cuCtxSynchronize());
  MUST(cuMemPoolTrimTo(pool, 0));
  probe::say("reserved", static_cast<long>(reserved()));
  // A reset ends the context, too.
  leave_idle(3 * kMiB);
  MUST(cuCtxSynchronize());
  if (how == "events") cupoolSimFail("cuEventCreate:*=2");
  MUST(cuDevicePrimaryCtxReset(0));
  cupoolSimFail("");
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  probe::say("after a reset", static_cast<long>(used()));
}

// What is idle in the other context counts as free.
void info() {
  CUcontext other = nullptr;
  MUST(cuCtxCreate_v2(&other, 0, 0));
  const size_t before = free_bytes();
  leave_idle(64 * kMiB);
  MUST(cuCtxSynchronize());
  MUST(cuCtxSetCurrent(context));
  probe::say("free", free_bytes() == before);
  MUST(cuCtxDestroy(other));
  MUST(cuCtxSetCurrent(context));
}

// The device has 256 MiB.
void oom() {
  constexpr size_t kMuch = 96 * kMiB;
  leave_idle(kMuch / 2);
  MUST(cuCtxSynchronize());
  CUdeviceptr most = 0;
  probe::say("malloc", cuMemAlloc(&most, 2 * kMuch));
  MUST(cuMemFree(most));
  leave_idle(kMuch / 2);
  MUST(cuCtxSynchronize());
  probe::say("other stream", cuMemAllocAsync(&most, 2 * kMuch, make_stream()));
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(most));
  leave_idle(kMuch / 2);
  MUST(cuCtxSynchronize());
  probe::say("counted", free_bytes() >= 2 * kMuch);
}

void frees() {
  const CUstream stream = make_stream();
  for (int round = 0; round < 3; ++round) {
    const CUdeviceptr block = allocate(kMiB, stream);
    MUST(cuStreamSynchronize(stream));
    cupoolSimOwner(pointer(block), kMiB, 0);
    MUST(cuMemFree(block));
  }
  CUcontext other = nullptr;
  const CUdeviceptr block = allocate(kMiB, stream);
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxCreate_v2(&other, 0, 0));
  cupoolSimOwner(pointer(block), kMiB, 0);
  MUST(cuMemFreeAsync(block, CU_STREAM_LEGACY));
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
}

void managed() {
  leave_idle(40 * kMiB);
  CUdeviceptr shared = 0;
  MUST(cuMemAllocManaged(&shared, kMiB, CU_MEM_ATTACH_GLOBAL));
  leave_idle(kMiB);
  MUST(cuCtxSynchronize());
  probe::say("used", static_cast<long>(used()));
}

void decay() {
  leave_idle(20 * kMiB);
  MUST(cuCtxSynchronize());
  for (int i = 0; i < 500 && reserved() != 0; ++i) usleep(10'000);
  probe::say("gone", reserved() == 0);
}

void sizes() {
  const CUstream stream = make_stream();
  std::vector<std::pair<CUdeviceptr, size_t>> live;
  uint64_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t bytes = 1 + (random >> 33) % (size_t{1} << (4 + (random >> 20) % 18));
    if (live.size() > 20 || (random >> 50) % 3 == 0) {
      if (live.empty()) continue;
      const auto [block, size] = live[(random >> 40) % live.size()];
      live.erase(live.begin() + static_cast<long>((random >> 40) % live.size()));
      release(block, size, stream);
      continue;
    }
    const CUdeviceptr block = allocate(bytes, stream);
    CHECK(block % 512 == 0);
    for (const auto& [other, size] : live) CHECK(block + bytes <= other || other + size <= block);
    live.emplace_back(block, bytes);
  }
  uint64_t sum = 0;
  for (const auto& [block, size] : live) sum += (size + 511) / 512 * 512;
  probe::say("all of it is used", used() == sum);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = probe::argument(argc, argv, "mode", "pairs");
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  cuuint64_t none = 0;
  if (probe::argument_is(argc, argv, "threshold", "1"))
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
  // The engine starts with the first allocation, which is the driver's.
  release(allocate(256, CU_STREAM_LEGACY), 256, CU_STREAM_LEGACY);
  MUST(cuCtxSynchronize());
  const bool own = probe::argument_is(argc, argv, "own", "1");
  const std::pair<const char*, std::function<void()>> modes[] = {
      {"pairs", [&] { pairs(probe::number(argc, argv, "n", 1), own); }},
      {"others", others},
      {"implicit", implicit},
      {"order", [&] { order(probe::argument(argc, argv, "stream", "legacy")); }},
      {"again", again},
      {"errors", errors},
      {"reads", reads},
      {"queries", queries},
      {"capture", capture},
      {"pool", other_pool},
      {"same_pool", same_pool},
      {"context", contexts},
      {"end", [&] { ends(probe::argument(argc, argv, "how", "capture")); }},
      {"info", info},
      {"oom", oom},
      {"free", frees},
      {"managed", managed},
      {"decay", decay},
      {"sizes", sizes},
  };
  for (const auto& [name, body] : modes)
    if (mode == name) body();
  MUST(cuCtxSynchronize());
  probe::say("complaints", static_cast<long>(cupoolSimComplaints()));
  return 0;
}
