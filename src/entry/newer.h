// Functions of a driver that is newer than this library: nobody here knows what they are given, but
// by their names they are of a kind that the engine has to see. They are given out with a guard in
// front, so that cupool steps aside when the program calls one, and not before: libcudart asks for
// everything that there is.
#pragma once

namespace cupool::entry {

/// Whether the driver's function `symbol` is of such a kind and has no hook: another version of a
/// hooked function, or a new one that by its name copies, creates streams, begins a capture or has
/// the host called. Exported and base names alike. Calls nothing, takes no lock.
bool is_newer(const char* symbol);

/// An entry that tells the engine before it goes on to `real`, the driver's function `symbol`, with
/// everything in its place; `real` itself if there are more of them than anyone expected.
/// Thread-safe; the same for the same function.
void* guard_newer(const char* symbol, void* real);

}  // namespace cupool::entry
