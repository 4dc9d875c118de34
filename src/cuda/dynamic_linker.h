// The dynamic linker's own functions. The library exports a `dlsym` of its own, so each look-up of
// ours has to name the real one; this header is the only way to it.
#pragma once

extern "C" {
// The real `dlsym` of libc, or null until resolve_dlsym() has found it. The assembly entry jumps
// through this variable.
extern void* cupool_real_dlsym __attribute__((visibility("hidden")));
}

namespace cupool::cuda {

using DlsymFunction = void* (*)(void* handle, const char* name);

/// The real `dlsym`; found once through `dlvsym`, which nobody interposes. Thread-safe: threads
/// that race find the same value. Never null on glibc.
DlsymFunction real_dlsym();

}  // namespace cupool::cuda
