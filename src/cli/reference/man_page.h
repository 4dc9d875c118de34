// SPDX-License-Identifier: Apache-2.0
// The manual page cupool(1), in the man(7) macros, which every man reads.
#pragma once

#include <string>

#include "cli/reference/command_table.h"

namespace cupool::cli {

/// The page. `date` (2026-11-24) and `version` (cupool 0.1.0) stand in its head and foot. Pure.
std::string man_page(const CommandTable& table, const std::string& date,
                     const std::string& version);

}  // namespace cupool::cli
