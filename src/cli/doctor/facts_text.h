// SPDX-License-Identifier: Apache-2.0
// The findings of doctor as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/diagnosis.h"

namespace cupool::cli {

/// Program, CUDA, routes, driver, devices, findings, verdict.
std::string facts_as_text(const Facts& facts, const std::vector<Finding>& findings,
                          const std::vector<std::string>& program);

/// The same as JSON; docs/command.md lists the keys.
std::string facts_as_json(const Facts& facts, const std::vector<Finding>& findings);

}  // namespace cupool::cli
