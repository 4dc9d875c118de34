// Writing reports: a whole buffer at once, never waiting for what may not come, never fatal.
#include "report/write.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "report/csv.h"
#include "report/json.h"
#include "report/prometheus.h"
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

// A whole new file in the place of the old one, as who reads it at any time needs it. What is no
// file (a terminal, a FIFO) is written to, not replaced.
bool replace_file(const std::string& path, const std::string& report) {
  struct stat present {};
  if (::stat(path.c_str(), &present) == 0 && !S_ISREG(present.st_mode)) {
    return write_file(path, report);
  }
  const std::string half = path + "." + std::to_string(::getpid()) + ".tmp";
  if (write_file(half, report) && ::rename(half.c_str(), path.c_str()) == 0) return true;
  const int cause = errno;
  ::unlink(half.c_str());
  errno = cause;
  return false;
}

void write_report(const std::string& path, const std::string& report,
                  bool (*write)(const std::string&, const std::string&)) {
  if (!path.empty()) {
    if (write(path, report)) return;
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

struct Format {
  const char* extension;  ///< says this format; null: of none
  const char* added;      ///< what its own file's name ends with
  std::string (*render)(const stats::Snapshot&);
};
constexpr Format kText{nullptr, ".txt", text_report};
constexpr Format kJson{".json", ".json", json_report};
constexpr Format kCsv{".csv", ".csv", csv_report};
constexpr Format kPrometheus{".prom", ".prom", prometheus_report};

bool named_by(const Format& format, const std::string& path) {
  if (format.extension == nullptr) return false;
  const std::string_view extension = format.extension;
  return path.size() > extension.size() &&
         path.compare(path.size() - extension.size(), extension.size(), extension) == 0;
}

using Formats = std::vector<const Format*>;

Formats formats_of(const Destinations& destinations) {
  Formats formats;
  if (destinations.text) formats.push_back(&kText);
  if (destinations.json) formats.push_back(&kJson);
  if (destinations.csv) formats.push_back(&kCsv);
  if (destinations.prometheus) formats.push_back(&kPrometheus);
  return formats;
}

// The file of one of several formats; see Destinations.
std::string path_of(const Format& format, const Formats& formats, const std::string& path) {
  if (path.empty() || formats.size() == 1 || named_by(format, path)) return path;
  for (const Format* other : formats) {
    if (!named_by(*other, path)) continue;
    return path.substr(0, path.size() - std::strlen(other->extension)) + format.added;
  }
  return &format == &kText ? path : path + format.added;
}

void write_format(const Format& format, const Formats& formats, const std::string& path,
                  const stats::Snapshot& snapshot) {
  const std::string report = format.render(snapshot);
  if (&format == &kPrometheus) {
    write_report(path_of(format, formats, path), report, replace_file);
  } else {
    write_report(path_of(format, formats, numbered(path, snapshot.number)), report, write_file);
  }
}

}  // namespace

bool write_report_to(const std::string& path, const stats::Snapshot& snapshot) {
  if (named_by(kJson, path)) return write_file(path, json_report(snapshot));
  if (named_by(kCsv, path)) return write_file(path, csv_report(snapshot));
  if (named_by(kPrometheus, path)) return replace_file(path, prometheus_report(snapshot));
  return write_file(path, text_report(snapshot));
}

void write_reports(const stats::Snapshot& snapshot, const Destinations& destinations) noexcept {
  const int saved_errno = errno;
  try {
    const std::string path =
        util::expand_path_pattern(destinations.file_pattern, snapshot.process.start_wall_ns);
    const Formats formats = formats_of(destinations);
    for (const Format* format : formats) {
      if (destinations.only_prometheus && format != &kPrometheus) continue;
      write_format(*format, formats, path, snapshot);
    }
  } catch (...) {
    // No memory for a report: the program ends as it would have without one.
  }
  errno = saved_errno;
}

}  // namespace cupool::report
