// The table of options for readers: text, Markdown (the README's table) and JSON.
// All three walk config::rows(), so none can tell of an option that the library does not have.
#pragma once

#include <string>

#include "config/settings.h"

namespace cupool::cli {

/// CUPOOL_FREE_MODE as an option of the command: "--free-mode".
std::string flag_of(const config::Row& row);

/// The option called `name` (CUPOOL_FREE_MODE, free-mode or --free-mode, in any case), or null.
const config::Row* find_row(const std::string& name);

/// Grouped, for a terminal.
std::string options_as_text();
/// One option with everything that is known of it.
std::string option_as_text(const config::Row& row);
/// One table for each section, as in the README.
std::string options_as_markdown();

}  // namespace cupool::cli
