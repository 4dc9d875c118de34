// Sends the reports of a snapshot to where the user wants them: files or standard error.
// Trouble with a destination is warned of once and never the program's: the report then goes to
// standard error.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// Which reports, and where to. `file_pattern` is expanded by util/path_pattern.h, %t being the
/// time when the process began to use the GPU, so that all reports of a process have one name;
/// empty means standard error. Several formats never share a file: the one that the name's
/// extension (.json, .csv, .prom) says has the name, and the others get theirs in its place
/// (`run.json`, `run.txt`); where the extension says none, text has the name and the others get
/// theirs appended
/// (`run.log.json`). A snapshot of the running process has its number in the name: `run.1.log`; but
/// not for Prometheus, whose file always holds the newest figures.
struct Destinations {
  bool text = true;
  bool json = false;
  std::string file_pattern;
  bool csv = false;
  bool prometheus = false;
  bool only_prometheus = false;  ///< this time the others are not written, but keep their names
};

/// Writes the reports. A file is created or replaced (mode 0666 less umask), that of Prometheus by
/// renaming, so that its collector never reads half of one; standard error gets each report by one
/// buffer, so that those of several ranks do not mix. Keeps errno. Thread-safe. Never throws, never
/// fails: a destination that fails is warned of and replaced.
void write_reports(const stats::Snapshot& snapshot, const Destinations& destinations) noexcept;

/// Writes one report to the file of this name, in the format that its ending says (.json, .csv,
/// .prom; any other: text). False, with errno, if it cannot be written. Throws only std::bad_alloc.
bool write_report_to(const std::string& path, const stats::Snapshot& snapshot);

}  // namespace cupool::report
