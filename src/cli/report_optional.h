// The parts of a report that only newer libraries write, or only some settings: each is left empty
// where the report has none.
#pragma once

#include <vector>

#include "cli/report_json_reader.h"
#include "cli/report_model.h"

namespace cupool::cli {

/// A histogram's buckets, whose upper bounds have the key `bound`, by size; or none.
std::vector<Bucket> read_buckets(const JsonReader& json, const char* key, const char* bound);

/// Fills what a device may have. Throws ReportError.
void read_optional_of_device(const JsonReader& json, DeviceReport* device);

/// Fills what a report may have. Throws ReportError.
void read_optional_of_report(const JsonReader& json, Report* report);

}  // namespace cupool::cli
