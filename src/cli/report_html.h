// The HTML page of one report or of all reports of a job: one file that needs nothing else, no
// network and no script.
#pragma once

#include <string>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

/// The page. `reports` is not empty. Pure: the same reports give the same page.
std::string html_page(const std::vector<Report>& reports);

/// The page's frame, with {{marks}} where the content goes; from report_page.html.
extern const char* const kPageTemplate;

/// Puts `values` into the places of `page` that are marked {{name}}; each mark has to have a value.
std::string fill_template(const std::string& page,
                          const std::vector<std::pair<std::string, std::string>>& values);

}  // namespace cupool::cli
