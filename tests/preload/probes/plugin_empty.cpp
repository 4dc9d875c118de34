// SPDX-License-Identifier: Apache-2.0
// A library that does nothing: tests give it a name that means something to others.
extern "C" __attribute__((visibility("default"))) int plugin_answer() {
  return 42;
}
