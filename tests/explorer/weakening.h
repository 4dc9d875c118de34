// SPDX-License-Identifier: Apache-2.0
// Weaker memory orders at one place of the explored code, and names for messages.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "explorer.h"

namespace explorer {

/// The order of one operation, made weaker.
struct Weakening {
  std::string file;
  unsigned line;
  Kind kind;
  std::memory_order from;
  std::memory_order to;
  bool operator<(const Weakening& other) const {
    return std::tie(file, line, kind, from, to) <
           std::tie(other.file, other.line, other.kind, other.from, other.to);
  }
};

/// The orders that are weaker by one step.
std::vector<std::memory_order> weaker_orders(Kind kind, std::memory_order order);

const char* name_of(std::memory_order order);
const char* name_of(Kind kind);
/// The file's name without its folder.
const char* base_name(const char* path);

}  // namespace explorer
