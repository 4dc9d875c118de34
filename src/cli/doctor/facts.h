// SPDX-License-Identifier: Apache-2.0
// Collects the facts for diagnose(): reads files, asks the dynamic loader and the driver.
#pragma once

#include <string>

#include "cli/doctor/diagnosis.h"

namespace cupool::cli {

/// The facts about the program `name`, as it would be started now.
Facts collect_facts(const std::string& name);

}  // namespace cupool::cli
