// SPDX-License-Identifier: Apache-2.0
// Parts of a report that only newer libraries or certain settings write. Missing parts stay empty.
#pragma once

#include <vector>

#include "cli/page/json_reader.h"
#include "cli/page/model.h"

namespace cupool::cli {

/// The buckets of the histogram `key`, sorted by their upper bounds, which have the key `bound`.
/// Empty if there is none.
std::vector<Bucket> read_buckets(const JsonReader& json, const char* key, const char* bound);

/// Fills the optional parts of a device. Throws ReportError.
void read_optional_of_device(const JsonReader& json, DeviceReport* device);

/// Fills the optional parts of a report. Throws ReportError.
void read_optional_of_report(const JsonReader& json, Report* report);

}  // namespace cupool::cli
