// What an observed run means: what pooling would save, what it would need, whether it is worth it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "stats/snapshot.h"

namespace cupool::report {

/// Nanoseconds that a call served by cupool is assumed to take; the report says so.
inline constexpr std::uint64_t kAssumedCallNs = 500;

enum class Worth { yes, little, no, nothing_seen };

/// The conclusion, with the figures that it rests on.
struct Conclusion {
  Worth worth = Worth::nothing_seen;
  std::uint64_t legacy_ns = 0;     ///< time in malloc and free, all threads
  std::uint64_t remaining_ns = 0;  ///< of it what would be left under the assumptions
  std::uint64_t saved_ns = 0;      ///< at most
  double share = 0;                ///< saved time of one thread, on average, in the run's: 0..1
  std::string verdict;             ///< one line
  std::vector<std::string> sentences;
  std::vector<std::string> assumptions;
};

/// Needs `snapshot.observation`. Pure. Throws only std::bad_alloc, as those below.
Conclusion conclude(const stats::Snapshot& snapshot);

/// The section `observe` of the JSON report.
nlohmann::ordered_json observe_json(const stats::Snapshot& snapshot);

/// The section of the text report: lines without a line end after the last.
std::string observe_text(const stats::Snapshot& snapshot);

/// "yes", "little", "no" or "nothing_seen".
const char* text_of(Worth worth) noexcept;

}  // namespace cupool::report
