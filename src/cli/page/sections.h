// SPDX-License-Identifier: Apache-2.0
// The parts of the page, each as HTML.
#pragma once

#include <string>
#include <vector>

#include "cli/page/charts.h"
#include "cli/page/model.h"

namespace cupool::cli {

/// A part of the page with an entry in its table of contents.
struct Section {
  std::string id;
  std::string title;
  std::string html;
};

/// A table with a heading row and a heading column. Cells are plain text, which this escapes.
/// `sums`: indices of rows to set off. A table of thousands of rows is cut, with a remark.
std::string html_table(const std::string& caption,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& css_class = "",
                       const std::vector<std::size_t>& sums = {});

/// The first screen: headline, tiles, sentences, troubles.
std::string story_section(const std::vector<Report>& reports);

/// A table of several processes with their outliers.
Section processes_section(const std::vector<Report>& reports);

/// All parts of one report; `prefix` makes their ids unique in the page. Charts show the
/// `most_devices` devices with the most allocations; a remark counts the others.
std::vector<Section> sections_of(const Report& report, const std::string& prefix,
                                 std::size_t most_devices, const Scales& scales);

}  // namespace cupool::cli
