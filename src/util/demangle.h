// SPDX-License-Identifier: Apache-2.0
// Names of C++ functions as people write them.
#pragma once

#include <string>

namespace cupool::util {

/// The name of a symbol, without its encoding; any other text as it is. Uses the heap.
std::string demangled(const std::string& symbol);

}  // namespace cupool::util
