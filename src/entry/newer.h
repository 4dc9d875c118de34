// SPDX-License-Identifier: Apache-2.0
// Functions of a driver newer than this library: their parameters are unknown, but their names say
// that the engine has to see them. Look-ups return them behind a guard, so that cupool steps aside
// when the program calls one. Not at the look-up: libcudart looks up every function.
#pragma once

#include <string_view>

namespace cupool::entry {

/// Whether the name `base` says that the function submits work, creates streams, begins a capture
/// or calls the host. Calls nothing, takes no lock.
bool is_of_guarded_kind(std::string_view base);

/// Whether the driver's exported function `symbol` needs a guard: another version of a hooked
/// function, or one of such a kind without a hook. Calls nothing, takes no lock.
bool is_newer(const char* symbol);

/// An entry that notifies the engine and continues to `real`, the driver's function `symbol`, with
/// all arguments in place; `real` itself if no entry is left. Thread-safe; the same entry for the
/// same function.
void* guard_newer(const char* symbol, void* real);

}  // namespace cupool::entry
