// SPDX-License-Identifier: Apache-2.0
// A known amount of legacy work through the runtime interface, as a plain program does it:
// allocate, fill, copy, read back, check, then free while work is still pending (contract 1 and 2).
#pragma once

#include <cstdint>

struct WorkCounts {
  uint64_t mallocs = 0;
  uint64_t frees = 0;
  uint64_t wrong_bytes = 0;
  uint64_t checksum = 0;

  void add(const WorkCounts& other) {
    mallocs += other.mallocs;
    frees += other.frees;
    wrong_bytes += other.wrong_bytes;
    checksum += other.checksum;
  }
};

// Runs `iterations` requests; `lane` varies sizes, fill values and the kind of stream used.
WorkCounts run_runtime_work(int iterations, int lane);
