// SPDX-License-Identifier: Apache-2.0
// A stream reports a full disk only when it is closed.
#include "cli/shell/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/shell/exit_code.h"
#include "cli/shell/program_word.h"
#include "util/clock.h"
#include "util/path_pattern.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// What to do about the reasons that a user meets.
std::string cannot_write(const std::string& file, int error) {
  std::string text = "cannot write " + file + ": " + std::strerror(error);
  if (error == ENOENT) text += ". Create the folder first, or name another file";
  if (error == EACCES || error == EROFS || error == EISDIR) text += ". Name another file";
  if (error == ENOSPC || error == EDQUOT) text += ". Make room, or name a file elsewhere";
  return text;
}

}  // namespace

std::string overwrites_input(const std::string& name) {
  if (is_program_file(name)) {
    return name + " is a program and would be overwritten. Name a new file first";
  }
  const std::filesystem::path path(name);
  std::error_code ignored;
  if (path.extension() != ".json" || !std::filesystem::exists(path, ignored)) return "";
  return name + " would be overwritten. Name a new file first, then the reports";
}

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

void require_writable(const std::string& name) {
  const std::string file = util::expand_path_pattern(name, util::wall_ns());
  if (file.empty() || file == "-") return;
  if (::access(file.c_str(), F_OK) == 0) {
    struct stat status {};
    const bool folder = ::stat(file.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    if (!folder && ::access(file.c_str(), W_OK) == 0) return;
    throw UsageError(cannot_write(file, folder ? EISDIR : errno));
  }
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw UsageError(cannot_write(file, errno));
  }
}

std::string write_text(const std::string& name, const std::string& text) {
  const std::string file = expanded_name(name);
  if (file.empty() || file == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return "";
  }
  write_file(file, text);
  return file;
}

void write_file(const std::string& file, const std::string& text) {
  std::FILE* const stream = std::fopen(file.c_str(), "we");
  if (stream == nullptr) throw UsageError(cannot_write(file, errno));
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  const int error = errno;
  const bool closed = std::fclose(stream) == 0;
  if (!written || !closed) throw UsageError(cannot_write(file, written ? errno : error));
}

void tell_written(const std::string& file, const std::string& what) {
  if (file.empty()) return;
  std::fprintf(stderr, "cupool: wrote %s, %s\n", util::printable(file).c_str(), what.c_str());
}

}  // namespace cupool::cli
