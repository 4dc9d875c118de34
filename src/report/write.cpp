// Writing reports: a whole buffer at once, never waiting for what may not come, never fatal.
#include "report/write.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "report/json.h"
#include "report/text.h"
#include "util/log.h"
#include "util/path_pattern.h"
#include "util/write_all.h"

namespace cupool::report {

namespace {

bool write_file(const std::string& path, const std::string& report) {
  // Non-blocking while opening: a FIFO that nobody reads must not keep the program from exiting.
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0) return false;
  const bool written = util::write_all(fd, report.data(), report.size());
  const int cause = errno;
  const bool closed = ::close(fd) == 0;
  if (!written) errno = cause;
  return written && closed;
}

void write_report(const std::string& path, const std::string& report) {
  if (!path.empty()) {
    if (write_file(path, report)) return;
    CUPOOL_WARN_ONCE("cannot write CUPOOL_STATS_FILE %s: %s; the report goes to standard error",
                     path.c_str(), std::strerror(errno));
  }
  util::write_all(STDERR_FILENO, report.data(), report.size());
}

struct Paths {
  std::string text;
  std::string json;
};

// Both formats never share a file: the one that the extension does not name gets its own appended
// (run.log, run.log.json) or put in its place (run.json, run.txt).
Paths paths_of(const Destinations& destinations) {
  const std::string path = util::expand_path_pattern(destinations.file_pattern);
  if (path.empty() || !destinations.text || !destinations.json) return {path, path};
  constexpr std::string_view extension = ".json";
  const bool named_json =
      path.size() > extension.size() &&
      path.compare(path.size() - extension.size(), extension.size(), extension) == 0;
  if (named_json) return {path.substr(0, path.size() - extension.size()) + ".txt", path};
  return {path, path + ".json"};
}

}  // namespace

void write_reports(const stats::Snapshot& snapshot, const Destinations& destinations) noexcept {
  const int saved_errno = errno;
  try {
    const Paths paths = paths_of(destinations);
    if (destinations.text) write_report(paths.text, text_report(snapshot));
    if (destinations.json) write_report(paths.json, json_report(snapshot));
  } catch (...) {
    // No memory for a report: the program ends as it would have without one.
  }
  errno = saved_errno;
}

}  // namespace cupool::report
