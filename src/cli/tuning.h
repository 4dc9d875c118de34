// Settings that reports of a program call for, each with its reason.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/report_model.h"

namespace cupool::cli {

struct TunedSetting {
  std::string name;
  std::string value;
  std::string reason;
};

struct Tuning {
  std::vector<TunedSetting> settings;
  std::vector<std::string> remarks;  ///< what was seen and calls for no setting, or for a person

  std::vector<std::pair<std::string, std::string>> variables() const;
};

/// From the reports of one or more runs or processes of one program. Pure.
Tuning tune(const std::vector<Report>& reports);

/// The settings as a profile: KEY=VALUE lines with the reasons as comments.
std::string env_file(const Tuning& tuning, const std::vector<Report>& reports);

}  // namespace cupool::cli
