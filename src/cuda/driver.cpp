// SPDX-License-Identifier: Apache-2.0
// Loads the table of real driver functions from the libcuda that is already in the process.
#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "cuda/dynamic_linker.h"

namespace cupool::cuda {
namespace {

// For the first thread that loads. Not on the heap, which may be exhausted: each hook needs it.
Driver* first_table() {
  static std::atomic<bool> taken{false};
  alignas(Driver) static unsigned char place[sizeof(Driver)];
  return taken.exchange(true) ? nullptr : new (place) Driver;
}

void load_from(void* library, Driver* table) {
  const DlsymFunction look_up = real_dlsym();
#define FN(symbol, parameters) \
  table->symbol = reinterpret_cast<CUresult(*) parameters>(look_up(library, #symbol));
#include "cuda/functions.def"
#undef FN
  // A failed look-up leaves a message in dlerror() that the program must not see.
  dlerror();
  if (table->cuDriverGetVersion != nullptr) table->cuDriverGetVersion(&table->version);
}

}  // namespace

void* Driver::find(const char* symbol) const {
#define FN(name, parameters) \
  if (std::strcmp(symbol, #name) == 0) return reinterpret_cast<void*>(name);
#include "cuda/functions.def"
#undef FN
  return nullptr;
}

const Driver* detail::load() {
  // RTLD_NOLOAD: only a library that the program has loaded. The handle is kept, so that the
  // functions stay valid after the program closes its own.
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    dlerror();
    return nullptr;
  }
  // Two threads may load one table each; the later one is dropped. No lock: a fork could leave it
  // held in the child.
  Driver* made = first_table();
  std::unique_ptr<Driver> later(made == nullptr ? new (std::nothrow) Driver : nullptr);
  if (made == nullptr) made = later.get();
  const Driver* table = nullptr;
  if (made == nullptr) return loaded.load(std::memory_order_acquire);
  load_from(library, made);
  if (!loaded.compare_exchange_strong(table, made, std::memory_order_acq_rel)) return table;
  later.release();
  return made;
}

void wait_for_stream(const Driver& driver, CUstream stream) {
  if (driver.cuStreamSynchronize(stream) != CUDA_SUCCESS) driver.cuStreamSynchronize(stream);
}

bool has_shut_down(const Driver& driver) {
  CUcontext current = nullptr;
  return driver.cuCtxGetCurrent(&current) == CUDA_ERROR_DEINITIALIZED;
}

void note_shut_down() {
  detail::is_shut_down.store(true, std::memory_order_relaxed);
}

}  // namespace cupool::cuda
