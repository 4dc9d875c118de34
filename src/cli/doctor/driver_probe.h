// SPDX-License-Identifier: Apache-2.0
// Queries the driver and its devices in a child process: a driver that crashes or hangs does not
// affect the command.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

struct ProbedDevice {
  std::string name;
  std::uint64_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  bool pools = false;
  bool handles_to_share = false;  ///< pools can be exported as POSIX file descriptors
};

struct ProbedDriver {
  enum class State {
    answered,
    absent,   ///< libcuda.so.1 not found
    refused,  ///< cuInit failed
    crashed,
    silent,  ///< no answer in time
  };
  State state = State::absent;
  std::string message;          ///< the reason, unless it answered
  int error = 0;                ///< the CUresult, if refused
  int version = 0;              ///< 13000 is CUDA 13.0
  bool context_events = false;  ///< cuCtxRecordEvent, of 12.5 and later
  std::vector<ProbedDevice> devices;
};

/// Loads libcuda.so.1 in a child process and queries it. Kills the child after `limit_seconds`.
ProbedDriver probe_driver(int limit_seconds = 30);

/// 13000 as "13.0".
std::string cuda_version_text(int version);

}  // namespace cupool::cli
