// SPDX-License-Identifier: Apache-2.0
// The mapping from the driver's functions to cupool's hooks.
#pragma once

#include <cstdint>
#include <string_view>

namespace cupool::entry {

/// Whether `symbol` is exactly the name of a hook. Calls nothing, takes no lock.
bool is_driver_hook(const char* symbol);
bool is_runtime_hook(const char* symbol);

/// Whether a hook is a form of cuGetProcAddress's function `base`.
bool is_hooked_base(std::string_view base);

/// cupool's hook for the driver's function at `real`, found by a look-up of `symbol`; `real` itself
/// if it is not the driver's function of this name, or if cupool is disabled.
void* substitute_symbol(const char* symbol, void* real);

/// cupool's hook for cuGetProcAddress's answer to (base, version, flags), a guard (newer.h), or
/// that answer itself. The address identifies the function; if a driver returns addresses that it
/// does not export, name, version and stream flag do.
void* substitute_query(const char* base, int version, std::uint64_t flags, void* real);

/// Whether `address` is one of cupool's hooks.
bool is_our_entry(const void* address);

}  // namespace cupool::entry
