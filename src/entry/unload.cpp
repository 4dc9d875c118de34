// SPDX-License-Identifier: Apache-2.0
// The exported `dlclose`: revalidates cached call sites after code was unloaded, since other code
// may be mapped in its place. It does not affect `dlclose` itself, which, unlike `dlopen`, does not
// depend on its caller.
#include "cuda/dynamic_linker.h"
#include "engine/context/rdma_libraries.h"
#include "engine/reclaim/message_calls.h"
#include "entry/call_sites.h"
#include "entry/hooks.h"
#include "entry/mpi_calls.h"

extern "C" {

CUPOOL_EXPORT int cupool_hook_dlclose(void* handle) __asm__("dlclose");

// A library mapped there by another thread by now, with calls already made, differs by its name.
// The cached facts of a library closed without this hook (RTLD_DEEPBIND) remain.
int cupool_hook_dlclose(void* handle) {
  const cupool::cuda::CloseFunction real = cupool::cuda::real_dlclose();
  if (real == nullptr) return -1;
  const int result = real(handle);
  // Nothing to do without cached call sites: the linker's list has a lock, which a child forked by
  // another thread at this moment would never get.
  if (cupool::entry::any_call_site() && cupool::engine::libraries_were_removed()) {
    cupool::entry::review_call_sites();
  }
  if (cupool::engine::MessageCalls::seen()) cupool::entry::forget_mpi_functions();
  return result;
}

}  // extern "C"
