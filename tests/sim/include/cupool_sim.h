// SPDX-License-Identifier: Apache-2.0
// Test controls of the simulated device: what a test may ask of the substitute libcuda.so.1 beyond
// CUDA itself. Tests that must also run on a real driver look these up with dlsym and do without.
#ifndef CUPOOL_SIM_H
#define CUPOOL_SIM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Number of calls of the exported driver function `symbol` (exact name, for example
/// "cuMemAlloc_v2") so far in this process; 0 for an unknown name.
unsigned long long cupoolSimCalls(const char* symbol);

/// Replaces the fault injection rules (same syntax as CUPOOL_SIM_FAIL; "" removes them all).
void cupoolSimFail(const char* rules);

/// Changes one setting while running: "mode" (late, early, timed), "polls", "judge" (0, 1, report),
/// "late_refusals" (0, 1), "deadlock_ms" (0 = never), "deadlock_watch" (1, for good: a thread looks
/// for circles in which nobody waits in the driver), "context_event_forgets" (non_blocking,
/// per_thread, destroyed, or "" for none: cuCtxRecordEvent made wrong on purpose). Returns 0, or -1
/// for an unknown name or value.
int cupoolSimSet(const char* name, const char* value);

/// Tells the judge that [ptr, ptr+size) belongs to `owner` from now on (any non-zero number), or
/// to nobody (0). Tests call it after their malloc returned and before their free is called.
void cupoolSimOwner(const void* ptr, size_t size, unsigned long long owner);

/// Tells the judge that the host now reads (write = 0) or writes (write = 1) this memory.
void cupoolSimHostAccess(const void* ptr, size_t size, int write);

/// Number of complaints of the judge so far. With CUPOOL_SIM_JUDGE=1 the first one aborts the
/// process; with CUPOOL_SIM_JUDGE=report they are counted and printed only.
unsigned long long cupoolSimComplaints(void);

/// The text of the latest complaint, "" if there was none. Valid until the next complaint.
const char* cupoolSimLastComplaint(void);

/// The sticky error of a context (a CUcontext; null: the calling thread's current one), 0 while it
/// is healthy, -1 if there is none. It stays until the context is reset or destroyed: a call that
/// began while it was set must answer it, one that ended while it was not must not.
int cupoolSimSticky(void* context);

/// Number of operations submitted to the device and not yet executed.
unsigned long long cupoolSimPending(void);

/// Number of calls so far that return later than others see their work (CUPOOL_SIM_RETURN_MS). A
/// call counts as soon as its work is seen, before it returns.
unsigned long long cupoolSimLateReturns(void);

/// Number of captures that were invalidated so far in this process.
unsigned long long cupoolSimInvalidatedCaptures(void);

/// Tells that the calling thread now makes the program's own call of the exported function `symbol`
/// (exact name), or with null that it has returned: then the result is the number of captures that
/// this call has invalidated, which is the program's own doing. What a library between program and
/// driver calls meanwhile has another name.
unsigned cupoolSimProgramCall(const char* symbol);

/// Number of captures that were invalidated so far by a call that no cupoolSimProgramCall() had
/// named, and in words which call did it to the latest ("" if there was none).
unsigned long long cupoolSimCapturesInvalidatedByOthers(void);
const char* cupoolSimLastInvalidatedByOthers(void);

#ifdef __cplusplus
}
#endif

#endif
