// SPDX-License-Identifier: Apache-2.0
// An event gets its time and is stored under its buffer's lock; only a flush of all buffers
// contends for it. So an event stored after its buffer was flushed is later than the begin of that
// flush: up to then the merged order is final and can be written.
#include "trace/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "trace/format.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/path_pattern.h"
#include "util/standard_error.h"
#include "util/uncancelled.h"
#include "util/write_all.h"

namespace cupool::trace {

namespace {

constexpr std::size_t kBufferEvents = 2048;

// The buffer of one thread at a time; reused after the thread has ended. Never freed.
struct alignas(128) Buffer {
  std::atomic<bool> locked{false};
  std::atomic<bool> in_use{true};
  int tid = 0;
  std::size_t size = 0;
  std::uint64_t last_ns = 0;
  Buffer* next = nullptr;
  Event events[kBufferEvents];
};

class BufferLock {
 public:
  explicit BufferLock(Buffer& buffer) : buffer_(buffer) {
    while (buffer_.locked.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  ~BufferLock() { buffer_.locked.store(false, std::memory_order_release); }
  BufferLock(const BufferLock&) = delete;
  BufferLock& operator=(const BufferLock&) = delete;

 private:
  Buffer& buffer_;
};

// The file and its waiting events; protected by file_mutex.
struct File {
  File(std::string file_path, std::uint64_t limit)
      : path(std::move(file_path)),
        limit_bytes(limit),
        format(format_of(path)),
        renderer(format, util::wall_ns(), util::now_ns(), static_cast<int>(::getpid()),
                 "process " + std::to_string(::getpid())) {}

  const std::string path;
  const std::uint64_t limit_bytes;
  const Format format;
  Renderer renderer;
  std::vector<Event> waiting;  // recorded; their order is not final yet
  std::uint64_t bytes = 0;
  std::uint64_t events = 0;
  std::uint64_t dropped = 0;
  bool closed = false;  // finished, or one of these:
  bool full = false;    // the limit was reached
  bool failed = false;  // writing failed, which was said
};

std::mutex file_mutex;
std::atomic<File*> file{nullptr};
std::atomic<Buffer*> buffers{nullptr};
std::atomic<std::uint64_t> unbuffered{0};
thread_local Buffer* own_buffer = nullptr;

void thread_ends(void* buffer) {
  static_cast<Buffer*>(buffer)->in_use.store(false, std::memory_order_release);
  own_buffer = nullptr;
}

Buffer* unused_buffer() {
  for (Buffer* each = buffers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    bool used = false;
    if (each->in_use.compare_exchange_strong(used, true, std::memory_order_acq_rel)) return each;
  }
  auto* made = new (std::nothrow) Buffer;
  if (made == nullptr) return nullptr;
  made->next = buffers.load(std::memory_order_relaxed);
  while (!buffers.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

Buffer* buffer_of_thread() {
  if (own_buffer != nullptr) return own_buffer;
  struct ThreadKey {
    ThreadKey() : made(pthread_key_create(&key, thread_ends) == 0) {}
    pthread_key_t key{};
    const bool made;  ///< else the first key of all, which is another library's
  };
  static const ThreadKey at_end;
  if (!at_end.made) {
    CUPOOL_WARN_ONCE(
        "no thread-specific key is left (PTHREAD_KEYS_MAX): CUPOOL_TRACE has no events. Have the "
        "program's libraries create fewer (pthread_key_create)");
    return nullptr;
  }
  Buffer* buffer = unused_buffer();
  if (buffer == nullptr) return nullptr;
  {
    const BufferLock lock(*buffer);
    buffer->tid = static_cast<int>(::syscall(SYS_gettid));
  }
  if (pthread_setspecific(at_end.key, buffer) != 0) {  // out of host memory
    buffer->in_use.store(false, std::memory_order_release);
    return nullptr;
  }
  return own_buffer = buffer;
}

void warn_of_failure(const File& failed, int cause) {
  CUPOOL_WARN_ONCE("cannot write CUPOOL_TRACE %s: %s; the trace ends here%s", failed.path.c_str(),
                   std::strerror(cause), cause == ENOENT ? ". Create the folder first" : "");
}

// Whether the file has what was written to it and nothing else: another process may have the same
// name.
bool is_still_own(const File& of, int fd) {
  struct stat status {};
  if (of.bytes == 0 || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return true;
  if (static_cast<std::uint64_t>(status.st_size) == of.bytes) return true;
  CUPOOL_WARN_ONCE(
      "CUPOOL_TRACE %s: another process writes this file; the trace of this one ends here. With "
      "%%p in the name, each process has a file of its own",
      of.path.c_str());
  return false;
}

// Rendered events, and the end of each one in the text.
struct Batch {
  std::string text;
  std::vector<std::size_t> ends;
};

// The bytes of complete events among the written bytes of a batch.
std::size_t whole_bytes(const Batch& batch, std::size_t written) {
  const auto cut = std::upper_bound(batch.ends.begin(), batch.ends.end(), written);
  return cut == batch.ends.begin() ? 0 : *(cut - 1);
}

// Removes the last `bytes` of a file: readers refuse a trace with a partial row. Only for regular
// files (not a FIFO).
void take_back(int fd, std::size_t bytes) {
  struct stat status {};
  if (bytes == 0 || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
  const off_t left = status.st_size - static_cast<off_t>(bytes);
  if (left < 0 || ::ftruncate(fd, left) != 0)
    CUPOOL_LOG(warn, "the trace ends in a partial row; delete that row before reading the trace");
}

// Opened for each write: the program could close a descriptor kept open, and its number could
// become one of the program's files. After a partial write, only complete events remain.
bool append(File& to, const Batch& batch) {
  const util::Uncancelled throughout;
  const int flags =
      O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (to.bytes == 0 ? O_TRUNC : O_APPEND);
  const int named = util::descriptor_named(to.path);
  const int fd = named >= 0 ? -1 : ::open(to.path.c_str(), flags, 0666);
  if (fd >= 0 && !is_still_own(to, fd)) {
    ::close(fd);
    to.failed = true;
    return false;
  }
  const char* const text = batch.text.data();
  std::size_t written = 0;
  const bool all = named >= 0 ? util::write_descriptor(named, text, batch.text.size(), &written)
                              : fd >= 0 && util::write_all(fd, text, batch.text.size(), &written);
  const int cause = errno;
  const std::size_t kept = all ? written : whole_bytes(batch, written);
  take_back(named >= 0 ? named : fd, written - kept);
  if (fd >= 0) ::close(fd);
  if (!all) warn_of_failure(to, cause);
  to.failed = !all;
  to.bytes += kept;
  to.events += static_cast<std::uint64_t>(
      std::upper_bound(batch.ends.begin(), batch.ends.end(), kept) - batch.ends.begin());
  return all;
}

// Writes `events` in order, while there is room.
void write_events(File& to, const Event* first, const Event* last) {
  Batch batch;
  if (to.bytes == 0 && first != last) batch.text = to.renderer.header();
  const std::uint64_t before = to.events;
  const auto count = static_cast<std::uint64_t>(last - first);
  for (; first != last && !to.closed; ++first) {
    const std::size_t end = batch.text.size();
    to.renderer.render(*first, &batch.text);
    if (to.bytes + batch.text.size() + to.renderer.footer_bytes() > to.limit_bytes) {
      batch.text.resize(end);
      batch.text += to.renderer.footer();
      to.closed = to.full = true;
      break;
    }
    batch.ends.push_back(batch.text.size());
  }
  if (batch.text.empty()) {
    to.events += batch.ends.size();  // frees; Chrome's format shows them when done
  } else if (!append(to, batch)) {
    to.closed = true;
  }
  to.dropped += count - (to.events - before);
}

void take_all(File& to) {
  for (Buffer* each = buffers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    const BufferLock lock(*each);
    if (to.closed) {
      to.dropped += each->size;
    } else {
      to.waiting.insert(to.waiting.end(), each->events, each->events + each->size);
    }
    each->size = 0;
  }
}

void write_final(File& to, std::uint64_t final_ns) {
  const auto earlier = [](const Event& a, const Event& b) {
    // If a free and an allocation of an address have the same time, the free comes first.
    if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
    return a.action == Action::free && b.action != Action::free;
  };
  std::sort(to.waiting.begin(), to.waiting.end(), earlier);
  const auto end = std::partition_point(to.waiting.begin(), to.waiting.end(),
                                        [&](const Event& e) { return e.time_ns <= final_ns; });
  const auto count = end - to.waiting.begin();
  if (count == 0) return;
  write_events(to, to.waiting.data(), to.waiting.data() + count);
  to.waiting.erase(to.waiting.begin(), end);
}

}  // namespace

void start_trace(const std::string& path, std::uint64_t limit_bytes) {
  file.store(new File(path, limit_bytes), std::memory_order_release);
}

bool is_timeline() noexcept {
  const File* to = file.load(std::memory_order_acquire);
  return to != nullptr && to->format == Format::chrome_json;
}

void record(Event event) noexcept {
  if (file.load(std::memory_order_acquire) == nullptr) return;
  Buffer* buffer = buffer_of_thread();
  if (buffer == nullptr) {
    unbuffered.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  bool full = false;
  {
    const BufferLock lock(*buffer);
    if (buffer->size == kBufferEvents) {  // events that could not be written are dropped
      unbuffered.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    event.time_ns = std::max(util::now_ns(), buffer->last_ns + 1);
    event.tid = buffer->tid;
    buffer->last_ns = event.time_ns;
    buffer->events[buffer->size++] = event;
    full = buffer->size == kBufferEvents;
  }
  if (full) flush_trace();
}

void flush_trace() noexcept {
  File* to = file.load(std::memory_order_acquire);
  if (to == nullptr) return;
  const util::Uncancelled throughout;
  const std::lock_guard<std::mutex> lock(file_mutex);
  try {
    const std::uint64_t final_ns = util::now_ns();
    take_all(*to);
    write_final(*to, final_ns);
  } catch (...) {
    CUPOOL_WARN_ONCE("out of host memory while writing the trace: it lacks events");
  }
}

void finish_trace() noexcept {
  File* to = file.load(std::memory_order_acquire);
  if (to == nullptr) return;
  const util::Uncancelled throughout;
  const std::lock_guard<std::mutex> lock(file_mutex);
  try {
    take_all(*to);
    write_final(*to, UINT64_MAX);
    if (!to->closed && to->bytes != 0) append(*to, {to->renderer.footer(), {}});
    to->closed = true;
    const std::uint64_t dropped = to->dropped + unbuffered.load(std::memory_order_relaxed);
    if (dropped != 0) {
      const std::string limit = "it reached CUPOOL_TRACE_LIMIT (" +
                                std::to_string(to->limit_bytes) + " bytes). Raise the limit";
      CUPOOL_WARN_ONCE("the trace %s lacks %llu events: %s", to->path.c_str(),
                       static_cast<unsigned long long>(dropped),
                       to->failed ? "it could not be written"
                       : to->full ? limit.c_str()
                                  : "threads had no room to keep them");
    }
  } catch (...) {
    CUPOOL_WARN_ONCE("out of host memory while writing the trace: it lacks events");
  }
}

TraceFigures trace_figures() {
  const File* to = file.load(std::memory_order_acquire);
  if (to == nullptr) return {};
  const std::lock_guard<std::mutex> lock(file_mutex);
  return {to->path, to->events, to->dropped + unbuffered.load(std::memory_order_relaxed),
          to->bytes};
}

}  // namespace cupool::trace
