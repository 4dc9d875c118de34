// SPDX-License-Identifier: Apache-2.0
// What runs of a program without and with cupool have in common, part by part: exit code, output,
// files.
#pragma once

#include <string>
#include <vector>

#include "cli/trial/trials.h"

namespace cupool::cli {

/// The compared parts of a run.
struct Outcome {
  std::string ending;  ///< "0", "signal 9"
  Text output;         ///< without what is ignored
  std::vector<FileState> files;
};

enum class Likeness {
  same,       ///< equal in all runs
  different,  ///< equal in all runs without cupool, and another with it
  unsteady,   ///< differs between runs without cupool: it tells nothing of cupool
  unjudged,   ///< differs, but one run without cupool cannot show that it is steady
  unwritten,  ///< a file that no run wrote
};

/// One part, as it was in either way.
struct ComparedPart {
  std::string name;
  std::string without;  ///< for the table: "67 bytes"
  std::string with;
  Likeness likeness = Likeness::same;
};

/// Exit code, standard output, then the files, in this order. `without` and `with` are not empty.
std::vector<ComparedPart> compare_outcomes(const std::vector<Outcome>& without,
                                           const std::vector<Outcome>& with,
                                           const std::vector<std::string>& files);

/// The names of the parts that are `likeness`: "standard output and result.txt"; "" if none is.
std::string names_of(const std::vector<ComparedPart>& parts, Likeness likeness);

/// The first line in which two texts differ, under the names of their runs. Lines end in '\n'.
std::string first_difference(const std::string& a, const std::string& b, const std::string& name_a,
                             const std::string& name_b);

/// "1.22 times as fast", "1.22 times slower", "as fast".
std::string speed_words(const Spread& without, const Spread& with);

/// Runs each way below which a difference of times proves little.
inline constexpr std::size_t kFewRuns = 3;

/// Whether that can be relied on: "faster in every run: 1.22 times as fast".
std::string speed_sentence(const Spread& without, const Spread& with, std::size_t runs);

}  // namespace cupool::cli
