// SPDX-License-Identifier: Apache-2.0
// What the host of the plugins calls in each of them.
#pragma once

#include <cstddef>
#include <cstdint>

struct LifePlugin {
  int (*allocate)(std::size_t bytes, int value, std::uintptr_t* address);  // filled with value
  int (*release)(std::uintptr_t address);
  int (*read)(std::uintptr_t address, void* to, std::size_t bytes);
  void* (*look_up)(void* handle, const char* name);
};
