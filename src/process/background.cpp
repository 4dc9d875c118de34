// SPDX-License-Identifier: Apache-2.0
// The mask is set before the thread exists, so that no signal can arrive in between.
#include "process/background.h"

#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace cupool::process {

bool start_background(const char* name, void* (*run)(void*)) {
  // Whatever the program has set for its own: some of these threads call the driver.
  constexpr std::size_t kStackBytes = std::size_t{1} << 20;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  std::size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  if (bytes < kStackBytes) pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool started = pthread_create(&thread, &attributes, run, nullptr) == 0;
  if (started) {
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return started;
}

}  // namespace cupool::process
