// SPDX-License-Identifier: Apache-2.0
// A program of MPI that does not wait for the GPU before it sends: work, cuMemFree of something
// else, MPI_Send of the results. The driver's own free waits for the context, so each round is
// right without cupool.
//
//   probe_mpi WAY        one of the ways below; "seen" are those whose calls cupool sees
//   probe_mpi hang       what is submitted after a free holds no message up
//   probe_mpi names      what it finds by names
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "owner.h"
#include "probe.h"
#include "thunk.h"

extern "C" {
int MPI_Wait(void*, void*);
void* look_up_within_mpi(void* handle, const char* name);
int MPI_Send(const void*, int, long, int, int, long, long);
int PMPI_Send(const void*, int, long, int, int, long, long);
int MPI_Barrier(long);
int send_unseen(const void*, int);
uint32_t last_word_seen();
int plugin_send(const void*, int);
// A function of that name of the program's own.
__attribute__((visibility("default"))) int MPI_Iprobe() {
  return 42;
}
}

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr uint64_t kWords = kBytes / 4;
constexpr int kRounds = 6;

std::string folder;  // of this program's libraries
CUcontext context = nullptr;
CUfunction stamp_function = nullptr;
CUdeviceptr results = 0;
std::atomic<long> mallocs{0};
std::atomic<long> frees{0};

CUdeviceptr allocate() {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, kBytes));
  ++mallocs;
  return block;
}

void release(CUdeviceptr block) {
  MUST(cuMemFree(block));
  ++frees;
}

CUstream stream() {
  CUstream created = nullptr;
  MUST(cuStreamCreate(&created, CU_STREAM_NON_BLOCKING));
  return created;
}

void produce(uint32_t value, CUstream to) {
  const CUdeviceptr temporary = allocate();
  uint64_t words = kWords;
  void* arguments[] = {&results, &words, &value};
  MUST(cuLaunchKernel(stamp_function, 64, 1, 1, 256, 1, 1, 0, to, arguments, nullptr));
  release(temporary);
}

const void* buffer() {
  return reinterpret_cast<const void*>(results);
}

using Send = int (*)(const void*, int, long, int, int, long, long);

void send(Send function = &MPI_Send) {
  MUST(function(buffer(), static_cast<int>(kWords), 3, 4, 5, 6, 77));
}

Send looked_up(void* handle) {
  auto* const found = reinterpret_cast<Send>(dlsym(handle, "MPI_Send"));
  CHECK(found != nullptr);
  return found;
}

void* open_library(const char* name) {
  void* const library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  return library;
}

// One round; true if what was sent is right.
bool round_of(const std::string& way, uint32_t value) {
  static CUstream const first = stream();
  static CUstream const second = stream();
  produce(value, value % 2 == 0 ? first : second);
  if (way == "send") {
    send();
  } else if (way == "profiled") {
    send(&PMPI_Send);
  } else if (way == "thread") {  // another thread goes on while the first one lives
    std::atomic<bool> done{false};
    std::thread thread([&] {
      MUST(cuCtxSetCurrent(context));
      produce(value, second);
      while (!done) std::this_thread::yield();
    });
    while (frees.load() < mallocs.load() - 1) std::this_thread::yield();
    send();
    done = true;
    thread.join();
  } else if (way == "no_context") {  // the sender has none
    std::thread thread([&] { send(); });
    thread.join();
  } else if (way == "several") {  // frees that the first message covers, and later ones
    for (uint32_t i = 1; i <= 100; ++i) produce(value + i % 2, first);
    send();
    if (last_word_seen() != value) return false;
    produce(value, first);
    send();
  } else if (way == "copies") {  // a free that waits for a copy, but not for all work
    std::vector<uint32_t> host(kWords);
    void* pinned = nullptr;
    MUST(cuMemHostAlloc(&pinned, kBytes, 0));
    MUST(cuMemcpyDtoHAsync(pinned, results, kBytes, second));
    produce(value, first);
    send();
    MUST(cuMemFreeHost(pinned));
  } else if (way == "found") {
    send(looked_up(RTLD_DEFAULT));
  } else if (way == "found_in_library") {
    static void* const library = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD);
    CHECK(library != nullptr);
    send(looked_up(library));
  } else if (way == "made_at_run_time") {
    static Send const thunk = probe::thunk(&MPI_Send);
    send(thunk);
  } else if (way == "awaited") {  // the message was begun before the free
    MUST(MPI_Wait(nullptr, nullptr));
    send();
  } else if (way == "mpi_looks_up") {
    static void* const library = open_library("libplugin_defines.so");
    CHECK(look_up_within_mpi(library, "MPI_Send") != nullptr);
    look_up_within_mpi(RTLD_NEXT, "MPI_Send");
    send();
  } else if (way == "found_elsewhere" || way == "found_next") {  // without a guard
    send();
    produce(value + 1, first);
    if (way == "found_next") {
      MUST(plugin_send(buffer(), static_cast<int>(kWords)));
      return last_word_seen() == value + 1;
    }
    static void* const library = open_library("libplugin_defines.so");
    CHECK(looked_up(library)(nullptr, 0, 0, 0, 0, 0, 0) == 42);
    MUST(send_unseen(buffer(), static_cast<int>(kWords)));
    return last_word_seen() == value + 1;
  } else if (way == "callback") {  // a message in a callback settles nothing for others
    CUstream const third = stream();
    std::atomic<bool> called{false};
    MUST(cuLaunchHostFunc(
        third,
        [](void* flag) {
          MPI_Barrier(0);
          *static_cast<std::atomic<bool>*>(flag) = true;
        },
        &called));
    produce(value, first);
    std::thread thread([&] {
      MUST(cuCtxSetCurrent(context));
      MUST(cuStreamSynchronize(third));
    });
    thread.join();
    CHECK(called);
    send();
    MUST(cuStreamDestroy(third));
  } else if (way == "unseen") {
    MUST(send_unseen(buffer(), static_cast<int>(kWords)));
  } else if (way == "user_of_ucx" || way == "ucxx") {  // loaded after messages were seen
    send();
    if (last_word_seen() != value) return false;
    static void* const library = open_library(way == "ucxx" ? "libucxx.so" : "librdma_user.so");
    CHECK(library != nullptr);
    std::vector<CUdeviceptr> blocks;  // fresh blocks, where it is noticed
    for (int i = 0; i < 40; ++i) blocks.push_back(allocate());
    for (const CUdeviceptr block : blocks) release(block);
    produce(value + 1, first);
    MUST(send_unseen(buffer(), static_cast<int>(kWords)));
    return last_word_seen() == value + 1;
  } else {
    std::fprintf(stderr, "unknown way %s\n", way.c_str());
    std::exit(2);
  }
  return last_word_seen() == value;
}

// What a program finds by name: MPI's, its own, or nothing.
void look_up() {
  static void* const mpi = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD);
  CHECK(mpi != nullptr);
  for (const char* name :
       {"MPI_Send", "PMPI_Send", "MPI_Test", "MPI_Iprobe", "MPI_No_such", "MPI", "P"}) {
    for (void* const handle : {static_cast<void*>(RTLD_DEFAULT), mpi}) {
      dlerror();
      const bool found = dlsym(handle, name) != nullptr;
      std::printf("%s in %s: %d, error %d\n", name, handle == mpi ? "mpi" : "all", found,
                  dlerror() != nullptr);
    }
  }
  auto* const own = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPI_Iprobe"));
  probe::say("own", own());
}

std::atomic<bool> sent{false};
void wait_until_sent(void*) {
  while (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Work that goes on until the message has been sent.
void submit_later_work() {
  alarm(10);
  CUstream const first = stream();
  produce(5, first);
  MUST(cuLaunchHostFunc(first, wait_until_sent, nullptr));
  send();
  sent = true;
  MUST(cuCtxSynchronize());
  probe::say("sent", static_cast<long>(last_word_seen()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "send";
  const std::string self = argv[0];
  folder = self.substr(0, self.rfind('/') + 1) + "mpi/";
  CUdevice device = 0;
  CUmodule module = nullptr;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, ""));
  MUST(cuModuleGetFunction(&stamp_function, module, "stamp_u32"));
  results = allocate();
  if (way != "unseen" && way != "found" && way != "found_in_library") MUST(MPI_Barrier(0));
  if (way == "names") {
    look_up();
  } else if (way == "hang") {
    submit_later_work();
  } else {
    int wrong = 0;
    for (uint32_t i = 1; i <= kRounds; ++i) wrong += round_of(way, 100 * i) ? 0 : 1;
    probe::say("wrong", wrong);
  }
  MUST(cuCtxSynchronize());
  release(results);
  probe::print_counts(mallocs, frees);
  return 0;
}
