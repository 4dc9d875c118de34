// Collects what `diagnose` judges: reads files, asks the dynamic loader and the driver.
#pragma once

#include <string>

#include "cli/diagnosis.h"

namespace cupool::cli {

/// Everything about the program called `name`, as it would be started now.
Facts collect_facts(const std::string& name);

}  // namespace cupool::cli
