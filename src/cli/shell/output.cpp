// SPDX-License-Identifier: Apache-2.0
// A stream reports a full disk only when it is closed.
#include "cli/shell/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "util/clock.h"
#include "util/path_pattern.h"
#include "util/text.h"

namespace cupool::cli {

std::string expanded_name(const std::string& name) {
  warn_of_letters(name);
  return util::expand_path_pattern(name, util::wall_ns());
}

void warn_of_letters(const std::string& name) {
  const std::string unknown = util::unknown_letters(name);
  if (unknown.empty()) return;
  std::fprintf(stderr, "cupool: %s: %s means nothing and stays as it is. Known are %s\n",
               util::printable(name).c_str(), util::printable(unknown).c_str(),
               util::kPatternLetters);
}

bool write_text(const std::string& name, const std::string& text) {
  const std::string file = expanded_name(name);
  if (file.empty() || file == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return true;
  }
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (stream) return true;
  std::fprintf(stderr, "cupool: cannot write %s: %s\n", file.c_str(), std::strerror(errno));
  return false;
}

}  // namespace cupool::cli
