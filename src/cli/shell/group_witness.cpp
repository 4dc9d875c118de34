// SPDX-License-Identifier: Apache-2.0
// The kernel signals the newest process of a group first: the witness gets a signal before the
// command, but its report may come later.
#include "cli/shell/group_witness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cli/shell/input.h"

// Headers from before Linux 5.9; the number is the same for every architecture.
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace cupool::cli {

namespace {

constexpr char kName[] = "cupool-signals";
constexpr int kStartMs = 1000;

// Overwrites the arguments that ps and pgrep -f show. Source: proc(5), stat, fields 48 (arg_start)
// and 49 (arg_end).
void overwrite_arguments() {
  std::string stat;
  std::string reason;
  if (!read_regular_file("/proc/self/stat", 4096, &stat, &reason)) return;
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return;
  std::uint64_t bounds[2] = {};
  std::size_t at = name_end + 1;
  for (int field = 3; field <= 49; ++field) {
    at = stat.find_first_not_of(' ', at);
    if (at == std::string::npos) return;
    if (field >= 48) bounds[field - 48] = std::strtoull(stat.c_str() + at, nullptr, 10);
    at = stat.find(' ', at);
  }
  if (bounds[0] == 0 || bounds[1] <= bounds[0]) return;
  auto* const arguments = reinterpret_cast<char*>(bounds[0]);
  const std::size_t size = bounds[1] - bounds[0];
  std::memset(arguments, 0, size);
  std::memcpy(arguments, kName, std::min(size, sizeof kName) - 1);
}

constexpr GroupWitness::Sighting kReady{0, 0};  // the witness has its new name

void report(const GroupWitness::Sighting& sighting) {
  const ssize_t written = write(STDIN_FILENO, &sighting, sizeof sighting);
  if (written != static_cast<ssize_t>(sizeof sighting)) _exit(0);
}

[[noreturn]] void witness(const sigset_t& signals, pid_t command, int report_to) {
  // The witness ends with the command, even when that is killed.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != command) _exit(0);
  prctl(PR_SET_NAME, kName);
  overwrite_arguments();
  // A pipe that this process kept open would never end for its reader.
  if (dup2(report_to, STDIN_FILENO) < 0) _exit(0);
  if (syscall(SYS_close_range, 1u, ~0u, 0u) != 0) {
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
  }
  report(kReady);
  for (;;) {
    siginfo_t info{};
    if (sigwaitinfo(&signals, &info) <= 0 || info.si_code != SI_USER) continue;
    report({info.si_signo, info.si_pid});
  }
}

}  // namespace

GroupWitness::GroupWitness(const sigset_t& signals) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
  const pid_t command = getpid();
  process_ = fork();
  if (process_ == 0) witness(signals, command, ends[1]);
  close(ends[1]);
  descriptor_ = ends[0];
  if (process_ < 0) {
    close(descriptor_);
    descriptor_ = -1;
    return;
  }
  // Once the witness is ready, a search for the command by name finds one process. Not essential,
  // so the wait is short.
  pollfd polled{descriptor_, POLLIN, 0};
  if (poll(&polled, 1, kStartMs) > 0) read();
}

GroupWitness::~GroupWitness() {
  if (descriptor_ >= 0) close(descriptor_);
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<GroupWitness::Sighting> GroupWitness::read() {
  std::vector<Sighting> sightings;
  Sighting sighting{};
  ssize_t got = 0;
  while (descriptor_ >= 0 && (got = ::read(descriptor_, &sighting, sizeof sighting)) ==
                                 static_cast<ssize_t>(sizeof sighting)) {
    sightings.push_back(sighting);
  }
  if (descriptor_ >= 0 && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
    close(descriptor_);  // the witness was killed
    descriptor_ = -1;
  }
  return sightings;
}

void HeldSignals::arrived(int signal, pid_t sender, std::uint64_t now) {
  const bool seen = std::any_of(seen_.begin(), seen_.end(), [&](const Entry& entry) {
    return entry.signal == signal && entry.sender == sender && entry.until > now;
  });
  if (!seen) held_.push_back({signal, sender, now + kHoldNs});
}

void HeldSignals::seen_by_group(int signal, pid_t sender, std::uint64_t now) {
  const auto same = [&](const Entry& entry) {
    return entry.signal == signal && entry.sender == sender;
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), same), held_.end());
  seen_.erase(std::remove_if(seen_.begin(), seen_.end(),
                             [now](const Entry& entry) { return entry.until <= now; }),
              seen_.end());
  seen_.push_back({signal, sender, now + kHoldNs});
}

std::vector<int> HeldSignals::due(std::uint64_t now) {
  std::vector<int> signals;
  const auto first_held = std::find_if(held_.begin(), held_.end(),
                                       [now](const Entry& entry) { return entry.until > now; });
  for (auto entry = held_.begin(); entry != first_held; ++entry) signals.push_back(entry->signal);
  held_.erase(held_.begin(), first_held);
  return signals;
}

int HeldSignals::wait_ms(std::uint64_t now) const {
  if (held_.empty()) return -1;
  const std::uint64_t until = held_.front().until;
  return until <= now ? 0 : static_cast<int>((until - now) / 1'000'000 + 1);
}

}  // namespace cupool::cli
