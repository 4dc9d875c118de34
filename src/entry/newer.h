// Functions of a driver that is newer than this library: nobody here knows what they are given, but
// by their names they are of a kind that the engine has to see. They are given out with a guard in
// front, so that cupool steps aside when the program calls one, and not before: libcudart asks for
// everything that there is.
#pragma once

#include <string_view>

namespace cupool::entry {

/// Whether functions of the name `base` copy, create streams, begin a capture or have the host
/// called, by that name. Calls nothing, takes no lock.
bool is_of_guarded_kind(std::string_view base);

/// Whether the driver's function `symbol`, an exported name, has to be guarded: another version of
/// a hooked function, or one of such a kind that has no hook. Calls nothing, takes no lock.
bool is_newer(const char* symbol);

/// An entry that tells the engine before it goes on to `real`, the driver's function `symbol`, with
/// everything in its place; `real` itself if there are more of them than anyone expected.
/// Thread-safe; the same for the same function.
void* guard_newer(const char* symbol, void* real);

}  // namespace cupool::entry
