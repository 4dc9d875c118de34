// SPDX-License-Identifier: Apache-2.0
// See command.h.
#include "command.h"

#include <cstdlib>

namespace cli {

std::string tested_command() {
  const char* const other = std::getenv("CLI_TEST_COMMAND");
  return other == nullptr ? CUPOOL_TEST_COMMAND : other;
}

std::string tested_library() {
  return preload::library_path();
}

preload::Environment environment(const preload::Environment& extra) {
  preload::Environment all = preload::base_environment();
  if (*CUPOOL_TEST_SANITIZER_RUNTIME != '\0') all["LD_PRELOAD"] = CUPOOL_TEST_SANITIZER_RUNTIME;
  for (const auto& [name, value] : extra) all[name] = value;
  return all;
}

// Seen without cupool: LD_PRELOAD=libtsan.so /bin/sh dies of signal 11.
const char* reason_without_shell() {
  return preload::tested_build().has_thread_sanitizer()
             ? "a shell dies of the thread sanitizer's runtime in LD_PRELOAD"
             : nullptr;
}

preload::ProcessResult cupool(const std::vector<std::string>& arguments,
                              const preload::Environment& extra) {
  preload::Command command;
  command.argv = {tested_command()};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.environment = environment(extra);
  return preload::run(command);
}

std::string program(const std::string& name) {
  return std::string(CUPOOL_TEST_PROGRAM_FOLDER) + "/" + name;
}

}  // namespace cli
