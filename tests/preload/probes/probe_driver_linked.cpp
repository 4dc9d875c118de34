// SPDX-License-Identifier: Apache-2.0
// A driver-interface program that is linked to libcuda.so.1 (docs/design.md, route 1).
#include "driver_work.h"
#include "probe.h"

int main(int argc, char** argv) {
  DriverFunctions driver;
#define DRIVER_FILL(name, exact) driver.name##_fn = &name;
  DRIVER_FUNCTIONS(DRIVER_FILL)
#undef DRIVER_FILL
  return report_driver_work(
      run_driver_work(driver, static_cast<int>(probe::number(argc, argv, "iterations", 30))));
}
