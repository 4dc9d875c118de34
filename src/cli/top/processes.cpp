// SPDX-License-Identifier: Apache-2.0
// A process without pools has no channel: it is found by what it has mapped.
#include "cli/top/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "channel/directory.h"
#include "channel/messages.h"
#include "cli/shell/exit_code.h"
#include "util/clock.h"
#include "util/text.h"

namespace cupool::cli {
namespace {

using State = LiveProcess::State;

constexpr std::uint64_t kAnswerNs = 500'000'000;
constexpr std::size_t kMostAsked = 512;
// Of an environment or a list of mappings.
constexpr std::size_t kMostBytes = 8u << 20;

// A file of /proc, whose size is not known before.
std::string content_of(pid_t pid, const char* name) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const util::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string content;
  char part[4096];
  while (file.valid() && content.size() < kMostBytes) {
    const ssize_t got = read(file.get(), part, sizeof part);
    if (got <= 0) break;
    content.append(part, static_cast<std::size_t>(got));
  }
  return content;
}

bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Without the folder of the program; empty for a process that has ended.
std::string command_of(pid_t pid) {
  std::string words = content_of(pid, "cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  words.erase(0, words.rfind('/', words.find('\0')) + 1);
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

struct Asked {
  util::Descriptor socket;
  LiveProcess process;
};

std::vector<Asked> ask_all(std::uint64_t deadline_ns) {
  std::vector<Asked> all;
  channel::NeighbourRequest request;
  request.verb = channel::NeighbourVerb::figures;
  channel::connect_to_neighbours(
      deadline_ns, [&](util::Descriptor socket, const channel::Peer& peer) {
        Asked asked;
        asked.process.pid = peer.process;
        asked.process.state = State::silent;
        if (channel::send_message(socket.get(), &request, sizeof request, -1, 0) ==
            channel::Transfer::done) {
          asked.socket = std::move(socket);
        }
        all.push_back(std::move(asked));
        return all.size() < kMostAsked;
      });
  return all;
}

void sum_up(LiveProcess* process) {
  for (std::size_t i = 0; i < process->figures.device_count; ++i) {
    process->all.add(process->figures.devices[i]);
  }
}

// The length of the whole message is compared, whatever of it fits.
void take_answer(Asked* asked) {
  stats::LiveFigures message;
  const ssize_t got = recv(asked->socket.get(), &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  asked->socket.reset();
  LiveProcess& process = asked->process;
  switch (stats::read_live_figures(&message, got < 0 ? 0 : static_cast<std::size_t>(got),
                                   &process.figures)) {
    case stats::LiveAnswer::figures:
      process.state = State::told;
      return sum_up(&process);
    case stats::LiveAnswer::other_version:
      process.state = State::other_version;
      return;
    case stats::LiveAnswer::none:
      return;
  }
}

void take_answers(std::vector<Asked>& all, std::uint64_t deadline_ns) {
  for (;;) {
    std::vector<pollfd> polled;
    std::vector<Asked*> waiting;
    for (Asked& asked : all) {
      if (!asked.socket.valid()) continue;
      polled.push_back({asked.socket.get(), POLLIN, 0});
      waiting.push_back(&asked);
    }
    const std::uint64_t now = util::now_ns();
    if (waiting.empty() || now >= deadline_ns) return;
    poll(polled.data(), polled.size(), static_cast<int>((deadline_ns - now) / 1'000'000) + 1);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (polled[i].revents != 0) take_answer(waiting[i]);
    }
  }
}

bool is_own(pid_t pid) {
  struct stat status {};
  return stat(("/proc/" + std::to_string(pid)).c_str(), &status) == 0 && status.st_uid == geteuid();
}

bool is_under_cupool(pid_t pid) {
  return holds(content_of(pid, "maps"), "/libcupool");
}

// Those that use CUDA: a shell or a launcher under cupool never gets pools. The mappings of a
// process are asked for only if its environment names the library.
void add_without_channel(std::vector<LiveProcess>* all) {
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    std::uint64_t number = 0;
    if (!util::parse_uint64(entry->d_name, &number)) continue;
    LiveProcess process;
    process.pid = static_cast<pid_t>(number);
    const auto is_known = [&](const LiveProcess& known) { return known.pid == process.pid; };
    if (std::any_of(all->begin(), all->end(), is_known) || !is_own(process.pid) ||
        !holds(content_of(process.pid, "environ"), "libcupool")) {
      continue;
    }
    const std::string maps = content_of(process.pid, "maps");
    if (!holds(maps, "/libcupool") || !holds(maps, "/libcuda.so")) continue;
    process.command = command_of(process.pid);
    if (!process.command.empty()) all->push_back(std::move(process));
  }
  closedir(folder);
}

}  // namespace

std::vector<LiveProcess> live_processes() {
  const std::uint64_t deadline_ns = util::now_ns() + kAnswerNs;
  std::vector<Asked> asked = ask_all(deadline_ns);
  take_answers(asked, deadline_ns);
  std::vector<LiveProcess> all;
  for (Asked& each : asked) {
    LiveProcess& process = each.process;
    if (process.pid != 0) process.command = command_of(process.pid);
    if (process.command.empty() && process.told()) process.command = process.figures.program.data();
    // Without an answer and a command it has ended meanwhile.
    if (!process.command.empty()) all.push_back(std::move(process));
  }
  add_without_channel(&all);
  std::sort(all.begin(), all.end(), [](const LiveProcess& a, const LiveProcess& b) {
    const std::uint64_t a_bytes = a.all.reserved_bytes();
    const std::uint64_t b_bytes = b.all.reserved_bytes();
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.pid < b.pid;
  });
  return all;
}

void require_under_cupool(pid_t pid) {
  const std::string name = "process " + std::to_string(pid);
  if (has_ended(pid)) throw UsageError("there is no " + name);
  if (!is_own(pid)) {
    throw UsageError(name + " is another user's: only that user can look at it");
  }
  if (!is_under_cupool(pid)) {
    throw UsageError(name +
                     " does not run under cupool. Start it with `cupool run` to see it here");
  }
}

bool has_ended(pid_t pid) {
  return access(("/proc/" + std::to_string(pid)).c_str(), F_OK) != 0;
}

}  // namespace cupool::cli
