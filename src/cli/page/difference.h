// SPDX-License-Identifier: Apache-2.0
// What changed between two runs, each of one report or of a job's: settings, times, calls, waits,
// memory, leaks. Small changes are noise, by thresholds that are stated beside the result.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// A figure or setting that differs, as text; `change` is "" where a share says nothing.
struct Change {
  std::string name;
  std::string before;
  std::string after;
  std::string change;
};

struct ChangeGroup {
  std::string title;
  std::vector<Change> changes;
  std::size_t left_out = 0;  ///< changes that only the last row counts
};

struct Difference {
  std::string headline;
  std::vector<std::string> notes;   ///< what makes the runs hard to compare
  std::vector<ChangeGroup> groups;  ///< those with a change
};

/// The thresholds of noise, in a sentence.
extern const char* const kNoiseRule;

/// What changed from `before` to `after`, neither of them empty; sums over devices and processes.
/// Pure.
Difference difference_of(const std::vector<Report>& before, const std::vector<Report>& after);

/// The difference for a terminal: printable characters only.
std::string difference_text(const Difference& difference);

/// The difference as a page, with charts of the largest process of each run on one scale.
std::string difference_page(const std::vector<Report>& before, const std::vector<Report>& after);

}  // namespace cupool::cli
