// SPDX-License-Identifier: Apache-2.0
// `cupool top`: processes that run beside the test tell what they hold. Other processes of this
// user may be listed, too, and are passed over.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "channel/directory.h"
#include "channel/messages.h"
#include "cli/top/table.h"
#include "command.h"
#include "live_program.h"
#include "pseudo_terminal.h"
#include "stats/live_figures.h"
#include "util/clock.h"

namespace cli {
namespace {

using cupool::stats::LiveFigures;
using nlohmann::json;
using preload::ProcessResult;
namespace channel = cupool::channel;

constexpr std::int64_t kMiB = 1 << 20;

// With pools from the first allocation on, which keep what lies idle.
preload::Environment under_cupool(const preload::Environment& more = {}) {
  preload::Environment environment = preload::base_environment();
  environment["CUPOOL_POOL_START"] = "first";
  environment["CUPOOL_DECAY_MS"] = "0";
  environment["CUPOOL_STATS"] = "off";
  for (const auto& [name, value] : more) environment[name] = value;
  preload::add_preload(&environment);
  return environment;
}

json seen(const json& reading, pid_t pid) {
  for (const json& process : reading.at("processes")) {
    if (process.at("pid") == pid) return process;
  }
  return nullptr;
}

json look(pid_t pid) {
  const ProcessResult result = cupool({"top", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  const json reading = json::parse(result.out, nullptr, false);
  if (!reading.is_object()) throw std::runtime_error("no JSON: " + result.describe());
  return seen(reading, pid);
}

// A channel listens a moment after the first block.
json look_until(pid_t pid, const std::function<bool(const json&)>& is_good) {
  json process;
  for (int i = 0; i < 100; ++i) {
    process = look(pid);
    if (process.is_object() && is_good(process)) break;
    usleep(50'000);
  }
  return process;
}

bool has_told(const json& process) {
  return process.at("state") == "told";
}

std::int64_t current(const json& process, const char* gauge) {
  return process.at("devices").at(0).at(gauge).at("current");
}

void expect_figures(const LiveProgram& program, int allocated, int freed, int mib) {
  const json process = look_until(program.pid(), has_told);
  ASSERT_TRUE(process.is_object());
  ASSERT_EQ(process.at("state"), "told");
  EXPECT_NE(process.at("command").get<std::string>().find("probe_live"), std::string::npos);
  EXPECT_EQ(process.at("program"), "probe_live");
  EXPECT_EQ(process.at("backend"), "pool");
  EXPECT_EQ(process.at("free_mode"), "auto");
  EXPECT_GT(process.at("uptime_ns"), 0);
  EXPECT_EQ(process.at("waiting"), 0);
  ASSERT_EQ(process.at("devices").size(), 1u);
  const json& device = process.at("devices").at(0);
  EXPECT_EQ(device.at("ordinal"), 0);
  EXPECT_EQ(device.at("uuid").get<std::string>().size(), 40u);
  EXPECT_EQ(device.at("name"), "cupool simulated device");
  EXPECT_EQ(device.at("total_memory_bytes"), std::uint64_t{4} << 30);
  EXPECT_EQ(device.at("malloc_calls_total"), allocated);
  EXPECT_EQ(device.at("free_calls_total"), freed);
  EXPECT_EQ(current(process, "device_bytes"), (allocated - freed) * mib * kMiB);
  EXPECT_EQ(current(process, "application_bytes"), (allocated - freed) * mib * kMiB);
  EXPECT_EQ(current(process, "retired_bytes") + current(process, "cached_bytes"),
            freed * mib * kMiB);
  EXPECT_EQ(device.at("device_bytes").at("peak"), allocated * mib * kMiB);
  EXPECT_GE(device.at("pool_reserved_bytes"), allocated * mib * kMiB);
  EXPECT_GE(device.at("peak_taken_bytes"), allocated * mib * kMiB);
}

TEST(Top, ShowsWhatEachProcessHolds) {
  LiveProgram few("probe_live blocks=5 frees=2 mib=4", under_cupool());
  LiveProgram many("probe_live blocks=30 frees=10 mib=16", under_cupool());
  ASSERT_EQ(few.first_line(), "ready 3");
  ASSERT_EQ(many.first_line(), "ready 20");
  expect_figures(few, 5, 2, 4);
  expect_figures(many, 30, 10, 16);
  // The largest first.
  const ProcessResult table = cupool({"top"});
  const std::size_t first = table.out.find(std::to_string(many.pid()) + " ");
  EXPECT_LT(first, table.out.find(std::to_string(few.pid()) + " ")) << table.out;
  const pid_t gone = few.pid();
  few.end();
  EXPECT_TRUE(look(gone).is_null());
  EXPECT_TRUE(look(many.pid()).is_object());
}

TEST(Top, CountsWhatAThreadHasNotToldYet) {
  const LiveProgram program("probe_live blocks=1", under_cupool());
  look_until(program.pid(), has_told);
  program.send("12345");
  const json process = look_until(program.pid(), [](const json& now) {
    return has_told(now) && now.at("devices").at(0).at("free_calls_total") == 5;
  });
  EXPECT_EQ(process.at("devices").at(0).at("malloc_calls_total"), 6);
}

TEST(Top, SaysWhetherAllWorkGoesToOneStream) {
  for (const bool allowed : {true, false}) {
    const LiveProgram program("probe_live blocks=2 work=100",
                              under_cupool({{"CUPOOL_LANE", allowed ? "1" : "0"}}));
    EXPECT_EQ(look_until(program.pid(), has_told).at("lane"), allowed ? "in" : "-");
  }
}

TEST(Top, ShowsAFreeThatWaits) {
  LiveProgram program("probe_live blocks=3 frees=1 scene=waiting",
                      under_cupool({{"CUPOOL_FREE_MODE", "sync"}, {"CUPOOL_SIM_MODE", "early"}}));
  const json process = look_until(
      program.pid(), [](const json& now) { return has_told(now) && now.at("waiting") == 1; });
  ASSERT_TRUE(process.is_object());
  EXPECT_EQ(process.at("waiting"), 1);
  EXPECT_EQ(process.at("free_mode"), "sync");
}

// What the pools have reserved is told without asking the driver: it follows what decay gives back.
TEST(Top, ShowsThatReservedMemoryGoesBack) {
  const LiveProgram program("probe_live blocks=8 frees=7 mib=32",
                            under_cupool({{"CUPOOL_DECAY_MS", "500ms"}}));
  const auto reserved = [](const json& process) {
    return process.at("devices").at(0).at("pool_reserved_bytes").get<std::int64_t>();
  };
  const json process = look_until(
      program.pid(), [&](const json& now) { return has_told(now) && reserved(now) < 128 * kMiB; });
  ASSERT_TRUE(process.is_object());
  EXPECT_LT(reserved(process), 128 * kMiB);
  EXPECT_GE(reserved(process), 32 * kMiB);
}

// The pools are made in advance, and trimmed: the growth that follows is to the size of before.
TEST(Top, ShowsWhatPoolsReserveAfterATrim) {
  const LiveProgram program("probe_live blocks=1",
                            under_cupool({{"CUPOOL_POOL_START", "background"}}));
  const json process = look_until(program.pid(), [&](const json& now) {
    program.send("1");
    return has_told(now) && now.at("devices").at(0).at("pool_reserved_bytes") >= 32 * kMiB;
  });
  ASSERT_TRUE(process.is_object());
  EXPECT_GE(process.at("devices").at(0).at("pool_reserved_bytes"), 32 * kMiB);
}

TEST(Top, ListsAProcessWithoutPools) {
  const LiveProgram program("probe_live scene=none", under_cupool());
  const json process = look(program.pid());
  ASSERT_TRUE(process.is_object());
  EXPECT_EQ(process.at("state"), "no_pools");
  const std::string number = std::to_string(program.pid());
  const ProcessResult table = cupool({"top"});
  EXPECT_NE(table.out.find("(no pools yet) probe_live scene=none\n"), std::string::npos)
      << table.out;
  const ProcessResult details = cupool({"top", number});
  EXPECT_EQ(details.exit_code, 0);
  EXPECT_NE(details.out.find(number + " "), std::string::npos) << details.out;
}

TEST(Top, ShowsEveryFigureOfANamedProcess) {
  const LiveProgram program("probe_live blocks=4 frees=1 mib=8", under_cupool());
  const LiveProgram other("probe_live blocks=1", under_cupool());
  look_until(program.pid(), has_told);
  const ProcessResult result = cupool({"top", std::to_string(program.pid())});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* part :
       {"device 0: cupool simulated device, 4.00 GiB, GPU-", "freed, GPU still using it",
        "reserved, unused", "pool reserved", "the program's in all", "24.0 MiB (peak 32.0 MiB)",
        "4 allocations, 1 frees; 0 waited for the GPU (0 ns), 0 waiting"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  EXPECT_EQ(result.out.find(std::to_string(other.pid()) + " "), std::string::npos);
}

TEST(Top, RefusesWhatItCannotShow) {
  const auto refusal = [](const std::string& pid) {
    const ProcessResult result = cupool({"top", pid});
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_EQ(refusal("2147483647"), "cupool: there is no process 2147483647\n");
  EXPECT_NE(refusal("me").find("\"me\" is no process"), std::string::npos);
  const LiveProgram plain("probe_live", preload::base_environment());
  EXPECT_NE(refusal(std::to_string(plain.pid())).find("does not run under cupool"),
            std::string::npos);
  if (geteuid() != 0) {
    EXPECT_NE(refusal("1").find("is another user's"), std::string::npos);
  }
  const ProcessResult soon = cupool({"top", "-d", "2"});
  EXPECT_EQ(soon.exit_code, 2);
  EXPECT_NE(soon.err.find("from 100ms to 60min"), std::string::npos) << soon.err;
}

TEST(Top, PrintsPlainLinesForEachReading) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  const ProcessResult result = cupool({"top", "-n", "3", "-d", "100ms"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  int headings = 0;
  int rows = 0;
  for (const std::string& line : preload::lines_of(result.out)) {
    headings += line.find("PID GPU ") != std::string::npos ? 1 : 0;
    rows += line.find(std::to_string(program.pid()) + " ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(headings, 3) << result.out;
  EXPECT_EQ(rows, 3) << result.out;
}

// Processes outside a network namespace are not seen from within.
TEST(Top, SaysThatThereIsNoProcess) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  preload::Command command;
  command.argv = {
      "/bin/sh", "-c",
      "unshare -rn true 2>/dev/null || exit 77\nunshare -rn '" + tested_command() + "' top"};
  command.environment = environment();
  const ProcessResult result = preload::run(command);
  if (result.exit_code == 77) GTEST_SKIP() << "no namespaces of users here";
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.err, "cupool: none of your processes here runs under cupool\n");
}

TEST(Top, IsNotHeldUpByAProcessThatIsStopped) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  kill(program.pid(), SIGSTOP);
  const ProcessResult result = cupool({"top", "--json"});
  EXPECT_EQ(seen(json::parse(result.out), program.pid()).at("state"), "no_answer");
  EXPECT_LT(result.seconds, 5);
}

TEST(Top, RefreshesAtATerminalUntilTheUserQuits) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  for (const char key : {'q', '\x03'}) {
    bool sent = false;
    const TerminalRun run = run_at_terminal(
        {tested_command(), "top", "-d", "100ms"}, environment({{"TERM", "xterm"}}),
        [&](const std::string& output, int, int terminal) {
          // At the third drawing.
          std::size_t drawn = 0;
          for (std::size_t at = 0; (at = output.find("\x1b[H", at)) != std::string::npos; ++at) {
            ++drawn;
          }
          if (drawn < 3 || sent) return;
          sent = write(terminal, &key, 1) == 1;
        });
    EXPECT_TRUE(WIFEXITED(run.status) && WEXITSTATUS(run.status) == 0) << run.status;
    EXPECT_NE(run.output.find("q quits"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find("reserved"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find(std::to_string(program.pid())), std::string::npos) << run.output;
  }
  const TerminalRun dumb =
      run_at_terminal({tested_command(), "top"}, environment({{"TERM", "dumb"}}));
  EXPECT_EQ(dumb.output.find('\x1b'), std::string::npos) << dumb.output;
}

TEST(Top, LeavesTheTerminalAsItWas) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  for (const char* end : {"q", "\x03"}) {
    bool sent = false;
    const TerminalRun run = run_at_terminal(
        {"/bin/sh", "-c", "trap : INT; '" + tested_command() + "' top; echo; /bin/stty -a"},
        environment({{"TERM", "xterm"}}), [&](const std::string& output, int, int terminal) {
          if (sent || output.find("q quits") == std::string::npos) return;
          sent = write(terminal, end, 1) == 1;
        });
    EXPECT_NE(run.output.find(" icanon"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find(" echo "), std::string::npos) << run.output;
  }
}

// The process that listens as the test's own.
class Stranger {
 public:
  explicit Stranger(std::string answer) : answer_(std::move(answer)) {
    listener_ = channel::listen_for_neighbours();
    thread_ = std::thread([this] { serve(); });
  }
  ~Stranger() {
    ended_ = true;
    thread_.join();
  }

 private:
  void serve() {
    while (!ended_) {
      pollfd polled{listener_.get(), POLLIN, 0};
      if (poll(&polled, 1, 10) <= 0) continue;
      bool more = false;
      const channel::Descriptor socket = channel::accept_own(listener_, &more);
      channel::NeighbourRequest request;
      channel::receive_message(socket.get(), &request, sizeof request, nullptr,
                               cupool::util::now_ns() + 1'000'000'000);
      if (answer_.empty()) continue;
      channel::send_message(socket.get(), answer_.data(), answer_.size(), -1, 0);
    }
  }

  const std::string answer_;
  channel::Descriptor listener_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

template <typename Message>
std::string bytes(const Message& message, std::size_t size = sizeof(Message)) {
  return std::string(reinterpret_cast<const char*>(&message), size);
}

LiveFigures some_figures() {
  LiveFigures figures;
  figures.magic = channel::kNeighbourMagic;
  cupool::stats::set_text(&figures.program, "stranger");
  return figures;
}

std::string state_with(const std::string& answer) {
  const Stranger stranger(answer);
  const json process = look(getpid());
  return process.is_object() ? process.at("state") : "not listed";
}

TEST(Top, BelievesNoAnswerThatIsNotOne) {
  EXPECT_EQ(state_with(bytes(some_figures())), "told");
  EXPECT_EQ(state_with(""), "no_answer");
  EXPECT_EQ(state_with("hello"), "no_answer");
  LiveFigures newer = some_figures();
  newer.version = 2;
  EXPECT_EQ(state_with(bytes(newer)), "other_version");
  EXPECT_EQ(state_with(bytes(newer, 64)), "other_version");
  EXPECT_EQ(state_with(bytes(newer) + std::string(100'000, 'x')), "other_version");
  LiveFigures foreign = some_figures();
  foreign.magic ^= 1;
  EXPECT_EQ(state_with(bytes(foreign)), "no_answer");
  LiveFigures endless = some_figures();
  endless.program.fill('x');
  EXPECT_EQ(state_with(bytes(endless)), "no_answer");
  LiveFigures many = some_figures();
  many.device_count = LiveFigures::kMostDevices + 1;
  EXPECT_EQ(state_with(bytes(many)), "no_answer");
  LiveFigures lane = some_figures();
  lane.lane = static_cast<cupool::stats::LaneState>(4);
  EXPECT_EQ(state_with(bytes(lane)), "no_answer");
}

// A connection to the channel of the program, or an invalid one.
channel::Descriptor channel_of(pid_t pid) {
  channel::Descriptor found;
  channel::connect_to_neighbours(cupool::util::now_ns() + 5'000'000'000,
                                 [&](channel::Descriptor socket, const channel::Peer& peer) {
                                   if (peer.process != pid) return true;
                                   found = std::move(socket);
                                   return false;
                                 });
  return found;
}

// The bytes of the answer; 0: hung up.
template <typename Request>
ssize_t ask(pid_t pid, const Request& request, std::size_t size, LiveFigures* figures) {
  const channel::Descriptor socket = channel_of(pid);
  if (!socket.valid()) return -1;
  channel::send_message(socket.get(), &request, size, -1, 0);
  pollfd polled{socket.get(), POLLIN, 0};
  if (poll(&polled, 1, 5000) != 1) return -2;
  return std::max<ssize_t>(recv(socket.get(), figures, sizeof *figures, 0), 0);
}

channel::NeighbourRequest figures_request() {
  channel::NeighbourRequest request;
  request.verb = channel::NeighbourVerb::figures;
  return request;
}

TEST(Top, IsAnsweredByProcessesThatStrangersAsked) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  LiveFigures figures;
  const channel::NeighbourRequest good = figures_request();
  channel::NeighbourRequest foreign = good;
  foreign.magic ^= 1;
  channel::NeighbourRequest newer = good;
  newer.version = 2;
  channel::NeighbourRequest other_verb = good;
  other_verb.verb = static_cast<channel::NeighbourVerb>(3);
  EXPECT_EQ(ask(program.pid(), good, 10, &figures), 0) << "torn";
  EXPECT_EQ(ask(program.pid(), std::string(500, 'x')[0], 1, &figures), 0);
  EXPECT_EQ(ask(program.pid(), foreign, sizeof foreign, &figures), 0);
  // Of another version: what this one is, and nothing else.
  for (const channel::NeighbourRequest& odd : {newer, other_verb}) {
    figures = LiveFigures{};
    EXPECT_EQ(ask(program.pid(), odd, sizeof odd, &figures), 64);
    EXPECT_EQ(figures.magic, channel::kNeighbourMagic);
    EXPECT_EQ(figures.version, 1u);
  }
  EXPECT_EQ(ask(program.pid(), good, sizeof good, &figures), static_cast<ssize_t>(sizeof figures));
  EXPECT_EQ(figures.pid, program.pid());
}

TEST(Top, IsAnsweredAFewTimesASecondHoweverOftenItAsks) {
  const LiveProgram program("probe_live", under_cupool());
  look_until(program.pid(), has_told);
  std::set<std::uint64_t> readings;
  const std::uint64_t begin = cupool::util::now_ns();
  while (cupool::util::now_ns() - begin < 500'000'000) {
    LiveFigures figures;
    ask(program.pid(), figures_request(), sizeof(channel::NeighbourRequest), &figures);
    readings.insert(figures.time_ns);
  }
  EXPECT_GE(readings.size(), 3u);
  EXPECT_LE(readings.size(), (cupool::util::now_ns() - begin) / 20'000'000 + 1);
}

using cupool::cli::LiveProcess;
using cupool::cli::LiveReading;

LiveProcess told(pid_t pid, std::uint64_t time_ns, std::uint64_t allocations) {
  LiveProcess process;
  process.pid = pid;
  process.state = LiveProcess::State::told;
  process.command = "./solve --input mesh.dat";
  process.figures = some_figures();
  process.figures.time_ns = time_ns;
  cupool::stats::set_text(&process.figures.free_mode, "auto");
  cupool::stats::LiveDevice device;
  device.counters[0] = allocations;
  device.pool_reserved_bytes = 96 * kMiB;
  device.gauges[0] = {50 * kMiB, 60 * kMiB};
  process.figures.add(device);
  process.all.add(device);
  return process;
}

TEST(Top, ComputesRatesFromTwoReadings) {
  LiveReading reading;
  reading.now = {told(7, 3'000'000'000, 300), told(8, 1'000'000'000, 5)};
  EXPECT_EQ(live_table(reading, 0).find("100"), std::string::npos);
  // Process 8 is a new one with an old number.
  reading.before = {told(7, 1'000'000'000, 100), told(8, 2'000'000'000, 1)};
  EXPECT_EQ(live_table(reading, 0),
            "PID GPU program's freed unused reserved peak host allocs/s waiting waited mode lane"
            "     up command\n"
            "  7   0  50.0 MiB   0 B    0 B 96.0 MiB  0 B  0 B      100       0      0 auto    -"
            " 3.00 s ./solve --input mesh.dat\n"
            "  8   0  50.0 MiB   0 B    0 B 96.0 MiB  0 B  0 B        -       0      0 auto    -"
            " 1.00 s ./solve --input mesh.dat\n");
}

TEST(Top, LeavesColumnsOutWhereTheTerminalIsNarrow) {
  LiveReading reading;
  reading.now = {told(7, 3'000'000'000, 300)};
  reading.now[0].command += std::string(1000, 'x');
  EXPECT_LE(preload::lines_of(live_table(reading, 0)).at(1).size(), 250u);
  for (const std::size_t columns : {200u, 100u, 80u, 60u, 45u}) {
    const std::string heading = preload::lines_of(live_table(reading, columns)).at(0);
    EXPECT_LE(heading.size(), columns) << heading;
    EXPECT_NE(heading.find("program's"), std::string::npos) << heading;
    EXPECT_NE(heading.find("reserved"), std::string::npos) << heading;
    EXPECT_EQ(heading.find("lane") != std::string::npos, columns >= 200) << heading;
  }
}

TEST(Top, AddsUpTheDevicesBeyondWhatAMessageHolds) {
  LiveFigures figures = some_figures();
  for (int i = 0; i < 20; ++i) {
    cupool::stats::LiveDevice device;
    device.ordinal = i;
    device.pool_reserved_bytes = 1;
    figures.add(device);
  }
  ASSERT_EQ(figures.device_count, LiveFigures::kMostDevices);
  EXPECT_EQ(figures.devices[14].ordinal, 14);
  EXPECT_EQ(figures.devices[15].ordinal, -1);
  EXPECT_EQ(figures.devices[15].pool_reserved_bytes, 5u);
}

}  // namespace
}  // namespace cli
