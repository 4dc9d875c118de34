// SPDX-License-Identifier: Apache-2.0
// Loads the table of real driver functions from the libcuda that is already in the process.
#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "cuda/dynamic_linker.h"

namespace cupool::cuda {
namespace {

std::unique_ptr<Driver> load_from(void* library) {
  auto table = std::make_unique<Driver>();
  const DlsymFunction look_up = real_dlsym();
#define FN(symbol, parameters) \
  table->symbol = reinterpret_cast<CUresult(*) parameters>(look_up(library, #symbol));
#include "cuda/functions.def"
#undef FN
  // A failed look-up leaves a message in dlerror() that the program must not see.
  dlerror();
  if (table->cuDriverGetVersion != nullptr) table->cuDriverGetVersion(&table->version);
  return table;
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
  std::unique_ptr<Driver> made = load_from(library);
  const Driver* table = nullptr;
  if (!loaded.compare_exchange_strong(table, made.get(), std::memory_order_acq_rel)) return table;
  return made.release();
}

void note_shut_down() {
  detail::is_shut_down.store(true, std::memory_order_relaxed);
}

}  // namespace cupool::cuda
