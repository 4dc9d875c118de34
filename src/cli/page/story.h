// SPDX-License-Identifier: Apache-2.0
// A report in a few sentences: the verdict first, then memory, caches, time and trouble. Every
// figure is in the report or derived from it; nothing is guessed.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"
#include "report/verdict.h"

namespace cupool::cli {

/// One figure with its name, and a note on the whole it is part of.
struct Tile {
  std::string label;
  std::string value;
  std::string note;
};

struct Story {
  std::string headline;     ///< what is no longer spent (report/verdict)
  report::Verdict verdict;  ///< of runs under cupool; empty lines otherwise
  std::vector<std::string> sentences;
  std::vector<std::string> troubles;  ///< findings to look into
  std::vector<Tile> tiles;
};

/// Sentences if the processes are not of one program, or not of one version of cupool. Pure.
std::vector<std::string> differences_in_words(const std::vector<Report>& reports);

/// The story of one process, or of a job's processes together. Pure.
Story tell(const std::vector<Report>& reports);

/// The modes that are not as requested, with the reason: one sentence for processes alike. Pure.
std::vector<std::string> modes_in_words(const std::vector<Report>& reports);

/// A sentence if the launcher started more ranks than there are reports, else "". Pure.
std::string missing_ranks_in_words(const std::vector<Report>& reports);

/// One column of the table of processes. Values are in the order of the reports.
struct Comparison {
  std::string name;
  std::vector<double> values;  ///< negative: the process has none
  std::vector<std::string> texts;
  std::vector<bool> is_outlier;
  std::string (*format)(std::uint64_t) = nullptr;  ///< of a value
};

/// The processes with a row in tables; beyond, outliers have one, and the rest is a distribution.
inline constexpr std::size_t kMostRowsOfProcesses = 64;

/// The processes that have a row: all, or at most kMostRowsOfProcesses outliers.
std::vector<std::size_t> processes_with_rows(const std::vector<Comparison>& columns);

/// A row of the distribution of all processes: "median" and the texts of each column.
struct DistributionRow {
  std::string name;
  std::vector<std::string> texts;
};

/// Lowest, quartiles and highest of each column.
std::vector<DistributionRow> distribution_of(const std::vector<Comparison>& columns);

/// The definition of an outlier, in a sentence.
extern const char* const kOutlierRule;

/// Marks the outliers among `values`, of which there have to be three; negative ones are none.
std::vector<bool> find_outliers(const std::vector<double>& values);

/// The processes' names in tables: name_of(), and the program where programs differ. Pure.
std::vector<std::string> names_in_tables(const std::vector<Report>& reports);

/// The columns of the table of processes that any of them has a value in. Processes that only
/// observed are compared with one another. Pure.
std::vector<Comparison> compare_processes(const std::vector<Report>& reports);

/// The outliers of `columns`, one sentence per process that has any; at most kMostRowsOfProcesses,
/// and the number of the others.
std::vector<std::string> name_outliers(const std::vector<Report>& reports,
                                       const std::vector<Comparison>& columns);

/// A figure of an observed run by its key; 0 of other runs.
std::uint64_t observed_figure(const Report& report, const char* key);

/// The peak of a device's memory: report::peak_bytes.
std::uint64_t peak_memory(const DeviceReport& device);

/// The bytes of a gauge; 0 if negative.
std::uint64_t bytes_of(std::int64_t value);

}  // namespace cupool::cli
