// SPDX-License-Identifier: Apache-2.0
/* A C program that uses the interface of cupool where it is there, and runs without it
 * (include/cupool/cupool.h). Arguments: before=1 (asks before the first allocation), dump=PATH,
 * null=1 (a dump to where the reports go), child=1 (asks in a forked child), off=1 (cupool is
 * switched off). */
#include <cuda_runtime_api.h>
#include <cupool/cupool.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                   \
  do {                                                     \
    if (!(condition)) {                                    \
      printf("WRONG line %d: %s\n", __LINE__, #condition); \
      exit(3);                                             \
    }                                                      \
  } while (0)

static const char* argument(int argc, char** argv, const char* name) {
  const size_t length = strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') return argv[i] + length + 1;
  }
  return NULL;
}

static void ask_too_early(void) {
  cupool_figures figures;
  figures.size = sizeof figures;
  CHECK(cupool_snapshot(0, &figures) == CUPOOL_NOT_RUNNING);
  CHECK(cupool_trim(-1, NULL) == CUPOOL_NOT_RUNNING);
  CHECK(cupool_dump(NULL) == CUPOOL_NOT_RUNNING);
}

static void check_figures(void* live) {
  cupool_figures figures;
  memset(&figures, 0xff, sizeof figures);
  figures.size = sizeof figures;
  CHECK(cupool_snapshot(0, &figures) == CUPOOL_OK);
  CHECK(figures.size == sizeof figures);
  CHECK(figures.application_bytes == 3u << 20);
  CHECK(figures.application_peak_bytes == (3u << 20) + (64u << 20));
  CHECK(figures.malloc_calls_total == 2 && figures.free_calls_total == 1);
  CHECK(figures.held_bytes == figures.application_bytes + figures.rounding_bytes +
                                  figures.retired_bytes + figures.cached_bytes);
  CHECK(figures.held_bytes > figures.application_bytes);
  CHECK(figures.pool_reserved_bytes >= figures.held_bytes);
  CHECK(figures.growth_bytes_total == figures.held_bytes);

  cupool_figures older; /* a program that was built with fewer fields */
  memset(&older, 0xff, sizeof older);
  older.size = 16;
  CHECK(cupool_snapshot(0, &older) == CUPOOL_OK);
  CHECK(older.size == 16 && older.application_bytes == 3u << 20);
  CHECK(older.rounding_bytes == UINT64_MAX);

  older.size = 15;
  CHECK(cupool_snapshot(0, &older) == CUPOOL_INVALID_ARGUMENT);
  CHECK(cupool_snapshot(0, NULL) == CUPOOL_INVALID_ARGUMENT);
  older.size = sizeof older;
  CHECK(cupool_snapshot(17, &older) == CUPOOL_INVALID_ARGUMENT);
  CHECK(cupool_trim(17, NULL) == CUPOOL_INVALID_ARGUMENT);
  (void)live;
}

static void check_trim(void) {
  cupool_figures figures;
  uint64_t released = 0;
  figures.size = sizeof figures;
  CHECK(cupool_trim(-1, &released) == CUPOOL_OK);
  CHECK(released > 0);
  CHECK(cupool_snapshot(0, &figures) == CUPOOL_OK);
  CHECK(figures.retired_bytes == 0 && figures.cached_bytes == 0);
  CHECK(figures.application_bytes == 3u << 20);
  CHECK(cupool_trim(0, NULL) == CUPOOL_OK);
}

static void ask_in_child(void) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    ask_too_early();
    _exit(5);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

int main(int argc, char** argv) {
  void* live = NULL;
  void* freed = NULL;
  const char* path = argument(argc, argv, "dump");
  const int there = cupool_version != NULL;
  CHECK(there == (cupool_snapshot != NULL) && there == (cupool_dump != NULL) &&
        there == (cupool_trim != NULL));
  if (there && argument(argc, argv, "before")) ask_too_early();
  CHECK(cudaMalloc(&live, 3u << 20) == cudaSuccess);
  CHECK(cudaMalloc(&freed, 64u << 20) == cudaSuccess);
  CHECK(cudaFree(freed) == cudaSuccess);
  if (there && argument(argc, argv, "off")) {
    ask_too_early(); /* CUPOOL_ENABLE=0 */
  } else if (there) {
    check_figures(live);
    check_trim();
    if (argument(argc, argv, "child")) ask_in_child();
    if (path != NULL) CHECK(cupool_dump(path) == CUPOOL_OK);
    if (argument(argc, argv, "null")) CHECK(cupool_dump(NULL) == CUPOOL_OK);
    CHECK(cupool_dump("/nonexistent/folder/report") == CUPOOL_FAILED && errno == ENOENT);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFree(live) == cudaSuccess);
  printf("cupool %s\n", there ? cupool_version() : "is not there");
  return 0;
}
