// SPDX-License-Identifier: Apache-2.0
// A stream reports a full disk only when it is closed.
#include "cli/shell/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace cupool::cli {

bool write_text(const std::string& file, const std::string& text) {
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
