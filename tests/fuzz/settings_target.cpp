// SPDX-License-Identifier: Apache-2.0
// The environment and the profile.
#include <algorithm>
#include <string>
#include <vector>

#include "config/profile.h"
#include "config/settings.h"
#include "target.h"
#include "util/text.h"

namespace fuzz {
namespace {

using cupool::config::EffectiveValue;

struct Parsed {
  std::vector<std::string> warnings;
  std::vector<EffectiveValue> effective;
};

Parsed parse(const std::vector<std::string>& lines) {
  std::vector<const char*> environment;
  for (const std::string& line : lines) environment.push_back(line.c_str());
  environment.push_back(nullptr);
  Parsed parsed;
  cupool::config::parse(environment.data(), &parsed.warnings, &parsed.effective);
  return parsed;
}

}  // namespace

void run_settings(const std::string& input) {
  std::vector<std::string> lines;
  for (const std::string_view line : cupool::util::split(input, '\n')) {
    lines.emplace_back(line);
    lines.back().resize(std::min(line.find('\0'), line.size()));
    // A profile's content is another target's.
    if (cupool::util::starts_with(lines.back(), "CUPOOL_PROFILE=")) lines.pop_back();
  }
  const Parsed first = parse(lines);
  const cupool::config::RowSpan rows = cupool::config::rows();
  require(first.effective.size() == static_cast<std::size_t>(rows.end() - rows.begin()),
          "each option has a value in force");
  require(first.warnings.size() <= lines.size(), "a variable gives at most one warning");
  // What is in force is valid: given as an environment, it means the same.
  std::vector<std::string> again;
  for (const EffectiveValue& value : first.effective) {
    if (value.is_default) continue;
    again.push_back(std::string(value.name) + "=" + value.value);
  }
  const Parsed second = parse(again);
  for (const std::string& warning : second.warnings) {  // of settings without effect
    require(std::count(first.warnings.begin(), first.warnings.end(), warning) == 1,
            "a value in force gives no new warning");
  }
  for (std::size_t i = 0; i < first.effective.size(); ++i) {
    require(first.effective[i].value == second.effective[i].value, "a value in force stays so");
  }
}

std::vector<std::string> seeds_of_settings() {
  std::string defaults;
  for (const cupool::config::Row& row : cupool::config::rows()) {
    defaults += std::string(row.name) + "=" + row.default_text + "\n";
  }
  return {defaults,
          "CUPOOL_FREE_MODE=sync\nCUPOOL_MAX_CACHED=50%\nCUPOOL_PREALLOC=1.5G,background\n",
          "CUPOOL_STATS=json,csv,text\nCUPOOL_DECAY_MS=2 min\nCUPOOL_STATS_SIGNAL=sigusr2\n",
          "CUPOOL_LEAKS=1/64\nCUPOOL_FREEMODE=auto\nCUPOOL_IPC= yes \nCUPOOL_MAX_PENDING=2GiB\n"};
}

void run_profile(const std::string& input) {
  const MemoryFile file(input);
  std::vector<std::string> warnings;
  const cupool::config::KeyValues pairs = cupool::config::read_profile(file.path(), &warnings);
  const auto lines = static_cast<std::size_t>(std::count(input.begin(), input.end(), '\n')) + 1;
  require(pairs.size() + warnings.size() <= lines, "a line is a pair, or a warning, or neither");
  for (const auto& [key, value] : pairs) {
    require(!key.empty() && key.find_first_of("= \t\n\r\"'#") == std::string::npos,
            "a key is a name");
    require(value.find('\n') == std::string::npos, "a value ends with its line");
  }
}

std::vector<std::string> seeds_of_profile() {
  return {"# comment\nexport CUPOOL_FREE_MODE=sync\n\nCUPOOL_STATS = json\r\n",
          "\xef\xbb\xbf"
          "CUPOOL_STATS_FILE=\"a # b\" # comment\nCUPOOL_TRACE='x\nexport\tA=\n",
          "no pair\n=x\n1A=2\nB=#\nC=d #e\n"};
}

}  // namespace fuzz
