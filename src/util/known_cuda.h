// The newest CUDA of whose driver functions src/entry/hooks.def knows all that the engine has to
// see.
#pragma once

namespace cupool::util {

/// As cuDriverGetVersion says it: 1000 for each major, 10 for each minor.
inline constexpr int kNewestKnownCuda = 13050;

}  // namespace cupool::util
