// SPDX-License-Identifier: Apache-2.0
// Repeated runs of one program in different ways, for `compare`, `tune` and `replay`. Runs
// alternate between the ways, so that a machine that warms up favours none.
#pragma once

#include <signal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/page/model.h"
#include "cli/shell/child.h"
#include "cli/trial/run_progress.h"

namespace cupool::cli {

/// A temporary folder, removed with its content. What was printed before is written out first: a
/// reader that has gone ends the command before the folder is there. While it is there, such a
/// reader (`2>&1 | head`) does not end the command, which would leave the folder behind.
class ScratchFolder {
 public:
  ScratchFolder();  ///< throws UsageError if it cannot be created
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  struct sigaction before_ {};  ///< of SIGPIPE
};

/// One way to run the program.
struct Way {
  std::string name;  ///< "without cupool"
  Environment environment;
};

/// What a run left behind; equal texts of several runs are one.
using Text = std::shared_ptr<const std::string>;

/// The state of a file after a run.
struct FileState {
  bool exists = false;
  Text content;  ///< null: the run did not write it
};

/// One run.
struct Trial {
  ChildEnd end;
  Text output;                   ///< standard output
  std::string errors;            ///< the end of standard error
  std::vector<FileState> files;  ///< the given files, in their order
  std::vector<Report> reports;   ///< cupool's reports
};

/// Throws UsageError for a file that is there and that no run can write as a result: a folder, a
/// device.
void require_regular(const std::vector<std::string>& files);

/// Runs the program in one way with an empty standard input. cupool's reports go to `scratch`;
/// those of processes that an earlier run left behind are dropped. Throws UsageError if the command
/// itself fails, not if the program does. `progress` shows this run, as the next one.
Trial run_trial(const std::vector<std::string>& program, const Way& way,
                const std::vector<std::string>& files, const ScratchFolder& scratch,
                RunProgress* progress);

/// The names of the ways, in their order.
std::vector<std::string> names_of(const std::vector<Way>& ways);

/// `rounds` runs of each way, in turn: a, b, b, a, ... Stops after a run that was interrupted or
/// could not be started (see interrupted_end). Indices of the result: way, round.
std::vector<std::vector<Trial>> alternate(const std::vector<std::string>& program,
                                          const std::vector<Way>& ways, int rounds,
                                          const std::vector<std::string>& files);

/// The end of a run that rules out further runs, or null: the program was not started, or ended by
/// INT, TERM or HUP.
const ChildEnd* interrupted_end(const std::vector<std::vector<Trial>>& trials);

/// hand_on() of that end, with a line about the runs that are missing.
int hand_on_interrupted(const ChildEnd& end);

/// This process's environment without cupool: LD_PRELOAD without its library, no CUPOOL_MODE.
Environment environment_without();

/// This process's environment with cupool, `variables`, and JSON reports for run_trial. Bad
/// settings of the environment are told on standard error.
Environment environment_with(const std::vector<std::pair<std::string, std::string>>& variables);

/// Median, minimum and maximum of some measurements.
struct Spread {
  double median = 0;
  double lowest = 0;
  double highest = 0;
};
Spread spread_of(std::vector<double> values);
Spread wall_time(const std::vector<Trial>& trials);

/// "12.3 ms (11.9 ms to 14.0 ms)".
std::string spread_text(const Spread& nanoseconds);

/// The highest peak of any device in the reports of `trials`: of a gauge, or of its memory
/// (peak_memory).
std::uint64_t highest_gauge(const std::vector<Trial>& trials, const std::string& gauge);
std::uint64_t highest_memory(const std::vector<Trial>& trials);

/// Whether cupool held device memory in one of `trials`.
bool held_memory(const std::vector<Trial>& trials);

/// Whether cupool served page-locked or stream-ordered memory in one of `trials`.
bool served_other_kinds(const std::vector<Trial>& trials);
/// Whether the program used cudaMallocAsync, and the default pools' memory was kept for it.
bool kept_default_pool(const std::vector<Trial>& trials);

/// Says on standard output if `trials` had the simulated device.
void tell_simulated(const std::vector<Trial>& trials);

/// Why there is no report of a program that ended like this, and what to do.
std::string no_report_in_words(const ChildEnd& end, const std::vector<std::string>& program);

}  // namespace cupool::cli
