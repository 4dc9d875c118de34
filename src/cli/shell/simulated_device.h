// SPDX-License-Identifier: Apache-2.0
// How the simulated device of tests/sim shows, by its name alone.
#pragma once

namespace cupool::cli {

/// The name that its driver tells (tests/sim/driver/api_init.cpp).
inline constexpr char kSimulatedDevice[] = "cupool simulated device";

/// What is to be said of times that were measured there.
inline constexpr char kSimulatedTimes[] =
    "On cupool's simulated device: times say nothing of a GPU.";

}  // namespace cupool::cli
