// SPDX-License-Identifier: Apache-2.0
// Uses only carriage return and "erase line", which every terminal knows.
#include "cli/shell/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "util/clock.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::uint64_t kMomentNs = 300'000'000;
constexpr std::uint64_t kBetweenStepsNs = 100'000'000;

std::size_t terminal_width() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

bool is_terminal(int descriptor) {
  return isatty(descriptor) == 1;
}

bool can_redraw(int descriptor) {
  const char* const kind = std::getenv("TERM");
  return is_terminal(descriptor) && (kind == nullptr || std::strcmp(kind, "dumb") != 0);
}

std::string cut_text(const std::string& text, std::size_t columns) {
  std::size_t bytes = 0;
  std::size_t used = 0;
  while (bytes < text.size() && used < columns) {
    do {
      ++bytes;
    } while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0u) == 0x80u);
    ++used;
  }
  return text.substr(0, bytes);
}

Progress::Progress() : enabled_(can_redraw(STDERR_FILENO)), shown_ns_(util::now_ns()) {}

Progress::~Progress() {
  clear();
}

void Progress::show(const std::string& text) {
  if (!enabled_) return;
  // The last column stays free: after a wrap there, one return could not erase the line.
  std::fprintf(stderr, "\r\x1b[K%s", cut_text(util::printable(text), terminal_width() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::show_step(const std::string& text, std::size_t step, std::size_t steps) {
  if (!enabled_) return;
  const std::uint64_t now = util::now_ns();
  if (now - shown_ns_ < (shown_ ? kBetweenStepsNs : kMomentNs)) return;
  shown_ns_ = now;
  show(text + " " + util::format_count(step) + " of " + util::format_count(steps));
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

void hint(const std::string& text) {
  if (is_terminal(STDERR_FILENO))
    std::fprintf(stderr, "cupool: %s\n", util::printable(text).c_str());
}

}  // namespace cupool::cli
