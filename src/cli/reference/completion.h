// SPDX-License-Identifier: Apache-2.0
// Completion scripts for shells, each complete in itself: they need no other package.
#pragma once

#include <string>

#include "cli/reference/command_table.h"

namespace cupool::cli {

/// The scripts. Pure.
std::string bash_completion(const CommandTable& table);
std::string zsh_completion(const CommandTable& table);
std::string fish_completion(const CommandTable& table);

}  // namespace cupool::cli
