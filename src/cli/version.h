// SPDX-License-Identifier: Apache-2.0
// The version of the command.
#pragma once

#include <string>

namespace cupool::cli {

/// "cupool 0.1.0 (commit 1a2b3c4, built for CUDA 13.0)"; without the commit if the sources were not
/// in a git checkout.
std::string version_text();

/// The day of the commit, or of the build if the sources were not in a git checkout: "2026-11-24".
std::string version_date();

}  // namespace cupool::cli
