// Thread-local streams: a small fixed table, given back to the contexts when the thread ends. The
// table is plain data, so that a late call in an exiting thread still finds it; a pthread key does
// what a destructor would.
#include "core/thread_stream.h"

#include <pthread.h>

#include <array>

#include "core/context.h"

namespace cupool::core {
namespace {

struct Entry {
  Context* context;
  std::uint64_t incarnation;
  CUstream stream;
};

constexpr std::size_t kEntries = 8;
thread_local std::array<Entry, kEntries> entries;
thread_local std::size_t next_victim;

void give_back(Entry& entry) {
  if (entry.context != nullptr && entry.context->incarnation() == entry.incarnation) {
    entry.context->streams().put_idle(entry.stream);
  }
  entry = Entry{};
}

void thread_ends(void* table) {
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

CUresult thread_stream(const cuda::Driver& driver, Context& context, CUstream* stream) {
  const std::uint64_t incarnation = context.incarnation();
  Entry* slot = nullptr;
  for (Entry& entry : entries) {
    if (entry.context == &context && entry.incarnation == incarnation) {
      *stream = entry.stream;
      return CUDA_SUCCESS;
    }
    if (entry.context == &context || (entry.context == nullptr && slot == nullptr)) slot = &entry;
  }
  if (slot == nullptr) {
    slot = &entries[next_victim];
    next_victim = (next_victim + 1) % kEntries;
  }
  give_back(*slot);
  *stream = context.streams().take_idle();
  if (*stream == nullptr) {
    const CUresult result = driver.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return result;
    context.streams().add(*stream);
  }
  watch_thread();
  *slot = Entry{&context, incarnation, *stream};
  return CUDA_SUCCESS;
}

}  // namespace cupool::core
