// SPDX-License-Identifier: Apache-2.0
// `cupool top [PID...]`: the figures of running processes, from themselves.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>
#include <utility>

#include "cli/command.h"
#include "cli/shell/terminal.h"
#include "cli/top/processes.h"
#include "cli/top/screen.h"
#include "cli/top/table.h"
#include "config/value.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct TopArguments {
  std::vector<std::string> pids;
  std::string delay = "1s";
  int readings = 0;  ///< 0: not set
  bool json = false;
};

std::vector<pid_t> numbers_of(const std::vector<std::string>& words) {
  std::vector<pid_t> pids;
  for (const std::string& word : words) {
    std::uint64_t number = 0;
    if (!util::parse_uint64(word, &number) || number == 0 || number > INT32_MAX) {
      throw UsageError("\"" + word + "\" is no process: cupool top takes numbers of processes");
    }
    pids.push_back(static_cast<pid_t>(number));
    require_under_cupool(pids.back());
  }
  return pids;
}

std::chrono::milliseconds delay_of(const std::string& text) {
  std::chrono::milliseconds delay{0};
  if (!config::parse_value(text, config::Range{100, 3'600'000}, &delay)) {
    throw UsageError("--delay takes a time from 100ms to 60min, as in 500ms or 2s, not " + text);
  }
  return delay;
}

// Reads all processes, and shows those that are asked for.
class Top {
 public:
  explicit Top(const TopArguments& arguments)
      : pids_(numbers_of(arguments.pids)), json_(arguments.json) {}

  void read() {
    reading_.before = std::move(reading_.now);
    reading_.now = live_processes();
    if (pids_.empty()) return;
    const auto is_unwanted = [&](const LiveProcess& process) {
      return std::find(pids_.begin(), pids_.end(), process.pid) == pids_.end();
    };
    reading_.now.erase(std::remove_if(reading_.now.begin(), reading_.now.end(), is_unwanted),
                       reading_.now.end());
    for (const pid_t pid : pids_) add_without_cuda(pid);
  }
  // `columns`: 0 for any number.
  std::string text(std::size_t columns) const {
    if (json_) {
      timespec now{};
      clock_gettime(CLOCK_REALTIME, &now);
      return live_json(reading_, static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
                                     static_cast<std::uint64_t>(now.tv_nsec));
    }
    return pids_.empty() ? live_table(reading_, columns) : live_details(reading_);
  }
  bool found_none() const { return pids_.empty() && reading_.now.empty(); }
  std::string summary() const { return live_summary(reading_); }
  // All that were asked for have ended.
  bool is_over() const {
    return !pids_.empty() && std::all_of(pids_.begin(), pids_.end(), has_ended);
  }

 private:
  // One that has not used CUDA is listed if it is asked for.
  void add_without_cuda(pid_t pid) {
    const auto is_it = [pid](const LiveProcess& process) { return process.pid == pid; };
    if (has_ended(pid) || std::any_of(reading_.now.begin(), reading_.now.end(), is_it)) return;
    LiveProcess process;
    process.pid = pid;
    process.command = "(not on the GPU)";
    reading_.now.push_back(std::move(process));
  }

  const std::vector<pid_t> pids_;
  const bool json_;
  LiveReading reading_;
};

int act_at_terminal(Top& top, std::chrono::milliseconds delay, int readings) {
  Screen screen;
  for (int i = 1;; ++i) {
    top.read();
    screen.show("cupool top (q quits): " + top.summary() + "\n" + top.text(Screen::width()));
    if (i == readings || top.is_over() || !screen.wait(delay)) return exit_ok;
  }
}

int act(const TopArguments& arguments) {
  const std::chrono::milliseconds delay = delay_of(arguments.delay);
  Top top(arguments);
  if (can_redraw(STDOUT_FILENO) && !arguments.json) {
    return act_at_terminal(top, delay, arguments.readings);
  }
  const int readings = std::max(arguments.readings, 1);
  for (int i = 1;; ++i) {
    top.read();
    if (i == 1 && top.found_none() && !arguments.json) {
      std::fputs("cupool: none of your processes here runs under cupool\n", stderr);
    }
    std::fputs(top.text(0).c_str(), stdout);
    // A reader that is gone ends it.
    if (std::fflush(stdout) != 0 || i == readings || top.is_over()) return exit_ok;
    std::this_thread::sleep_for(delay);
    if (!arguments.json) std::fputs("\n", stdout);
  }
}

}  // namespace

void add_top(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<TopArguments>();
  CLI::App* command =
      add_command(app, session, "top", "Show the running processes under cupool.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command
      ->add_option("pid", arguments->pids, "Show every figure of these processes, device by device")
      ->type_name("PID");
  command
      ->add_option("-d,--delay", arguments->delay,
                   "Time between two readings: 500ms, 2s, 1min (default 1s)")
      ->type_name("TIME");
  command
      ->add_option("-n,--readings", arguments->readings,
                   "End after N readings (default 1, and until q at a terminal)")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("N");
  command->add_flag("--json", arguments->json, "Print JSON, a line for each reading");
  command->footer(
      "Your own processes, largest reserved memory first. program's: live memory; freed: freed, "
      "GPU\n"
      "still using it; unused: reserved, unused; reserved: pools, and what the driver served "
      "beside\n"
      "them; host: page-locked host memory; waiting, waited: frees that wait for the GPU now, and\n"
      "have so far. Only a process with pools answers: before its first frees, and with\n"
      "CUPOOL_BACKEND=malloc or CUPOOL_MODE=observe, it is listed without figures. One in another\n"
      "container or network namespace is not seen. Exit code 2: a PID is no process, another\n"
      "user's, or not under cupool.");
}

}  // namespace cupool::cli
