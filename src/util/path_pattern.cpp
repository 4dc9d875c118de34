// SPDX-License-Identifier: Apache-2.0
// Expansion of the % letters in file names.
#include "util/path_pattern.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "util/launcher.h"
#include "util/standard_error.h"

namespace cupool::util {

namespace {

// Environment and host name become part of a file's name: they must not choose its directory.
std::string as_file_name(std::string text) {
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

std::string compact_local_time(std::uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / 1'000'000'000u);
  struct tm parts {};
  ::localtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, ::strftime(text, sizeof text, "%Y%m%dT%H%M%S", &parts));
}

// Calls `part` with each % letter and its text, and with '\0' for the text between. A percent sign
// at the end is a part of its own.
template <typename Part>
void for_each_part(std::string_view pattern, const Part& part) {
  while (!pattern.empty()) {
    const bool letter = pattern[0] == '%';
    const std::size_t end = letter ? 2 : pattern.find('%');
    const std::string_view text = pattern.substr(0, end);
    part(text.size() == 2 && letter ? text[1] : '\0', text);
    pattern.remove_prefix(text.size());
  }
}

}  // namespace

std::string absolute_pattern(std::string_view pattern) {
  char folder[4096];
  std::string absolute;
  if (!pattern.empty() && pattern[0] != '/' && ::getcwd(folder, sizeof folder) != nullptr) {
    for (const char* letter = folder; *letter != '\0'; ++letter) {
      absolute.append(*letter == '%' ? 2 : 1, *letter);  // no pattern in the folder's name
    }
    absolute += '/';
  }
  return absolute.append(pattern);
}

PatternValues pattern_values(std::uint64_t wall_ns) {
  return {std::to_string(::getpid()),
          host_name(),
          launcher_rank(),
          launcher_job(),
          node_name(),
          wall_ns};
}

std::string expand_path_pattern(std::string_view pattern, const PatternValues& values) {
  std::string path;
  for_each_part(pattern, [&](char letter, std::string_view text) {
    switch (letter) {
      case 'p':
        path += as_file_name(values.process);
        break;
      case 'h':
        path += as_file_name(values.host);
        break;
      case 'r':
        path += values.rank.empty() ? "0" : as_file_name(values.rank);
        break;
      case 'j':
        path += values.job.empty() ? "0" : as_file_name(values.job);
        break;
      case 'n':
        path += as_file_name(values.node);
        break;
      case 't':
        path += compact_local_time(values.wall_ns);
        break;
      case '%':
        path += '%';
        break;
      default:
        path += text;
    }
  });
  return path;
}

std::string expand_path_pattern(std::string_view pattern, std::uint64_t wall_ns) {
  if (pattern.find('%') == std::string_view::npos) return std::string(pattern);
  return expand_path_pattern(pattern, pattern_values(wall_ns));
}

std::string unknown_letters(std::string_view pattern) {
  std::string unknown;
  for_each_part(pattern, [&](char letter, std::string_view text) {
    const bool known = letter == '\0' || std::strchr("phrjnt%", letter) != nullptr;
    if (known && text != "%") return;
    unknown += (unknown.empty() ? "" : ", ") + std::string(text);
  });
  return unknown;
}

std::string own_path(std::string_view pattern, std::uint64_t wall_ns, bool* added) {
  std::string path = expand_path_pattern(pattern, wall_ns);
  *added = false;
  bool tells_apart = pattern.empty();
  for_each_part(pattern, [&tells_apart](char letter, std::string_view) {
    tells_apart = tells_apart || letter == 'r' || letter == 'p';
  });
  const std::string rank = tells_apart ? "" : as_file_name(launcher_rank());
  struct stat status {};
  if (rank.empty() || rank == "0" || descriptor_named(path) >= 0 ||
      (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))) {
    return path;
  }
  *added = true;
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return path.insert(dot, ".rank" + rank);
}

// A thousand ranks would all say the same.
bool warns_of_added_rank() {
  return launcher_rank() == "1";
}

}  // namespace cupool::util
