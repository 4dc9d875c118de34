// The parts of the page, each as HTML.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// A part that the page's contents name.
struct Section {
  std::string id;
  std::string title;
  std::string html;
};

/// A table: the first row is the heading, the first column names the rows. Cells are plain text;
/// `sums` are rows to be set off. Escapes everything.
std::string html_table(const std::string& caption,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& css_class = "",
                       const std::vector<std::size_t>& sums = {});

/// The first screen.
std::string story_section(const std::vector<Report>& reports);

/// The processes side by side, for several reports.
Section processes_section(const std::vector<Report>& reports);

/// All parts of one report; `prefix` makes their ids unique in the page.
std::vector<Section> sections_of(const Report& report, const std::string& prefix);

}  // namespace cupool::cli
