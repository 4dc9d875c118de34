// SPDX-License-Identifier: Apache-2.0
// The mask is set before the thread exists, so that no signal can arrive in between.
#include "process/background.h"

#include <pthread.h>
#include <signal.h>

namespace cupool::process {

bool start_background(const char* name, void* (*run)(void*)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool started = pthread_create(&thread, nullptr, run, nullptr) == 0;
  if (started) {
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace cupool::process
