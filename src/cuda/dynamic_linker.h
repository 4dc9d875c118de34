// SPDX-License-Identifier: Apache-2.0
// The dynamic linker's own functions. The library exports its own `dlsym`, so cupool's look-ups
// have to name the real one. This header is the only way to it.
#pragma once

extern "C" {
// The next `dlsym` behind ours; null until next_dlsym() has found it. The assembly entry jumps
// through this variable.
extern void* cupool_next_dlsym __attribute__((visibility("hidden")));
}

namespace cupool::cuda {

using DlsymFunction = void* (*)(void* handle, const char* name);

/// The real `dlsym` of libc, found once through `dlvsym`, which nobody interposes. Thread-safe:
/// racing threads find the same value. Never null on glibc.
DlsymFunction real_dlsym();

/// The `dlsym` that the program would call without cupool: libc's, or that of another preloaded
/// library, which has to see the calls as well. Thread-safe. Never null on glibc.
DlsymFunction next_dlsym();

/// The program's handle, whose search order is the program's own, without dlopen(): the C library
/// refuses that in a child forked while another thread loaded a library. Thread-safe.
void* program_handle();

/// The next `dlclose` behind ours. It closes cupool's own handles, since ours checks the libraries
/// afterwards. Thread-safe. Null only if the linker has none.
using CloseFunction = int (*)(void* handle);
CloseFunction real_dlclose();

/// Whether `name` is the very pointer with which next_dlsym() tests whether the other library's
/// look-ups come back to our `dlsym`. If so, that is recorded.
bool is_round_trip(const char* name);

}  // namespace cupool::cuda
