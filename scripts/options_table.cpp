// SPDX-License-Identifier: Apache-2.0
// The table of docs/options.md, from src/config/options.def: printed, checked or written.
// A program, not a text tool, because only the parser knows what a type accepts.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/shell/options_text.h"

namespace {

constexpr const char* kBegin = "<!-- options:begin -->";
constexpr const char* kEnd = "<!-- options:end -->";
constexpr int kSkipped = 77;

std::string table() {
  return std::string(kBegin) + "\n\n" + cupool::cli::options_as_markdown() + "\n" + kEnd;
}

bool read(const char* path, std::string* content) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  content->assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  return true;
}

// Where the table stands, markers included.
bool find_table(const std::string& content, std::size_t* begin, std::size_t* end) {
  *begin = content.find(kBegin);
  if (*begin == std::string::npos) return false;
  *end = content.find(kEnd, *begin);
  if (*end == std::string::npos) return false;
  *end += std::string(kEnd).size();
  return true;
}

int check_or_write(const char* path, bool write) {
  std::string content;
  if (!read(path, &content)) {
    std::fprintf(stderr, "options_table: %s does not exist\n", path);
    return write ? 1 : kSkipped;
  }
  std::size_t begin = 0;
  std::size_t end = 0;
  if (!find_table(content, &begin, &end)) {
    std::fprintf(stderr, "options_table: %s has no %s ... %s\n", path, kBegin, kEnd);
    return 1;
  }
  const std::string wanted = table();
  if (content.compare(begin, end - begin, wanted) == 0) return 0;
  if (!write) {
    std::fprintf(stderr,
                 "options_table: the table in %s is not that of src/config/options.def;\n"
                 "run: cupool_options_table --write %s\n",
                 path, path);
    return 1;
  }
  content.replace(begin, end - begin, wanted);
  std::ofstream stream(path, std::ios::binary);
  stream << content;
  return stream.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    std::printf("%s\n", table().c_str());
    return 0;
  }
  const std::string mode = argv[1];
  if (argc == 3 && mode == "--check") return check_or_write(argv[2], false);
  if (argc == 3 && mode == "--write") return check_or_write(argv[2], true);
  std::fprintf(stderr, "usage: %s [--check FILE | --write FILE]\n", argv[0]);
  return 2;
}
