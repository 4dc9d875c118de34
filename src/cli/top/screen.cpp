// SPDX-License-Identifier: Apache-2.0
// Home, erase line and erase below are what every terminal but a dumb one knows.
#include "cli/top/screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>

#include "cli/shell/terminal.h"
#include "util/clock.h"

namespace cupool::cli {
namespace {

volatile sig_atomic_t ending = 0;
termios modes_before{};
bool has_modes = false;

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
struct sigaction actions_before[std::size(kSignals)];

void note_signal(int number) {
  if (number != SIGWINCH) ending = 1;
}

winsize size_now() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    size.ws_col = 80;
    size.ws_row = 24;
  }
  return size;
}

// In the background the terminal is another's.
bool is_in_foreground() {
  return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

}  // namespace

Screen::Screen() {
  struct sigaction action = {};
  action.sa_handler = note_signal;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &actions_before[i]);
  }
  has_modes = is_in_foreground() && tcgetattr(STDIN_FILENO, &modes_before) == 0;
  if (!has_modes) return;
  termios modes = modes_before;
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &modes);
}

Screen::~Screen() {
  if (has_modes && is_in_foreground()) tcsetattr(STDIN_FILENO, TCSADRAIN, &modes_before);
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &actions_before[i], nullptr);
  }
}

std::size_t Screen::width() {
  return size_now().ws_col;
}

void Screen::show(const std::string& text) {
  const winsize size = size_now();
  std::string drawn = cleared_ ? "\x1b[H" : "\x1b[H\x1b[2J";
  cleared_ = true;
  std::size_t rows = 1;  // the last one is the cursor's
  for (std::size_t at = 0; at < text.size() && rows < size.ws_row; ++rows) {
    const std::size_t end = text.find('\n', at);
    drawn += cut_text(text.substr(at, end - at), size.ws_col) + "\x1b[K\n";
    at = end + 1;
  }
  drawn += "\x1b[J";
  std::fputs(drawn.c_str(), stdout);
  std::fflush(stdout);
}

bool Screen::wait(std::chrono::milliseconds time) {
  const std::uint64_t until_ns =
      util::now_ns() + static_cast<std::uint64_t>(time.count()) * 1'000'000;
  pollfd polled{has_modes ? STDIN_FILENO : -1, POLLIN, 0};
  while (ending == 0) {
    const std::uint64_t now = util::now_ns();
    if (now >= until_ns) return true;
    const int got = poll(&polled, 1, static_cast<int>((until_ns - now) / 1'000'000) + 1);
    if (got < 0) break;
    char key = 0;
    if (got == 0) continue;
    if (read(STDIN_FILENO, &key, 1) != 1) polled.fd = -1;
    if (key == 'q' || key == 'Q') return false;
    if (key == ' ') return true;
  }
  return ending == 0;
}

}  // namespace cupool::cli
