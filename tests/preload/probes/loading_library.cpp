// SPDX-License-Identifier: Apache-2.0
// A library whose constructor does what the program says (probe_start_beside_load.cpp).
extern "C" void while_loading();

namespace {

__attribute__((constructor)) void start() {
  while_loading();
}

}  // namespace
