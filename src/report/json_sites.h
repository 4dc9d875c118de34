// SPDX-License-Identifier: Apache-2.0
// Where memory comes from, in JSON.
#pragma once

#include <vector>

#include "report/json_timeline.h"
#include "stats/sites.h"

namespace cupool::report {

/// Lists those of `modules` that a frame is in, in the order of their first frames.
class ModuleNumbers {
 public:
  explicit ModuleNumbers(const std::vector<stats::SiteModule>& modules);
  /// The place in the list of modules[index]; null for -1.
  Json of(int index);
  Json list() const { return list_; }

 private:
  const std::vector<stats::SiteModule>& modules_;
  std::vector<int> numbers_;  // -1: not in the list
  Json list_ = Json::array();
};

/// Null without CUPOOL_SITES.
Json sites_of(const stats::Sites& sites);

}  // namespace cupool::report
