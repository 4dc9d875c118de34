// SPDX-License-Identifier: Apache-2.0
// A report in a few sentences: the verdict first, then memory, caches, time and trouble. Every
// figure is in the report or derived from it; nothing is guessed.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// One figure with its name, and a note on the whole it is part of.
struct Tile {
  std::string label;
  std::string value;
  std::string note;
};

struct Story {
  std::string headline;
  std::vector<std::string> sentences;
  std::vector<std::string> troubles;  ///< findings to look into
  std::vector<Tile> tiles;
};

/// The story of one process, or of a job's processes together. Pure.
Story tell(const std::vector<Report>& reports);

/// One column of the table of processes. Values are in the order of the reports.
struct Comparison {
  std::string name;
  std::vector<double> values;
  std::vector<std::string> texts;
  std::vector<bool> is_outlier;
};

/// The definition of an outlier, in a sentence.
extern const char* const kOutlierRule;

/// Marks the outliers among `values`.
std::vector<bool> find_outliers(const std::vector<double>& values);

/// The columns of the table of processes. Pure.
std::vector<Comparison> compare_processes(const std::vector<Report>& reports);

/// The outliers of `columns`, one sentence per process that has any.
std::vector<std::string> name_outliers(const std::vector<Report>& reports,
                                       const std::vector<Comparison>& columns);

/// The larger of two peaks of a device: memory reserved by its pools, and memory held by cupool.
std::uint64_t peak_memory(const DeviceReport& device);

/// The bytes of a gauge; 0 if negative.
std::uint64_t bytes_of(std::int64_t value);

}  // namespace cupool::cli
