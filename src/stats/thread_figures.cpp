// SPDX-License-Identifier: Apache-2.0
// A table in static storage: a thread takes the next entry for good, so an ending thread has
// nothing to return.
#include "stats/thread_figures.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cupool::stats {

namespace {

ThreadFigures g_listed[kListedThreads];
ThreadFigures g_others;
std::atomic<std::uint64_t> g_threads{0};
thread_local ThreadFigures* t_mine = nullptr;

}  // namespace

ThreadFigures& this_thread() noexcept {
  if (t_mine != nullptr) return *t_mine;
  const std::uint64_t place = g_threads.fetch_add(1, std::memory_order_relaxed);
  t_mine = place < kListedThreads ? &g_listed[place] : &g_others;
  if (t_mine != &g_others) {
    ::prctl(PR_GET_NAME, t_mine->name_);
    t_mine->tid_.store(static_cast<int>(::syscall(SYS_gettid)), std::memory_order_release);
  }
  return *t_mine;
}

ThreadSnapshot ThreadFigures::read() const {
  ThreadSnapshot snapshot;
  snapshot.tid = tid_.load(std::memory_order_acquire);
  if (snapshot.tid != 0) snapshot.name = name_;
  snapshot.malloc_calls_total = mallocs_.load(std::memory_order_relaxed);
  snapshot.malloc_requested_bytes_total = malloc_bytes_.load(std::memory_order_relaxed);
  snapshot.free_calls_total = frees_.load(std::memory_order_relaxed);
  snapshot.free_waits_total = waits_.load(std::memory_order_relaxed);
  snapshot.free_wait_ns_total = wait_ns_.load(std::memory_order_relaxed);
  return snapshot;
}

void ThreadFigures::reset() noexcept {
  tid_.store(0, std::memory_order_relaxed);
  for (std::atomic<std::uint64_t>* each :
       {&mallocs_, &malloc_bytes_, &frees_, &waits_, &wait_ns_}) {
    each->store(0, std::memory_order_relaxed);
  }
}

std::vector<ThreadSnapshot> thread_snapshots(ThreadSnapshot* others, std::uint64_t* other_threads) {
  const std::uint64_t threads = g_threads.load(std::memory_order_relaxed);
  std::vector<ThreadSnapshot> listed;
  for (std::uint64_t i = 0; i < threads && i < kListedThreads; ++i) {
    ThreadSnapshot snapshot = g_listed[i].read();
    if (snapshot.tid != 0) listed.push_back(std::move(snapshot));
  }
  *others = g_others.read();
  *other_threads = threads > kListedThreads ? threads - kListedThreads : 0;
  return listed;
}

void reset_threads() noexcept {
  const std::uint64_t threads = g_threads.exchange(0, std::memory_order_relaxed);
  for (std::uint64_t i = 0; i < threads && i < kListedThreads; ++i) g_listed[i].reset();
  g_others.reset();
  t_mine = nullptr;
}

}  // namespace cupool::stats
