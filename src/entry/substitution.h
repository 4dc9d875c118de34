// Which of our entries stands for which function of the driver.
#pragma once

#include <cstdint>
#include <string_view>

namespace cupool::entry {

/// Whether `symbol` is exactly the name of a hook. Calls nothing, takes no lock.
bool is_driver_hook(const char* symbol);
bool is_runtime_hook(const char* symbol);

/// Whether a hook is a form of the function that cuGetProcAddress knows under the name `base`.
bool is_hooked_base(std::string_view base);

/// Our entry for the driver's function at `real`, which a look-up of `symbol` has found; `real`
/// itself if that is not the driver's function of this name, or if cupool is switched off.
void* substitute_symbol(const char* symbol, void* real);

/// Our entry for what cuGetProcAddress answered to (base, version, flags), a guard (newer.h), or
/// that answer itself. The function is known by its address; where a driver gives out others than
/// it exports, by name, version and stream flag.
void* substitute_query(const char* base, int version, std::uint64_t flags, void* real);

/// Whether `address` is one of our own entries.
bool is_our_entry(const void* address);

}  // namespace cupool::entry
