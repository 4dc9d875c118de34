// SPDX-License-Identifier: Apache-2.0
// A shared object that is linked to libcudart and runs the common work: what a Python extension is.
#include "runtime_work.h"

extern "C" __attribute__((visibility("default"))) WorkCounts plugin_run(int iterations, int lane) {
  return run_runtime_work(iterations, lane);
}
