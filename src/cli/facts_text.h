// What doctor found, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "cli/diagnosis.h"

namespace cupool::cli {

/// A page: program, CUDA, routes, driver, devices, findings, verdict.
std::string facts_as_text(const Facts& facts, const std::vector<Finding>& findings,
                          const std::vector<std::string>& program);

/// The same as JSON; docs/command.md lists the keys.
std::string facts_as_json(const Facts& facts, const std::vector<Finding>& findings);

}  // namespace cupool::cli
