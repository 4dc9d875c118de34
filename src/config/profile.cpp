// SPDX-License-Identifier: Apache-2.0
// Reads a profile by plain system calls: at most 1 MiB, so that a wrong path (a device, a dump)
// costs nothing.
#include "config/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "util/text.h"
#include "util/uncancelled.h"

namespace cupool::config {

namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

// The content, or false with `reason` set.
bool read_file(const std::string& path, std::string* content, std::string* reason) {
  const util::Uncancelled throughout;
  // Non-blocking: opening a FIFO must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    *reason = std::strerror(errno);
    return false;
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    *reason = "not a regular file";
  } else {
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::read(fd, buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) *reason = std::strerror(errno);
      if (got <= 0) break;
      content->append(buffer, static_cast<std::size_t>(got));
      if (content->size() > kMaxBytes) {
        *reason = "larger than 1 MiB";
        break;
      }
    }
  }
  ::close(fd);
  return reason->empty();
}

// The value of a line, without quotes and comments.
std::string value_of(std::string_view text) {
  text = util::trim(text);
  if (text.size() >= 2 && (text[0] == '"' || text[0] == '\'')) {
    const std::size_t end = text.find(text[0], 1);
    const std::string_view rest =
        end == std::string_view::npos ? "x" : util::trim(text.substr(end + 1));
    if (rest.empty() || rest[0] == '#') return std::string(text.substr(1, end - 1));
    return std::string(text);
  }
  if (!text.empty() && text[0] == '#') return {};
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '#' && (text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return std::string(util::trim(text.substr(0, i)));
    }
  }
  return std::string(text);
}

bool is_key(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (const char c : text) {
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

}  // namespace

KeyValues read_profile(const std::string& path, std::vector<std::string>* warnings) {
  KeyValues pairs;
  std::string content;
  std::string reason;
  if (!read_file(path, &content, &reason)) {
    warnings->push_back("cannot read CUPOOL_PROFILE " + path + ": " + reason + "; ignored");
    return pairs;
  }
  std::string_view rest = content;
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";  // editors put it before UTF-8
  if (util::starts_with(rest, byte_order_mark)) rest.remove_prefix(byte_order_mark.size());
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    std::string_view line = util::trim(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty() || line[0] == '#') continue;
    constexpr std::string_view word = "export";
    if (line.size() > word.size() && line.substr(0, word.size()) == word &&
        (line[word.size()] == ' ' || line[word.size()] == '\t')) {
      line = util::trim(line.substr(word.size()));
    }
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_key(line.substr(0, equals))) {
      warnings->push_back(path + ":" + std::to_string(number) + ": not a KEY=VALUE line; ignored");
      continue;
    }
    pairs.emplace_back(std::string(line.substr(0, equals)), value_of(line.substr(equals + 1)));
  }
  return pairs;
}

}  // namespace cupool::config
