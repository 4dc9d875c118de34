// SPDX-License-Identifier: Apache-2.0
// What a test may choose about the simulated device, read once from CUPOOL_SIM_* when the first
// function is called. Plain data: the engine never looks at the environment itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cupool::sim {

/// When pending work is executed.
enum class Mode {
  late,   ///< only when a wait or enough queries force it: the adversary
  early,  ///< as soon as its predecessors allow: the kind machine
  timed,  ///< by the wall clock, every operation with a duration
};

/// What happens when the judge finds an unordered access.
enum class Judge { off, report, abort };

/// Which streams cuCtxRecordEvent leaves out: a driver made wrong on purpose, to see that it is
/// noticed.
enum class Forgets { nothing, non_blocking, per_thread, destroyed };

/// What pools with handles for other processes are: there, not there, or there and never giving
/// memory back (as older drivers are documented).
enum class PoolIpc { yes, no, keeps };

struct Settings {
  Mode mode = Mode::late;
  Judge judge = Judge::off;
  int devices = 1;
  std::vector<size_t> memory_bytes = {size_t{4} << 30};  ///< by device; the last is all others'
  bool peers = true;  ///< whether devices can access one another's memory
  bool pools = true;
  PoolIpc pool_ipc = PoolIpc::yes;
  size_t stream_bytes = 0;     ///< of each stream of a context but the first
  bool late_refusals = false;  ///< cuMemAlloc is refused only when all work is over
  bool reclaim = false;        ///< take idle pool memory back before reporting out of memory
  int driver_version = 13000;
  bool unexported = false;  ///< cuGetProcAddress answers addresses that no exported name has
  double gigabytes_per_second = 20;  ///< timed mode: copies and fills
  int polls = 3;                     ///< queries answered "not ready" before one forces completion
  uint64_t return_ms = 0;            ///< what submits work returns that much later
  uint64_t first_pool_ms = 0;        ///< how long the first block of any pool takes
  uint64_t patience_ms = 0;          ///< late mode: 0 = wait for ever for a reason to run
  uint64_t deadlock_ms = 10000;      ///< how long a deadlock must last to be reported; 0 = never
  std::string calls_file;            ///< "" = none; %p is the process id
  std::string fail;                  ///< fault injection rules
  std::string shared_file;           ///< of memory that processes share; "" = none
  Forgets context_event_forgets = Forgets::nothing;
};

Settings read_settings();

bool parse_mode(const char* text, Mode* mode);
bool parse_judge(const char* text, Judge* judge);
bool parse_forgets(const char* text, Forgets* forgets);
bool parse_milliseconds(const char* text, uint64_t* out);

/// "64M", "1G", "4096": bytes; 0 when it is not a size.
size_t parse_bytes(const char* text);

}  // namespace cupool::sim
