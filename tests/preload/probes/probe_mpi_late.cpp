// SPDX-License-Identifier: Apache-2.0
// A program that is not linked to MPI, and opens a library that calls it.
//
//   probe_mpi_late opened     after memory has come from caches; opened and closed in rounds
//   probe_mpi_late later      then another thread sends, beside work that was submitted later
//   probe_mpi_late made_at_run_time   then code that is in no object sends
//   probe_mpi_late asks       asks for functions of MPI, which there is not
//   probe_mpi_late stand_in   libraries with functions of their own of those names; no GPU
//   probe_mpi_late weak       a function of MPI by a weak reference, without MPI
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "probe.h"
#include "thunk.h"

using CUdeviceptr = unsigned long long;  // the driver is opened, too
using Handle = void*;

extern "C" int MPI_Test(void*, int*, void*) __attribute__((weak));

namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kWords = kBytes / 4;

std::string folder;

template <typename Function>
Function find(void* library, const char* symbol) {
  auto* const found = reinterpret_cast<Function>(dlsym(library, symbol));
  CHECK(found != nullptr);
  return found;
}

void* open(const std::string& name) {
  void* const library = dlopen((folder + "lib" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(library != nullptr);
  return library;
}

using Send = int (*)(const void*, int);

int stand_in() {
  void* const library = open("plugin_defines");
  probe::say("answer", find<Send>(library, "plugin_send")(nullptr, 0));
  void* const group = open("plugin_group");
  probe::say("answer", find<Send>(group, "plugin_send")(nullptr, 0));
  return 0;
}

std::atomic<bool> sent{false};
void wait_until_sent(void*) {
  while (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "opened";
  const std::string self = argv[0];
  folder = self.substr(0, self.rfind('/') + 1) + "mpi/";
  if (way == "stand_in") return stand_in();
  if (way == "weak") {
    int (*volatile test)(void*, int*, void*) = &MPI_Test;
    if (test == nullptr) {
      std::printf("no MPI\n");
    } else {
      probe::say("error", test(nullptr, nullptr, nullptr));
      probe::say("error", test(nullptr, nullptr, nullptr));
    }
    return 0;
  }

  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(driver != nullptr);
  auto* const alloc = find<int (*)(CUdeviceptr*, size_t)>(driver, "cuMemAlloc_v2");
  auto* const free = find<int (*)(CUdeviceptr)>(driver, "cuMemFree_v2");
  auto* const fill =
      find<int (*)(CUdeviceptr, unsigned, size_t, Handle)>(driver, "cuMemsetD32Async");
  auto* const create = find<int (*)(Handle*, unsigned)>(driver, "cuStreamCreate");
  Handle context = nullptr;
  Handle stream = nullptr;
  MUST(find<int (*)(unsigned)>(driver, "cuInit")(0));
  MUST(find<int (*)(Handle*, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, 0));
  MUST(find<int (*)(Handle)>(driver, "cuCtxSetCurrent")(context));
  MUST(create(&stream, 1));
  CUdeviceptr results = 0;
  MUST(alloc(&results, kBytes));
  long mallocs = 1;
  const auto produce = [&](unsigned value) {
    CUdeviceptr temporary = 0;
    MUST(alloc(&temporary, kBytes));
    ++mallocs;
    MUST(fill(results, value, kWords, stream));
    MUST(free(temporary));
  };
  for (unsigned i = 0; i < 100; ++i) produce(i);
  if (way == "asks") {
    probe::say("found", dlsym(RTLD_NEXT, "MPI_Send") != nullptr);
    probe::say("found", dlsym(RTLD_DEFAULT, "MPI_Send") != nullptr);
    for (unsigned i = 0; i < 100; ++i) produce(i);
  }
  int wrong = 0;
  for (unsigned round = 1; way != "asks" && round <= 3; ++round) {
    void* const library = open("plugin_calls");
    produce(1000 * round);
    MUST(find<Send>(library, "plugin_send")(reinterpret_cast<const void*>(results), kWords));
    void* const mpi = dlopen((folder + "libmpi.so.40").c_str(), RTLD_NOW | RTLD_NOLOAD);
    CHECK(mpi != nullptr);
    wrong += find<uint32_t (*)()>(mpi, "last_word_seen")() == 1000 * round ? 0 : 1;
    dlclose(mpi);
    dlclose(library);
  }
  probe::say("wrong", wrong);
  if (way == "made_at_run_time") {
    using MpiSend = int(const void*, int, long, int, int, long, long);
    open("plugin_calls");
    void* const mpi = dlopen((folder + "libmpi.so.40").c_str(), RTLD_NOW | RTLD_NOLOAD);
    CHECK(mpi != nullptr);
    MpiSend* const send = probe::thunk(find<MpiSend*>(mpi, "MPI_Send"));
    for (unsigned value = 7000; value < 7003; ++value) {
      produce(value);
      MUST(send(reinterpret_cast<const void*>(results), kWords, 3, 4, 5, 6, 77));
      CHECK(find<uint32_t (*)()>(mpi, "last_word_seen")() == value);
    }
  }
  if (way == "later") {
    alarm(8);
    void* const library = open("plugin_calls");
    MUST(find<int (*)(Handle, void (*)(void*), void*)>(driver, "cuLaunchHostFunc")(
        stream, wait_until_sent, nullptr));
    std::thread([&] {
      MUST(find<Send>(library, "plugin_send")(reinterpret_cast<const void*>(results), kWords));
    }).join();
    sent = true;
  }
  MUST(find<int (*)()>(driver, "cuCtxSynchronize")());
  MUST(free(results));
  probe::print_counts(static_cast<uint64_t>(mallocs), static_cast<uint64_t>(mallocs));
  return 0;
}
