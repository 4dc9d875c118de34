// The dynamic linker's own functions. The library exports a `dlsym` of its own, so each look-up of
// ours has to name the real one; this header is the only way to it.
#pragma once

extern "C" {
// The `dlsym` that stands behind ours, or null until next_dlsym() has found it. The assembly entry
// jumps through this variable.
extern void* cupool_next_dlsym __attribute__((visibility("hidden")));
}

namespace cupool::cuda {

using DlsymFunction = void* (*)(void* handle, const char* name);

/// The real `dlsym` of libc; found once through `dlvsym`, which nobody interposes. Thread-safe:
/// threads that race find the same value. Never null on glibc.
DlsymFunction real_dlsym();

/// The `dlsym` that the program would call without us: libc's, or that of another preloaded library
/// behind us, which is to see the calls as well. Thread-safe. Never null on glibc.
DlsymFunction next_dlsym();

/// Whether `name` is the very text by which next_dlsym() tries whether the other library's look-ups
/// come back to our `dlsym`; if so, this is noted.
bool is_round_trip(const char* name);

}  // namespace cupool::cuda
