// SPDX-License-Identifier: Apache-2.0
// Asks, before a program is started, whether its loader takes the library. A loader that cannot
// take it ends the program.
#pragma once

#include <string>

#include "cli/shell/child.h"

namespace cupool::cli {

/// Why the preload would end `program` before it starts, as one line; "" if it would not, or if
/// that cannot be told. `library` is cupool's. Programs that ignore a preload (static, 32 bits,
/// set-user-id) are not its concern: programs that they start may need it. Runs the program's
/// loader, as starting the program does.
std::string reason_not_to_preload(const std::string& program, const std::string& library,
                                  const Environment& environment);

/// Whether the files of `program` show a route to CUDA by which cupool serves it. A program that
/// loads CUDA later shows none. Runs nothing.
bool shows_cuda(const std::string& program, const Environment& environment);

}  // namespace cupool::cli
