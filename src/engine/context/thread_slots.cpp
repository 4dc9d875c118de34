// SPDX-License-Identifier: Apache-2.0
// Thread-local streams and caches: a table, given back to the contexts when the thread ends. The
// table is plain data, so that a late call in an exiting thread still finds it; a pthread key takes
// the place of a destructor. A thread with more contexts than one part of the table holds gets
// further parts.
#include "engine/context/thread_slots.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

#include "engine/context/context.h"
#include "engine/context/thread_order.h"

namespace cupool::engine {
namespace {

struct Entry {
  Context* context;
  std::uint64_t incarnation;
  CUstream stream;     ///< null until it is needed
  ThreadCache* cache;  ///< null until it is needed
};

struct Part {
  std::array<Entry, 4> entries;  // few, as all such data: see detail::known_streams
  Part* next;
};
thread_local Part first_part;

std::atomic<bool> kept_for_good{false};

// Gives a thread's stream and cache back to the context, unless it is gone. If the context is just
// ending, the cache goes back with its contents, which the context can reach.
void give_back(Entry& entry) {
  constexpr std::uint64_t kLongestWaitNs = 50'000'000;
  if (entry.context == nullptr) return;  // unused
  Context& context = *entry.context;
  bool gone = context.incarnation() != entry.incarnation;
  if (!gone) {
    const ContextVisit visit(context, kLongestWaitNs);
    const bool alive = visit && context.incarnation() == entry.incarnation;
    if (alive && entry.stream != nullptr) context.streams().put_back(entry.stream);
    if (alive && entry.cache != nullptr) context.threads().drain(*entry.cache, Drain::all);
  }
  gone = gone || context.incarnation() != entry.incarnation;
  if (entry.cache != nullptr) context.threads().caches().put_back(entry.cache, gone);
  if (detail::last_cache.cache == entry.cache) detail::last_cache = detail::LastCache{};
  entry = Entry{};
}

void thread_ends(void* part) {
  if (kept_for_good.load(std::memory_order_relaxed)) return;
  const cuda::Driver* const driver = cuda::driver();
  if (driver != nullptr && !cuda::shut_down()) ThreadOrder::thread_ends(*driver);
  auto* const first = static_cast<Part*>(part);
  for (Part* each = first; each != nullptr; each = each->next) {
    for (Entry& entry : each->entries) give_back(entry);
  }
  for (Part* each = first->next; each != nullptr;) {
    Part* const next = each->next;
    delete each;
    each = next;
  }
  first->next = nullptr;
}

}  // namespace

// Registers thread_ends() for the end of this thread.
bool watch_thread_end() {
  struct Key {
    Key() : made(pthread_key_create(&key, thread_ends) == 0) {}
    pthread_key_t key{};
    const bool made;  ///< else the first key of all, which is another library's
  };
  static const Key at_end;
  return at_end.made && pthread_setspecific(at_end.key, &first_part) == 0;
}

void keep_thread_streams() {
  kept_for_good.store(true, std::memory_order_relaxed);
}

namespace {

// The calling thread's entry for the present incarnation of the context. Null: host memory is
// exhausted, or the thread's end cannot be seen. Reuses entries of contexts that are gone.
Entry* entry_of(Context& context) {
  const std::uint64_t incarnation = context.incarnation();
  for (Part* part = &first_part; part != nullptr; part = part->next) {
    for (Entry& entry : part->entries) {
      if (entry.context == &context && entry.incarnation == incarnation) return &entry;
    }
  }
  Entry* free_one = nullptr;
  Part* last = nullptr;
  for (Part* part = &first_part; part != nullptr; last = part, part = part->next) {
    for (Entry& entry : part->entries) {
      if (entry.context == nullptr || entry.context->incarnation() != entry.incarnation) {
        if (free_one == nullptr || entry.context == &context) free_one = &entry;
      }
    }
  }
  if (!watch_thread_end()) return nullptr;
  if (free_one == nullptr) {
    last->next = new (std::nothrow) Part{};
    if (last->next == nullptr) return nullptr;
    free_one = &last->next->entries.front();
  }
  give_back(*free_one);
  free_one->context = &context;
  free_one->incarnation = incarnation;
  return free_one;
}

}  // namespace

ThreadCache* detail::find_thread_cache(Context& context) {
  Entry* const entry = entry_of(context);
  if (entry == nullptr) return nullptr;
  if (entry->cache == nullptr) {
    entry->cache = context.threads().caches().take();
    if (entry->cache != nullptr) entry->cache->set_owner(stats::this_thread());
  }
  if (entry->cache != nullptr) last_cache = LastCache{&context, entry->incarnation, entry->cache};
  return entry->cache;
}

CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream) {
  Entry* const entry = entry_of(context);
  if (entry == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (entry->stream == nullptr) {
    const auto create = [&](CUstream* created) {
      return driver.cuStreamCreate(created, CU_STREAM_NON_BLOCKING);
    };
    const auto destroy = [&](CUstream created) { driver.cuStreamDestroy_v2(created); };
    CUstream taken = nullptr;
    const CUresult result = context.streams().take(create, destroy, &taken);
    if (result != CUDA_SUCCESS) return result;
    entry->stream = taken;
  }
  *stream = entry->stream;
  return CUDA_SUCCESS;
}

}  // namespace cupool::engine
