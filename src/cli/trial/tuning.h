// SPDX-License-Identifier: Apache-2.0
// Derives settings from reports of a program, each with its reason.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/page/model.h"

namespace cupool::cli {

struct TunedSetting {
  std::string name;
  std::string value;
  std::string reason;
};

struct Tuning {
  std::vector<TunedSetting> settings;
  std::vector<std::string> remarks;  ///< findings that need no setting, or a decision by the user

  std::vector<std::pair<std::string, std::string>> variables() const;
};

/// Derives settings from reports of one program: several runs, several processes. Pure.
Tuning tune(const std::vector<Report>& reports);

/// The settings as a profile: KEY=VALUE lines with the reasons as comments.
std::string env_file(const Tuning& tuning, const std::vector<Report>& reports);

}  // namespace cupool::cli
