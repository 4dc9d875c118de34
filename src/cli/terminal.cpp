// Plain control sequences that every terminal of the last decades knows: return, erase the line.
#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cupool::cli {

namespace {

std::size_t terminal_width() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// The longest beginning of `text` within `columns`, which ends no character in its middle.
std::string cut(const std::string& text, std::size_t columns) {
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

bool is_dumb_terminal() {
  const char* const kind = std::getenv("TERM");
  return kind != nullptr && std::strcmp(kind, "dumb") == 0;
}

}  // namespace

bool is_terminal(int descriptor) {
  return isatty(descriptor) == 1;
}

Progress::Progress() : enabled_(is_terminal(STDERR_FILENO) && !is_dumb_terminal()) {}

Progress::~Progress() {
  clear();
}

void Progress::show(const std::string& text) {
  if (!enabled_) return;
  // The last column stays free: a terminal that wraps there could not be wiped by one return.
  std::fprintf(stderr, "\r\x1b[K%s", cut(text, terminal_width() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

void hint(const std::string& text) {
  if (is_terminal(STDERR_FILENO)) std::fprintf(stderr, "cupool: %s\n", text.c_str());
}

}  // namespace cupool::cli
