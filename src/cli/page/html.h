// SPDX-License-Identifier: Apache-2.0
// The HTML page of one report or of a job's reports: one file without scripts or network access.
#pragma once

#include <string>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

/// The page of `reports`, which is not empty. Pure: equal reports give equal pages.
std::string html_page(const std::vector<Report>& reports);

/// page.html: the frame of the page, with {{marks}} for the content.
extern const char* const kPageTemplate;

/// Replaces each {{name}} of `page` by its value. Throws std::logic_error for a name without value.
std::string fill_template(const std::string& page,
                          const std::vector<std::pair<std::string, std::string>>& values);

}  // namespace cupool::cli
