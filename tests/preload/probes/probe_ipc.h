// SPDX-License-Identifier: Apache-2.0
// What the conductor of an IPC scenario (probe_ipc) and its processes (probe_ipc_peer) say to each
// other, over a socket pair: one order, one answer.
#pragma once

#include <cstdint>

namespace ipc_probe {

// Orders. Blocks are named by slots that the conductor chooses.
enum class Verb : int {
  allocate,     // slot, bytes -> code, address
  release,      // slot -> code (cudaFree)
  fill,         // slot, bytes, value -> code
  fill_async,   // the same on a stream of its own, without waiting
  check,        // slot, bytes, value -> code, number of other bytes
  get_handle,   // slot, bytes = offset -> code, handle
  open,         // slot, handle -> code, address, number = milliseconds
  close,        // slot -> code
  attributes,   // slot -> code, number: see probe_ipc_peer.cpp
  free_bytes,   // -> code, number (cudaMemGetInfo)
  capture,      // begins a global-mode capture -> code
  end_capture,  // -> code
  reset,        // cudaDeviceReset -> code
  set_device,   // value -> code
  race_export,  // threads allocate, export and free -> number of wrong results
  race_open,    // threads open and close the same handle; slot, bytes, value as check -> the same
  become,       // number = user id -> code
  close_files,  // closes all sockets but the channel, and opens files of its own there
  check_files,  // -> code = 1: it used the processor meanwhile, number of its own that are broken
  fork_child,   // leaves a child behind that only sleeps -> number = its process id
  quit,
};

struct Order {
  Verb verb = Verb::quit;
  int slot = 0;
  uint64_t bytes = 0;
  int value = 0;
  int by_kernel = 0;  ///< check: by the GPU as well
  unsigned char handle[64] = {};
};

struct Answer {
  int code = 0;
  uint64_t address = 0;
  uint64_t number = 0;
  unsigned char handle[64] = {};
};

}  // namespace ipc_probe
