// SPDX-License-Identifier: Apache-2.0
// Asks the driver that LD_LIBRARY_PATH names, and prints why it did not answer. Argument: seconds.
#include <cstdio>
#include <cstdlib>

#include "cli/doctor/driver_probe.h"

int main(int argc, char** argv) {
  const auto driver = cupool::cli::probe_driver(argc > 1 ? std::atoi(argv[1]) : 30);
  std::printf("%s\n", driver.message.c_str());
}
