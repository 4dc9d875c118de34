// SPDX-License-Identifier: Apache-2.0
// What the short and the full text report share: lines and columns, who reports, and what was never
// freed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/verdict.h"
#include "stats/snapshot.h"

namespace cupool::report {

/// Lines of text. Columns throughout, for easy reading.
class Page {
 public:
  void line(const std::string& text) { text_ += text + "\n"; }
  void text(const std::string& lines) { text_ += lines; }
  void blank() { text_ += "\n"; }

  static constexpr std::size_t kFirstWidth = 20;
  static constexpr std::size_t kColumnWidth = 13;
  /// A label and right-aligned cells, without trailing blanks.
  void row(const std::string& label, const std::vector<std::string>& cells,
           std::size_t first_width = kFirstWidth, std::size_t width = kColumnWidth);

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// A negative value is a bug that should show.
std::string signed_text(std::int64_t value, std::string (*format)(std::uint64_t));

/// Text from outside (paths, names) must stay on its line.
std::string one_line(const std::string& text);

/// From the first use of the GPU to the report.
std::uint64_t ran_ns_of(const stats::Snapshot& snapshot);

/// Who reports, and the verdict but for its findings. Returns it.
Verdict add_verdict(Page& page, const stats::Snapshot& snapshot);

/// The call sites with the most bytes; the JSON report has all.
void add_leaks(Page& page, const stats::Leaks& leaks, bool at_exit);

}  // namespace cupool::report
