// SPDX-License-Identifier: Apache-2.0
// How the tests run the command: with the environment of the simulated device.
#pragma once

#include <string>
#include <vector>

#include "harness.h"

namespace cli {

/// The command and the library as built, or the files that CLI_TEST_COMMAND and
/// PRELOAD_TEST_LIBRARY name.
std::string tested_command();
std::string tested_library();

/// The environment of preload::base_environment, and what a sanitized library needs.
preload::Environment environment(const preload::Environment& extra = {});

/// Runs `cupool arguments...`.
preload::ProcessResult cupool(const std::vector<std::string>& arguments,
                              const preload::Environment& extra = {});

/// Why no shell can be started with environment(), or null.
const char* reason_without_shell();

/// A program of tests/cli by its name.
std::string program(const std::string& name);

}  // namespace cli
