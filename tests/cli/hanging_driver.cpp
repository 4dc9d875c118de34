// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 that never answers, as one whose kernel module hangs.
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  for (;;) pause();
}
