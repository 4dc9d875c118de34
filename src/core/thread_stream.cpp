// Thread-local streams: a small fixed table, given back to the contexts when the thread ends. The
// table is plain data, so that a late call in an exiting thread still finds it; a pthread key does
// what a destructor would.
#include "core/thread_stream.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <new>

#include "core/context.h"

namespace cupool::core {
namespace {

struct Entry {
  Context* context;
  std::uint64_t incarnation;
  CUstream stream;     ///< null until it is needed
  ThreadCache* cache;  ///< null until it is needed
};

constexpr std::size_t kEntries = 8;
thread_local std::array<Entry, kEntries> entries;
thread_local std::size_t next_victim;

std::atomic<bool> kept_for_good{false};

void give_back(Entry& entry) {
  if (entry.context == nullptr) return;  // an unused one
  if (entry.stream != nullptr && entry.context->incarnation() == entry.incarnation) {
    entry.context->streams().put_idle(entry.stream);
  }
  if (entry.cache != nullptr) {
    detail::last_cache = detail::LastCache{};
    entry.context->drain(*entry.cache, Context::Drain::all);
    entry.context->thread_caches().put_back(entry.cache);
  }
  entry = Entry{};
}

void thread_ends(void* table) {
  if (kept_for_good.load(std::memory_order_relaxed)) return;
  for (Entry& entry : *static_cast<std::array<Entry, kEntries>*>(table)) give_back(entry);
}

// Makes thread_ends() run when this thread ends.
void watch_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t created{};
    pthread_key_create(&created, thread_ends);
    return created;
  }();
  pthread_setspecific(key, &entries);
}

}  // namespace

CUstream StreamStock::take_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) return nullptr;
  CUstream stream = idle_.back();
  idle_.pop_back();
  return stream;
}

void StreamStock::put_idle(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(stream);
}

void StreamStock::add(CUstream created) {
  const std::lock_guard<std::mutex> lock(mutex_);
  all_.push_back(created);
}

std::vector<CUstream> StreamStock::all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return all_;
}

void StreamStock::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  all_.clear();
  idle_.clear();
}

void keep_thread_streams() {
  kept_for_good.store(true, std::memory_order_relaxed);
}

ThreadCache* ThreadCacheStock::take(Context& context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ThreadCache* cache = nullptr;
  if (!unused_.empty()) {
    cache = unused_.back();
    unused_.pop_back();
  } else {
    cache = new (std::nothrow) ThreadCache(context);
    if (cache == nullptr) return nullptr;
    all_.push_back(cache);
  }
  in_use_.fetch_add(1, std::memory_order_relaxed);
  return cache;
}

void ThreadCacheStock::put_back(ThreadCache* cache) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_.push_back(cache);
  in_use_.fetch_sub(1, std::memory_order_relaxed);
}

namespace {

// The calling thread's entry for the context as it is now.
Entry& entry_of(Context& context) {
  const std::uint64_t incarnation = context.incarnation();
  Entry* slot = nullptr;
  for (Entry& entry : entries) {
    if (entry.context == &context && entry.incarnation == incarnation) return entry;
    if (entry.context == &context || (entry.context == nullptr && slot == nullptr)) slot = &entry;
  }
  if (slot == nullptr) {
    slot = &entries[next_victim];
    next_victim = (next_victim + 1) % kEntries;
  }
  give_back(*slot);
  slot->context = &context;
  slot->incarnation = incarnation;
  watch_thread();
  return *slot;
}

}  // namespace

ThreadCache* detail::find_thread_cache(Context& context) {
  Entry& entry = entry_of(context);
  if (entry.cache == nullptr) {
    entry.cache = context.thread_caches().take(context);
    if (entry.cache != nullptr) entry.cache->set_owner(stats::this_thread());
  }
  if (entry.cache != nullptr) last_cache = LastCache{&context, entry.incarnation, entry.cache};
  return entry.cache;
}

CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream) {
  Entry& entry = entry_of(context);
  if (entry.stream == nullptr) {
    entry.stream = context.streams().take_idle();
    if (entry.stream == nullptr) {
      const CUresult result = driver.cuStreamCreate(&entry.stream, CU_STREAM_NON_BLOCKING);
      if (result != CUDA_SUCCESS) {
        entry.stream = nullptr;
        return result;
      }
      context.streams().add(entry.stream);
    }
  }
  *stream = entry.stream;
  return CUDA_SUCCESS;
}

}  // namespace cupool::core
