// What a report says in a few sentences: the verdict first, then memory, caches, time and trouble.
// Every figure is one of the report or computed from such; what a report cannot know is not said.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// One figure with its name and what it is part of.
struct Tile {
  std::string label;
  std::string value;
  std::string note;
};

struct Story {
  std::string headline;
  std::vector<std::string> sentences;
  std::vector<std::string> troubles;  ///< what the reader should look into
  std::vector<Tile> tiles;
};

/// The story of one process, or of all processes of a job together. Pure.
Story tell(const std::vector<Report>& reports);

/// One column of the table of processes: its name, each process's value, in the order of the
/// reports, as a number and as text.
struct Comparison {
  std::string name;
  std::vector<double> values;
  std::vector<std::string> texts;
  std::vector<bool> is_outlier;
};

/// The rule by which values are called outliers, in a sentence.
extern const char* const kOutlierRule;

/// Marks what the rule calls outliers.
std::vector<bool> find_outliers(const std::vector<double>& values);

/// The processes side by side. Pure.
std::vector<Comparison> compare_processes(const std::vector<Report>& reports);

/// The outliers of `columns` in words, one sentence for each process that has one.
std::vector<std::string> name_outliers(const std::vector<Report>& reports,
                                       const std::vector<Comparison>& columns);

/// The highest the pools of a device reserved, or, without pools, the most that cupool held.
std::uint64_t peak_memory(const DeviceReport& device);

/// Bytes of a gauge, never negative.
std::uint64_t bytes_of(std::int64_t value);

}  // namespace cupool::cli
