// The logger: a private spdlog logger, made on the first message and never destroyed.
// Not in spdlog's registry (the program may have its own spdlog), not destroyed at exit (messages
// come until the last instruction), and left behind in a forked child (its lock may be held).
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "util/clock.h"
#include "util/path_pattern.h"
#include "util/write_all.h"

namespace cupool::log {

namespace detail {
std::atomic<int> threshold{static_cast<int>(Level::warn)};
}

namespace {

// One configuration and its logger. Superseded ones stay, and stay reachable: another thread may be
// in the middle of a message with them.
struct Destination {
  std::string file_pattern;  // empty: standard error
  std::atomic<spdlog::logger*> logger{nullptr};
  spdlog::logger* parents_logger = nullptr;  // in a forked child
  const Destination* previous = nullptr;
};

std::atomic<Destination*> g_destination{nullptr};
std::atomic<bool> g_told_unwritable{false};

// Opens its file for each line: a descriptor kept open could be closed by the program (daemons
// close all) and its number given to one of the program's own files.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::string path) : path_(std::move(path)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (path_.empty() || !append_to_file(line.data(), line.size())) {
      util::write_all(STDERR_FILENO, line.data(), line.size());
    }
  }
  void flush_() override {}

 private:
  bool append_to_file(const char* data, std::size_t size) {
    const int fd =
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
    const bool written = fd >= 0 && util::write_all(fd, data, size);
    const int cause = errno;
    if (fd >= 0) ::close(fd);
    if (!written && !g_told_unwritable.exchange(true, std::memory_order_relaxed)) {
      char text[512];
      const int length = std::snprintf(
          text, sizeof text,
          "cupool[%d] warning: cannot write CUPOOL_LOG_FILE %.300s: %s; using standard error\n",
          static_cast<int>(::getpid()), path_.c_str(), std::strerror(cause));
      if (length > 0) {
        util::write_all(STDERR_FILENO, text,
                        std::min(static_cast<std::size_t>(length), sizeof text - 1));
      }
    }
    return written;
  }

  const std::string path_;
};

// In the child no other thread lives on, so a lock that one of them held would stay held: begin
// anew. The parent's logger is left behind, not destroyed; destroying would need that lock.
void start_anew_in_child() {
  Destination* destination = g_destination.load(std::memory_order_relaxed);
  if (destination != nullptr) {
    destination->parents_logger = destination->logger.exchange(nullptr, std::memory_order_relaxed);
  }
}

// Registers the fork handler with the first message: a process that says nothing has none.
// An atomic flag, not std::call_once: a fork in the middle of that would leave the child waiting.
void register_fork_handler() {
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true, std::memory_order_acq_rel)) {
    ::pthread_atfork(nullptr, nullptr, start_anew_in_child);
  }
}

// Puts a new destination in place, or, if `only_if_none`, keeps the one that another thread put.
Destination* put_destination(std::string file_pattern, bool only_if_none) {
  auto made = std::make_unique<Destination>();
  made->file_pattern = std::move(file_pattern);
  Destination* current = g_destination.load(std::memory_order_acquire);
  do {
    if (only_if_none && current != nullptr) return current;
    made->previous = current;
  } while (!g_destination.compare_exchange_weak(current, made.get(), std::memory_order_acq_rel));
  return made.release();
}

std::unique_ptr<spdlog::logger> make_logger(const std::string& file_pattern) {
  auto sink = std::make_shared<LineSink>(util::expand_path_pattern(file_pattern, util::wall_ns()));
  auto logger = std::make_unique<spdlog::logger>("cupool", std::move(sink));
  logger->set_pattern("cupool[%P] %l: %v");
  logger->set_level(spdlog::level::trace);  // detail::threshold decides
  return logger;
}

// The logger, made if there is none. Two threads may make one each; the later is dropped.
spdlog::logger* logger() {
  Destination* destination = g_destination.load(std::memory_order_acquire);
  if (destination == nullptr) destination = put_destination({}, true);
  spdlog::logger* current = destination->logger.load(std::memory_order_acquire);
  if (current != nullptr) return current;
  register_fork_handler();
  std::unique_ptr<spdlog::logger> made = make_logger(destination->file_pattern);
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
  } catch (...) {
    // No memory for the file's name: messages go on where they went.
  }
  detail::threshold.store(static_cast<int>(level), std::memory_order_relaxed);
}

void write(Level level, const char* format, ...) noexcept {
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
      logger()->log(spdlog_level(level), spdlog::string_view_t(text, kept));
    } catch (...) {
      // A message is never the program's error.
    }
  }
  errno = saved_errno;
}

}  // namespace cupool::log
