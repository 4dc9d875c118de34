// The newest CUDA whose driver functions were looked through for what the engine has to see: such a
// one is hooked by src/entry/hooks.def, or guarded (src/entry/newer.h).
#pragma once

namespace cupool::util {

/// As cuDriverGetVersion says it: 1000 for each major, 10 for each minor.
inline constexpr int kNewestKnownCuda = 13050;

}  // namespace cupool::util
