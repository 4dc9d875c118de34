// SPDX-License-Identifier: Apache-2.0
// The table of options as text and as Markdown (docs/options.md). Both walk config::rows(), so
// they match the library.
#pragma once

#include <string>

#include "config/settings.h"

namespace cupool::cli {

/// The command-line option of a row: "--free-mode" for CUPOOL_FREE_MODE.
std::string flag_of(const config::Row& row);

/// The option called `name` (CUPOOL_FREE_MODE, free-mode or --free-mode, in any case), or null.
const config::Row* find_row(const std::string& name);

/// For a name that no option has: ". Did you mean CUPOOL_FREE_MODE?", or where to find all. The
/// answer is a variable if `name` is one, or if `as_variable`; else free-mode.
std::string nearest_option(const std::string& name, bool as_variable);

/// All options by section, for a terminal.
std::string options_as_text();
/// One option in full.
std::string option_as_text(const config::Row& row);
/// One table per section, as in docs/options.md.
std::string options_as_markdown();

}  // namespace cupool::cli
