// SPDX-License-Identifier: Apache-2.0
/* The C interface of cupool for the program itself: figures, a report, and the return of idle
 * memory.
 *
 * All functions are weak: the program links without the library and runs without cupool, where they
 * are null. Test before calling:
 *
 *     if (cupool_trim) cupool_trim(-1, NULL);
 *
 * This works in position-independent code, the compilers' default (with -no-pie, some
 * linkers need -z dynamic-undefined-weak). Everything here is plain C, usable from C89 and C++. Any
 * thread may call it at any time, except in a signal handler. It never throws, and changes neither
 * the thread's current context nor its last CUDA error. It is not fast: keep it out of inner loops.
 */
#ifndef CUPOOL_CUPOOL_H
#define CUPOOL_CUPOOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results. Negative: the call had no effect. */
enum {
  CUPOOL_OK = 0,
  CUPOOL_INVALID_ARGUMENT = -1, /* a null pointer, a size that is too small, an unknown device */
  CUPOOL_NOT_RUNNING = -2,      /* no allocation yet, CUPOOL_ENABLE=0, a forked child, or the driver
                                   has shut down */
  CUPOOL_FAILED = -3            /* the file could not be written (see errno), or no memory */
};

/* The figures of one device; docs/statistics.md explains each. Later versions may add fields at the
 * end: `size` tells both sides which ones exist. */
typedef struct cupool_figures { /* NOLINT(modernize-use-using): a header for C */
  uint64_t size; /* before the call: sizeof(cupool_figures); after it: the bytes filled in */
  uint64_t application_bytes;   /* requested by the program and not freed */
  uint64_t rounding_bytes;      /* capacity of its blocks beyond the request */
  uint64_t retired_bytes;       /* freed, but the GPU may still use it */
  uint64_t cached_bytes;        /* idle, ready for the next allocation */
  uint64_t held_bytes;          /* the sum of the four */
  uint64_t passthrough_bytes;   /* live memory of the real cuMemAlloc */
  uint64_t pool_reserved_bytes; /* of the driver's pool; 0 without one */
  uint64_t pool_used_bytes;     /* the part of it in blocks; 0 without one */
  uint64_t application_peak_bytes;
  uint64_t held_peak_bytes;
  uint64_t malloc_calls_total;
  uint64_t malloc_failed_total;
  uint64_t free_calls_total;
  uint64_t free_waits_total;   /* frees that waited for the GPU */
  uint64_t free_wait_ns_total; /* their total wait, in nanoseconds */
  uint64_t growth_bytes_total; /* fresh memory from the backend */
  uint64_t oom_rescues_total;  /* out-of-memory errors averted */
} cupool_figures;

/* The version of the library: "0.1.0". Static storage. Cannot fail. */
__attribute__((weak)) const char* cupool_version(void);

/* Fills in the current figures of a device (the driver's ordinal). If other threads allocate at the
 * same time, figures may differ by the calls in progress.
 * CUPOOL_INVALID_ARGUMENT: `figures` is null, its size is below 16, or the device was not used;
 * CUPOOL_NOT_RUNNING. */
__attribute__((weak)) int cupool_snapshot(int device, cupool_figures* figures);

/* Writes a report now, like the one at exit. With a path: in the format of its extension (.json,
 * .csv, .prom; any other: text), with the % letters of CUPOOL_STATS_FILE, where %t is the time of
 * this call. With null: as CUPOOL_STATS_SIGNAL does, in the formats of CUPOOL_STATS, numbered, to
 * CUPOOL_STATS_FILE or standard error. The report at exit is written as usual.
 * CUPOOL_INVALID_ARGUMENT: null with CUPOOL_STATS=off; CUPOOL_NOT_RUNNING; CUPOOL_FAILED. */
__attribute__((weak)) int cupool_dump(const char* path);

/* Gives the idle memory of a device (-1: all devices) back to it, for other users. Waits at most 10
 * seconds for the GPU to finish with freed memory. Live memory stays; the next allocations cost
 * more. `released_bytes` may be null; else it receives the decrease of the driver's pool, or,
 * without one, the bytes given back to the driver. CUPOOL_INVALID_ARGUMENT: the device was not
 * used; CUPOOL_NOT_RUNNING. */
__attribute__((weak)) int cupool_trim(int device, uint64_t* released_bytes);

#ifdef __cplusplus
}
#endif

#endif
