// SPDX-License-Identifier: Apache-2.0
// Modules and frames once, stacks as indices of frames; only modules that a frame is in. Estimates
// are rounded: no digit behind the point is known.
#include "report/json_sites.h"

#include <algorithm>
#include <vector>

namespace cupool::report {

namespace {

std::uint64_t rounded(double estimate) {
  return static_cast<std::uint64_t>(std::max(estimate, 0.0) + 0.5);
}

Json figures_of(const stats::SiteFigures& figures) {
  return {{"samples", figures.samples},
          {"calls", rounded(figures.calls)},
          {"bytes", rounded(figures.bytes)},
          {"live_calls", rounded(figures.live_calls)},
          {"live_bytes", rounded(figures.live_bytes)},
          {"peak_bytes", rounded(figures.peak_bytes)},
          {"temporary_calls", rounded(figures.temporary_calls)},
          {"freed_calls", rounded(figures.freed_calls)},
          {"waited_calls", rounded(figures.waited_calls)}};
}

}  // namespace

ModuleNumbers::ModuleNumbers(const std::vector<stats::SiteModule>& modules)
    : modules_(modules), numbers_(modules.size(), -1) {}

Json ModuleNumbers::of(int index) {
  if (index < 0) return nullptr;
  int& number = numbers_[static_cast<std::size_t>(index)];
  if (number < 0) {
    number = static_cast<int>(list_.size());
    const stats::SiteModule& known = modules_[static_cast<std::size_t>(index)];
    list_.push_back({{"path", known.path},
                     {"build_id", known.build_id.empty() ? Json(nullptr) : Json(known.build_id)}});
  }
  return number;
}

Json sites_of(const stats::Sites& sites) {
  if (sites.interval_bytes == 0) return nullptr;
  ModuleNumbers numbers(sites.modules);
  Json frames = Json::array();
  for (const stats::SiteFrame& frame : sites.frames) {
    if (!frame.function.empty()) {
      frames.push_back({{"function", frame.function}, {"file", frame.file}, {"line", frame.line}});
      continue;
    }
    frames.push_back({{"module", numbers.of(frame.module)}, {"offset", frame.offset}});
  }
  Json listed = Json::array();
  for (const stats::Site& site : sites.sites) {
    Json each = figures_of(site.figures);
    each["frames"] = site.frames;
    listed.push_back(std::move(each));
  }
  return {{"interval_bytes", sites.interval_bytes},
          {"widest_interval_bytes", sites.widest_interval_bytes},
          {"modules", numbers.list()},
          {"frames", std::move(frames)},
          {"sites", std::move(listed)},
          {"others", figures_of(sites.others)},
          {"unfollowed_samples", sites.unfollowed},
          {"lost_samples", sites.lost}};
}

}  // namespace cupool::report
