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

// run.log becomes run.3.log, report becomes report.3; a dot in a folder's name is none of the file.
std::string numbered(const std::string& path, std::uint64_t number) {
  if (path.empty() || number == 0) return path;
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return path.substr(0, dot) + "." + std::to_string(number) + path.substr(dot);
}

struct Paths {
  std::string text;
  std::string json;
};

// Both formats never share a file: the one that the extension does not name gets its own appended
// (run.log, run.log.json) or put in its place (run.json, run.txt).
Paths paths_of(const Destinations& destinations, std::uint64_t number) {
  const std::string path = numbered(util::expand_path_pattern(destinations.file_pattern), number);
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
    const Paths paths = paths_of(destinations, snapshot.number);
    if (destinations.text) write_report(paths.text, text_report(snapshot));
    if (destinations.json) write_report(paths.json, json_report(snapshot));
  } catch (...) {
    // No memory for a report: the program ends as it would have without one.
  }
  errno = saved_errno;
}

}  // namespace cupool::report
