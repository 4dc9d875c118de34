// SPDX-License-Identifier: Apache-2.0
// Writes the reports of a snapshot to the user's destinations: files or standard error. If a
// destination fails, there is one warning, and the report goes to standard error. The program is
// not affected.
#pragma once

#include <string>

#include "stats/snapshot.h"

namespace cupool::report {

/// Formats and destination of reports. `file_pattern` is expanded by util/path_pattern.h; %t is the
/// time of the process's first use of the GPU, the same in all its reports. An empty pattern means
/// standard error. Ranks other than 0 add theirs to a name that does not tell ranks apart
/// (util::own_path). Each of several formats has its own file. If the name's extension (.json,
/// .csv, .prom) means a format, that format has the name. The others replace the extension
/// (`run.json`, `run.txt`). Otherwise text has the name and the others append theirs
/// (`run.log.json`). A snapshot of the running process has its number in the name (`run.1.log`),
/// except for Prometheus, whose file always has the latest figures.
struct Destinations {
  bool text = true;
  bool json = false;
  std::string file_pattern;
  bool csv = false;
  bool prometheus = false;
  /// Of the text report at exit, ranks other than 0 write one line to standard error.
  bool one_line_of_ranks = false;
  bool full_text = false;        ///< every figure, not only the verdict and what it is judged by
  bool only_prometheus = false;  ///< write only this format; the file names stay the same
  bool only_files = false;       ///< a report whose file cannot be written is dropped silently
};

/// Writes the reports. A file is created or replaced atomically (util/place_file.h, which has the
/// exceptions): nobody reads a partial report. Of several processes that write one file, the last
/// wins. It warns if it replaces a file written since it began to use the GPU. Standard error gets
/// each report in one buffer, so that several ranks do not mix. Preserves errno. Thread-safe. Never
/// throws, never fails: a failed destination gives a warning and is replaced.
void write_reports(const stats::Snapshot& snapshot, const Destinations& destinations) noexcept;

/// Writes one report to the file of this name, in the format of its extension (.json, .csv, .prom;
/// any other: text with every figure). False, with errno, on failure. Throws only std::bad_alloc.
bool write_report_to(const std::string& path, const stats::Snapshot& snapshot);

}  // namespace cupool::report
