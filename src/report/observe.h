// SPDX-License-Identifier: Apache-2.0
// The conclusion from an observed run: what pooling would save and need, and whether it is worth
// it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/verdict.h"
#include "stats/snapshot.h"

namespace cupool::report {

/// Assumed duration of a call served by cupool, in nanoseconds; stated in the report.
inline constexpr std::uint64_t kAssumedCallNs = 500;

enum class Worth { yes, little, no, nothing_seen };

/// What a run, or an average process of a job, would save.
struct Saving {
  std::uint64_t saved_ns = 0;  ///< of a thread, at most
  double share = 0;            ///< the same as a share of the run: 0..1
  bool no_stall = false;       ///< every free was seen, and each found the GPU idle
};

/// The verdict on a saving. Without a stall, less than a millisecond is not worth a try.
Worth worth_of(const Saving& saving) noexcept;

/// "Worth trying", "Little to gain", "Not worth it", "Nothing to gain".
const char* words_of(Worth worth, bool no_stall) noexcept;

/// The reason of the verdict and the next step, in a sentence or two.
const char* advice_of(Worth worth, bool no_stall) noexcept;

/// The conclusion, with its figures.
struct Conclusion {
  Worth worth = Worth::nothing_seen;
  std::uint64_t legacy_ns = 0;     ///< time in malloc and free, all threads
  std::uint64_t remaining_ns = 0;  ///< the part that would remain under the assumptions
  std::uint64_t saved_ns = 0;      ///< upper bound
  double share = 0;                ///< average saving per thread as a share of the run: 0..1
  std::string verdict;             ///< one line
  std::vector<std::string> sentences;
  std::vector<std::string> assumptions;
};

/// Requires `snapshot.observation`. Pure. Throws only std::bad_alloc, as do the functions below.
Conclusion conclude(const stats::Snapshot& snapshot);

/// The verdict on an observed run: what cupool would save and cost.
Verdict observed_verdict(const stats::Snapshot& snapshot);

/// The section `observe` of the JSON report.
nlohmann::ordered_json observe_json(const stats::Snapshot& snapshot);

/// The section of the text report behind the verdict, with wrapped lines.
std::string observe_text(const stats::Snapshot& snapshot);

/// "yes", "little", "no" or "nothing_seen".
const char* text_of(Worth worth) noexcept;

}  // namespace cupool::report
