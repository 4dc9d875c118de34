// SPDX-License-Identifier: Apache-2.0
// The steps between memory orders.
#include "weakening.h"

namespace explorer {

std::vector<std::memory_order> weaker_orders(Kind kind, std::memory_order order) {
  switch (order) {
    case std::memory_order_seq_cst:
      if (kind == Kind::load) return {std::memory_order_acquire};
      if (kind == Kind::store) return {std::memory_order_release};
      return {std::memory_order_acq_rel};
    case std::memory_order_acq_rel:
      return {std::memory_order_acquire, std::memory_order_release};
    case std::memory_order_acquire:
    case std::memory_order_release:
    case std::memory_order_consume:
      return {std::memory_order_relaxed};
    case std::memory_order_relaxed:
      break;
  }
  return {};
}

const char* name_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return "relaxed";
    case std::memory_order_consume:
      return "consume";
    case std::memory_order_acquire:
      return "acquire";
    case std::memory_order_release:
      return "release";
    case std::memory_order_acq_rel:
      return "acq_rel";
    case std::memory_order_seq_cst:
      return "seq_cst";
  }
  return "?";
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"load", "store",  "rmw",  "fence",
                                    "lock", "unlock", "spin", "data"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* base_name(const char* path) {
  const char* base = path;
  for (const char* c = path; *c != '\0'; ++c) {
    if (*c == '/') base = c + 1;
  }
  return base;
}

}  // namespace explorer
