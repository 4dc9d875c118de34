// SPDX-License-Identifier: Apache-2.0
// The parts of the JSON report that grow with the run: threads, events, the time series.
#pragma once

#include <nlohmann/json.hpp>

#include "stats/snapshot.h"

namespace cupool::report {

using Json = nlohmann::ordered_json;  // keys in the order of counters.def

/// Schema: docs/report.schema.json. Pure. Throw only std::bad_alloc.
Json threads_of(const stats::Snapshot& snapshot);
Json other_threads_of(const stats::Snapshot& snapshot);
Json events_of(const stats::Snapshot& snapshot);
/// Null without a series.
Json series_of(const stats::Snapshot& snapshot);
/// Null if leaks are not kept.
Json leaks_of(const stats::Snapshot& snapshot);
/// Null without a trace.
Json trace_of(const stats::Snapshot& snapshot);

}  // namespace cupool::report
