/* The C interface of cupool: figures, a report and idle memory on request, from inside the program.
 *
 * All functions are weak: a program that uses them needs no library to link with and runs without
 * cupool, where they are null. Test before calling:
 *
 *     if (cupool_trim) cupool_trim(-1, NULL);
 *
 * This works in position-independent code, which compilers make unless told otherwise (with
 * -no-pie, some linkers need -z dynamic-undefined-weak). Everything here is plain C, usable from
 * C89 and C++, may be called by any thread at any time but in a signal handler, never throws, and
 * touches neither the current context of the thread nor its last CUDA error. Nothing of it is fast:
 * it is not for the inner loop. */
#ifndef CUPOOL_CUPOOL_H
#define CUPOOL_CUPOOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. Negative: nothing was done. */
enum {
  CUPOOL_OK = 0,
  CUPOOL_INVALID_ARGUMENT = -1, /* a null pointer, a size that is too small, an unknown device */
  CUPOOL_NOT_RUNNING = -2,      /* no allocation yet, CUPOOL_ENABLE=0, a forked child, or the driver
                                   has shut down */
  CUPOOL_FAILED = -3            /* the file could not be written (errno says why), or no memory */
};

/* The figures of one device; docs/statistics.md explains each. Later versions may add fields at the
 * end: `size` says how many there are on both sides. */
typedef struct cupool_figures { /* NOLINT(modernize-use-using): a header for C */
  uint64_t
      size; /* set to sizeof(cupool_figures) before the call; after it: bytes that were filled */
  uint64_t application_bytes;   /* what the program asked for and has not freed */
  uint64_t rounding_bytes;      /* what its blocks are larger than it asked for */
  uint64_t retired_bytes;       /* freed, but the GPU may still use it */
  uint64_t cached_bytes;        /* idle, ready to be handed out again */
  uint64_t held_bytes;          /* the sum of the four */
  uint64_t passthrough_bytes;   /* what the real cuMemAlloc serves */
  uint64_t pool_reserved_bytes; /* of the driver's pool; 0 without one */
  uint64_t pool_used_bytes;     /* of them in blocks; 0 without one */
  uint64_t application_peak_bytes;
  uint64_t held_peak_bytes;
  uint64_t malloc_calls_total;
  uint64_t malloc_failed_total;
  uint64_t free_calls_total;
  uint64_t free_waits_total;   /* frees that waited for the GPU */
  uint64_t free_wait_ns_total; /* how long, in nanoseconds */
  uint64_t growth_bytes_total; /* what the backend gave */
  uint64_t oom_rescues_total;  /* out-of-memory errors averted */
} cupool_figures;

/* The version of the library: "0.1.0". Static storage. Cannot fail. */
__attribute__((weak)) const char* cupool_version(void);

/* Fills `figures` with those of a device (the driver's ordinal) now. While other threads allocate,
 * figures may differ from one another by the calls in flight.
 * CUPOOL_INVALID_ARGUMENT: `figures` is null or its size is below 16, or nothing has used that
 * device; CUPOOL_NOT_RUNNING. */
__attribute__((weak)) int cupool_snapshot(int device, cupool_figures* figures);

/* Writes the report now, as at exit. With a path, in the format that its ending says (.json, .csv,
 * .prom; any other: text); % letters as in CUPOOL_STATS_FILE, but %t is the time of this call. With
 * null, as CUPOOL_STATS_SIGNAL does: in the formats of CUPOOL_STATS, numbered, to CUPOOL_STATS_FILE
 * or standard error. The report at exit comes all the same. CUPOOL_INVALID_ARGUMENT: null, and
 * CUPOOL_STATS=off; CUPOOL_NOT_RUNNING; CUPOOL_FAILED. */
__attribute__((weak)) int cupool_dump(const char* path);

/* Gives the idle memory of a device (-1: of all) back to it, for others to use. Waits until the GPU
 * is done with what has been freed, 10 seconds at most. What is live stays; the next allocations
 * cost more. `released_bytes` may be null; else it gets by how much the driver's pool has shrunk,
 * or, without one, what went back to the driver. CUPOOL_INVALID_ARGUMENT: nothing has used that
 * device; CUPOOL_NOT_RUNNING. */
__attribute__((weak)) int cupool_trim(int device, uint64_t* released_bytes);

#ifdef __cplusplus
}
#endif

#endif
