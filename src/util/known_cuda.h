// SPDX-License-Identifier: Apache-2.0
// The newest CUDA release whose driver functions were reviewed. Functions that the engine has to
// see are hooked (src/entry/hooks.def), newer ones guarded (src/entry/newer.h).
#pragma once

namespace cupool::util {

/// As cuDriverGetVersion returns it: 1000 * major + 10 * minor.
inline constexpr int kNewestKnownCuda = 13050;

}  // namespace cupool::util
