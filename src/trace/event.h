// What a trace holds of one call: enough to play it again.
#pragma once

#include <cstdint>

namespace cupool::trace {

enum class Action : std::uint8_t {
  allocate,          ///< memory became the program's; the time is that of the call's end
  allocate_failure,  ///< the call returned an error
  free,              ///< the program gave memory up; the time is that of the call's begin
  free_done,         ///< how long that call took; of no interest to a replay
};

struct Event {
  std::uint64_t time_ns = 0;      ///< monotonic, see util/clock.h; strictly rising in each thread
  std::uint64_t duration_ns = 0;  ///< of an allocation or free_done, which ended at time_ns
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int tid = 0;
  int device = -1;
  Action action = Action::allocate;
};

}  // namespace cupool::trace
