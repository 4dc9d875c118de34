// Running one program several times in different ways and looking at what it left: for `compare`
// and `tune`, which alternate the ways, so that a machine that warms up favours none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/child.h"
#include "cli/report_model.h"
#include "cli/terminal.h"

namespace cupool::cli {

/// A folder for files of this command, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder();  ///< throws UsageError where none can be made
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// One way to run the program.
struct Way {
  std::string name;  ///< "without cupool"
  Environment environment;
};

/// A file after a run.
struct FileState {
  bool exists = false;
  std::string content;
};

/// One run.
struct Trial {
  ChildEnd end;
  std::string output;            ///< standard output
  std::string errors;            ///< standard error
  std::vector<FileState> files;  ///< those that were named, in their order
  std::vector<Report> reports;   ///< those of cupool
};

/// The program in one of the ways, its standard input empty. Reports of cupool go to `scratch`.
/// Throws UsageError for what this command cannot do itself.
Trial run_trial(const std::vector<std::string>& program, const Way& way,
                const std::vector<std::string>& files, const ScratchFolder& scratch);

/// `rounds` runs of each way, in turn: a, b, b, a, ... Stops after a run that was interrupted, or
/// that could not be started: see interrupted_end(). [way][round].
std::vector<std::vector<Trial>> alternate(const std::vector<std::string>& program,
                                          const std::vector<Way>& ways, int rounds,
                                          const std::vector<std::string>& files);

/// The end of a run after which no other makes sense, or null: not started, or ended by INT, TERM
/// or HUP.
const ChildEnd* interrupted_end(const std::vector<std::vector<Trial>>& trials);

/// The environment of this process without cupool: its library out of LD_PRELOAD, no CUPOOL_MODE.
Environment environment_without();

/// With cupool, its settings, and JSON reports for run_trial to find.
Environment environment_with(const std::vector<std::pair<std::string, std::string>>& variables);

/// Middle, lowest and highest of some measurements.
struct Spread {
  double median = 0;
  double lowest = 0;
  double highest = 0;
};
Spread spread_of(std::vector<double> values);
Spread wall_time(const std::vector<Trial>& trials);

/// "12.3 ms (11.9 ms to 14.0 ms)".
std::string spread_text(const Spread& nanoseconds);

/// The most of a gauge or of the pools, of any device, in the reports of some trials.
std::uint64_t highest_gauge(const std::vector<Trial>& trials, const std::string& gauge);
std::uint64_t highest_held(const std::vector<Trial>& trials);

}  // namespace cupool::cli
