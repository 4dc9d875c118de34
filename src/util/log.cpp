// SPDX-License-Identifier: Apache-2.0
// The logger: a private spdlog logger, created with the first message and never destroyed. It is
// not in spdlog's registry (the program may have its own spdlog), outlives exit (messages come
// until the last instruction), and is abandoned in a forked child (its lock may be held).
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "util/clock.h"
#include "util/path_pattern.h"
#include "util/standard_error.h"
#include "util/text.h"
#include "util/uncancelled.h"
#include "util/write_all.h"

namespace cupool::log {

namespace detail {
std::atomic<int> threshold{static_cast<int>(Level::warn)};
}

namespace {

// One configuration and its logger. Replaced ones stay reachable: another thread may be writing a
// message with them.
struct Destination {
  std::string file_pattern;  // empty: standard error
  std::string path;          // the same for `process`
  pid_t process = 0;
  std::atomic<spdlog::logger*> logger{nullptr};
  spdlog::logger* parents_logger = nullptr;  // in a forked child
  const Destination* previous = nullptr;
};

std::atomic<Destination*> g_destination{nullptr};
std::atomic<bool> g_told_unwritable{false};

// A destination of messages. After a wait in vain, further messages are tried without a wait, until
// one is accepted: otherwise a stopped reader would cost the program two seconds per message.
class Outlet {
 public:
  // `write(patience_ms)` returns whether all was written; else errno has the cause.
  template <typename Write>
  bool try_to(const Write& write) noexcept {
    const bool written = write(full_.load(std::memory_order_relaxed) ? 0 : util::kWritePatienceMs);
    if (written || errno == EAGAIN) full_.store(!written, std::memory_order_relaxed);
    return written;
  }
  void forget() noexcept { full_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> full_{false};
};

Outlet g_file;
Outlet g_standard_error;

void write_to_standard_error(const char* data, std::size_t size) {
  g_standard_error.try_to([&](int patience_ms) {
    return util::write_descriptor(STDERR_FILENO, data, size, nullptr, patience_ms);
  });
}

// Uses no heap, hence not util::printable(): a name must not control a terminal.
void warn_of_file(const char* path, int cause) {
  char name[301] = {};
  for (std::size_t i = 0; i + 1 < sizeof name && path[i] != '\0'; ++i) {
    const auto character = static_cast<unsigned char>(path[i]);
    name[i] = character < 0x20 || character == 0x7f ? '?' : path[i];
  }
  char text[512];
  const int length = std::snprintf(
      text, sizeof text,
      "cupool[%d] warning: cannot write CUPOOL_LOG_FILE %s: %s; using standard error\n",
      static_cast<int>(::getpid()), name, std::strerror(cause));
  if (length > 0) {
    write_to_standard_error(text, std::min(static_cast<std::size_t>(length), sizeof text - 1));
  }
}

// Opened for each line: the program could close a descriptor kept open (daemons close all), and its
// number could become one of the program's files.
bool append_to_file(const char* path, const char* data, std::size_t size) {
  const int named = util::descriptor_named(path);
  const int fd =
      named >= 0
          ? -1
          : ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  const bool written = g_file.try_to([&](int patience_ms) {
    if (named >= 0) return util::write_descriptor(named, data, size, nullptr, patience_ms);
    return fd >= 0 && util::write_all(fd, data, size, nullptr, patience_ms);
  });
  const int cause = errno;
  if (fd >= 0) ::close(fd);
  if (!written && !g_told_unwritable.exchange(true, std::memory_order_relaxed)) {
    warn_of_file(path, cause);
  }
  return written;
}

// Writes to the file, or to standard error if there is none or it cannot be written. Uses no lock
// and no heap.
void write_line(const char* path, const char* data, std::size_t size) {
  if (*path == '\0' || !append_to_file(path, data, size)) {
    write_to_standard_error(data, size);
  }
}

class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::string path) : path_(std::move(path)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_line(path_.c_str(), line.data(), line.size());
  }
  void flush_() override {}

 private:
  const std::string path_;
};

// No other thread exists in the child, so a lock held by one would stay held: start afresh. The
// parent's logger is abandoned, since destroying it would need that lock.
void start_anew_in_child() {
  Destination* destination = g_destination.load(std::memory_order_relaxed);
  if (destination != nullptr) {
    destination->parents_logger = destination->logger.exchange(nullptr, std::memory_order_relaxed);
  }
}

// Registers the fork handler with the first message: a silent process has none. An atomic flag, not
// std::call_once: a fork during that would leave the child waiting.
void register_fork_handler() {
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true, std::memory_order_acq_rel)) {
    ::pthread_atfork(nullptr, nullptr, start_anew_in_child);
  }
}

// Installs a new destination. With `only_if_none`, keeps one that another thread has installed.
Destination* put_destination(std::string file_pattern, bool only_if_none) {
  auto made = std::make_unique<Destination>();
  made->path = util::expand_path_pattern(file_pattern, util::wall_ns());
  made->file_pattern = std::move(file_pattern);
  made->process = ::getpid();
  Destination* current = g_destination.load(std::memory_order_acquire);
  do {
    if (only_if_none && current != nullptr) return current;
    made->previous = current;
  } while (!g_destination.compare_exchange_weak(current, made.get(), std::memory_order_acq_rel));
  return made.release();
}

std::unique_ptr<spdlog::logger> make_logger(const Destination& destination) {
  std::string path = destination.path;
  if (destination.process != ::getpid()) {  // a forked child: its file may have another name
    path = util::expand_path_pattern(destination.file_pattern, util::wall_ns());
  }
  auto sink = std::make_shared<LineSink>(std::move(path));
  auto logger = std::make_unique<spdlog::logger>("cupool", std::move(sink));
  logger->set_pattern("cupool[%P] %l: %v");
  logger->set_level(spdlog::level::trace);  // detail::threshold decides
  return logger;
}

// The logger, created if there is none. Two threads may create one each; the later one is dropped.
spdlog::logger* logger() {
  Destination* destination = g_destination.load(std::memory_order_acquire);
  if (destination == nullptr) destination = put_destination({}, true);
  spdlog::logger* current = destination->logger.load(std::memory_order_acquire);
  if (current != nullptr) return current;
  register_fork_handler();
  std::unique_ptr<spdlog::logger> made = make_logger(*destination);
  if (destination->logger.compare_exchange_strong(current, made.get(), std::memory_order_acq_rel)) {
    return made.release();
  }
  return current;
}

spdlog::level::level_enum spdlog_level(Level level) noexcept {
  switch (level) {
    case Level::off:
      return spdlog::level::off;
    case Level::error:
      return spdlog::level::err;
    case Level::warn:
      return spdlog::level::warn;
    case Level::info:
      return spdlog::level::info;
    case Level::debug:
      return spdlog::level::debug;
    case Level::trace:
      return spdlog::level::trace;
  }
  return spdlog::level::warn;
}

}  // namespace

void configure(Level level, const char* file_pattern) noexcept {
  try {
    put_destination(file_pattern == nullptr ? "" : file_pattern, false);
    g_told_unwritable.store(false, std::memory_order_relaxed);
    g_file.forget();
    g_standard_error.forget();
  } catch (...) {
    // No memory for the file's name: messages keep their destination.
  }
  detail::threshold.store(static_cast<int>(level), std::memory_order_relaxed);
}

void write(Level level, const char* format, ...) noexcept {
  const util::Uncancelled throughout;
  const int saved_errno = errno;
  char text[2001];
  std::va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not see va_start above.
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length >= 0 && level != Level::off) {
    try {
      const std::size_t kept = std::min(static_cast<std::size_t>(length), sizeof text - 1);
      // Contains names and values from the user's environment: none may control a terminal.
      logger()->log(spdlog_level(level), util::printable({text, kept}));
    } catch (...) {
      // A failed message is not an error of the program.
    }
  }
  errno = saved_errno;
}

void write_at_once(Level level, const char* text) noexcept {
  if (!enabled(level)) return;
  const util::Uncancelled throughout;
  const int saved_errno = errno;
  const Destination* destination = g_destination.load(std::memory_order_acquire);
  const spdlog::string_view_t name = spdlog::level::to_string_view(spdlog_level(level));
  // By hand: the stack may be a small one (sigaltstack), and printf() takes kilobytes.
  char number[16];
  const char* const end =
      std::to_chars(number, number + sizeof number, static_cast<int>(::getpid())).ptr;
  char line[400];
  std::size_t size = 0;
  for (const std::string_view part :
       {std::string_view("cupool["),
        std::string_view(number, static_cast<std::size_t>(end - number)), std::string_view("] "),
        std::string_view(name.data(), name.size()), std::string_view(": "),
        std::string_view(text)}) {
    const std::size_t kept = std::min(part.size(), sizeof line - 1 - size);
    std::memcpy(line + size, part.data(), kept);
    size += kept;
  }
  line[size++] = '\n';
  write_line(destination == nullptr ? "" : destination->path.c_str(), line, size);
  errno = saved_errno;
}

}  // namespace cupool::log
