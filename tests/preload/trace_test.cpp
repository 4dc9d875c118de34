// SPDX-License-Identifier: Apache-2.0
// Traces of real runs (docs/statistics.md, Traces): read back as RMM's replay benchmark and Chrome
// read them, bounded, and no trouble of theirs is the program's.
#include <csignal>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "harness.h"

namespace preload {
namespace {

struct Row {
  int thread = 0;
  std::string time;
  std::string action;
  uint64_t pointer = 0;
  uint64_t size = 0;
};

// Every line must be a row; a stream other than the default one is nothing that a replay takes.
std::vector<Row> rows_of(const std::string& text) {
  std::vector<Row> rows;
  std::istringstream lines(text);
  std::string line;
  EXPECT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, "Thread,Time,Action,Pointer,Size,Stream");
  const std::regex form(
      "(\\d+),(\\d\\d:\\d\\d:\\d\\d\\.\\d{6}),(allocate|free|allocate failure),"
      "(0x[0-9a-f]+|\\(nil\\)),(\\d+),0");
  while (std::getline(lines, line)) {
    std::smatch match;
    if (!std::regex_match(line, match, form)) {
      ADD_FAILURE() << "no row: " << line;
      continue;
    }
    const uint64_t pointer = match[4] == "(nil)" ? 0 : std::stoull(match[4], nullptr, 16);
    rows.push_back({std::stoi(match[1]), match[2], match[3], pointer, std::stoull(match[5])});
  }
  return rows;
}

struct Replayed {
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t failures = 0;
  std::set<int> threads;
  std::map<uint64_t, uint64_t> live;
};

// As the benchmark replays: in the order of the rows. An address is never allocated twice at once,
// and what is freed is there, with its size.
Replayed replay(const std::vector<Row>& rows) {
  Replayed state;
  for (const Row& row : rows) {
    state.threads.insert(row.thread);
    if (row.action == "allocate") {
      ++state.allocations;
      EXPECT_TRUE(state.live.emplace(row.pointer, row.size).second) << "allocated twice at once";
    } else if (row.action == "free") {
      ++state.frees;
      const auto found = state.live.find(row.pointer);
      if (found == state.live.end()) {
        ADD_FAILURE() << "freed before it was allocated";
        continue;
      }
      EXPECT_EQ(found->second, row.size);
      state.live.erase(found);
    } else {
      ++state.failures;
    }
  }
  return state;
}

class Trace : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }
  const ScratchFolder folder_;
};

TEST_F(Trace, OfManyThreadsIsInAnOrderThatReplays) {
  const std::string probe =
      "probe_runtime_shared threads=4 iterations=" + std::to_string(often(300));
  const PreloadedRun result = expect_same(probe, 0, 1, {{"CUPOOL_TRACE", file("trace.csv")}});
  const Replayed replayed = replay(rows_of(read_file(file("trace.csv"))));
  const Counts counts = counts_of(result.process.out);
  EXPECT_EQ(replayed.allocations, counts.mallocs);
  EXPECT_EQ(replayed.frees, counts.frees);
  EXPECT_EQ(replayed.threads.size(), 4u);
  EXPECT_TRUE(replayed.live.empty());
  const nlohmann::json& trace = result.reports.at(0).at("trace");
  EXPECT_EQ(trace.at("events_total"), counts.mallocs + counts.frees);
  EXPECT_EQ(trace.at("dropped_events_total"), 0);
  EXPECT_EQ(trace.at("file_bytes"), read_file(file("trace.csv")).size());
}

TEST_F(Trace, ComesByEveryRouteAndBackend) {
  for (const char* probe : {"probe_runtime_shared", "probe_runtime_static", "probe_driver_linked",
                            "probe_dlsym", "probe_getproc"}) {
    for (const char* most : {"100%", "64K"}) {  // with the latter, most is passed through
      const PreloadedRun result = expect_same(
          probe, 0, 1, {{"CUPOOL_TRACE", file("trace.csv")}, {"CUPOOL_MAX_BLOCK", most}});
      const Replayed replayed = replay(rows_of(read_file(file("trace.csv"))));
      EXPECT_EQ(replayed.allocations, counts_of(result.process.out).mallocs);
      EXPECT_EQ(replayed.frees, counts_of(result.process.out).frees);
    }
  }
}

TEST_F(Trace, ForChromeHasEveryCallWithItsTime) {
  const std::string probe =
      "probe_runtime_shared threads=2 iterations=" + std::to_string(often(400));
  const PreloadedRun result = expect_same(probe, 0, 1, {{"CUPOOL_TRACE", file("trace.json")}});
  const auto events = nlohmann::json::parse(read_file(file("trace.json")), nullptr, false);
  ASSERT_FALSE(events.is_discarded());
  std::map<std::string, uint64_t> names;
  for (const nlohmann::json& event : events) {
    ++names[event.at("name")];
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("ts").get<double>(), 0);
    EXPECT_GE(event.at("dur").get<double>(), 0);
  }
  EXPECT_EQ(names["malloc"], counts_of(result.process.out).mallocs);
  EXPECT_EQ(names["free"], counts_of(result.process.out).frees);
  EXPECT_EQ(names["thread_name"], 2u);
  EXPECT_GE(names["live bytes of device 0"], 1u);
}

TEST_F(Trace, ForChromeHasMemoryOfEveryKind) {
  for (const char* async : {"threshold", "serve"}) {
    SCOPED_TRACE(async);
    expect_same("probe_leaks kinds=1", 0, 1,
                {{"CUPOOL_TRACE", file("trace.json")}, {"CUPOOL_ASYNC", async}});
    const auto events = nlohmann::json::parse(read_file(file("trace.json")), nullptr, false);
    ASSERT_FALSE(events.is_discarded());
    std::map<std::string, uint64_t> names;
    std::map<std::string, long> last;
    for (const nlohmann::json& event : events) {
      ++names[event.at("name")];
      if (event.at("ph") == "C") last[event.at("name")] = event.at("args").at("bytes");
    }
    EXPECT_EQ(names["malloc"], 107u);
    EXPECT_EQ(names["free"], 103u);
    EXPECT_EQ(names["page-locked malloc"], 44u);
    EXPECT_EQ(names["page-locked free"], 40u);
    EXPECT_EQ(names["managed malloc"], 22u);
    EXPECT_EQ(names["managed free"], 20u);
    EXPECT_EQ(names["stream-ordered malloc"], 42u);
    EXPECT_EQ(names["stream-ordered free"], 40u);
    EXPECT_EQ(last.count("live page-locked bytes"), 1u);
    EXPECT_EQ(last.count("live managed bytes of device 0"), 1u);
    EXPECT_EQ(last.count("live stream-ordered bytes of device 0"), 1u);
  }
}

// Its readers know device memory alone.
TEST_F(Trace, ForRmmHasDeviceMemoryAlone) {
  const PreloadedRun result =
      expect_same("probe_leaks kinds=1", 0, 1, {{"CUPOOL_TRACE", file("trace.csv")}});
  const Replayed replayed = replay(rows_of(read_file(file("trace.csv"))));
  EXPECT_EQ(replayed.allocations, 107u);
  EXPECT_EQ(result.reports.at(0).at("trace").at("events_total"), 107u + 103u);
}

TEST_F(Trace, IsBoundedAndSaysWhatItLacks) {
  const int iterations = 400;
  const std::string probe = "probe_runtime_shared iterations=" + std::to_string(iterations);
  for (const char* name : {"trace.csv", "trace.json"}) {
    const PreloadedRun result =
        run_preloaded(probe, {{"CUPOOL_TRACE", file(name)}, {"CUPOOL_TRACE_LIMIT", "16K"}});
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(result.process.out, run_plain(probe).out);
    const std::string text = read_file(file(name));
    EXPECT_LE(text.size(), 16384u);
    EXPECT_GE(text.size(), 15800u) << "room is kept for the ends of the curves";
    const nlohmann::json& trace = result.reports.at(0).at("trace");
    const uint64_t dropped = trace.at("dropped_events_total");
    EXPECT_GT(dropped, 500u);
    EXPECT_NE(result.process.err.find(std::to_string(dropped) + " events"), std::string::npos)
        << result.describe();
    if (std::string(name) == "trace.csv") {
      const size_t written = rows_of(text).size();
      EXPECT_EQ(trace.at("events_total"), written);
      EXPECT_EQ(written + dropped, 4u * iterations);
    } else {
      EXPECT_FALSE(nlohmann::json::parse(text, nullptr, false).is_discarded());
    }
  }
}

TEST_F(Trace, OnAFullDiskWarnsOnceAndLeavesTheProgramAlone) {
  const int iterations = often(600);
  const std::string probe = "probe_runtime_shared iterations=" + std::to_string(iterations);
  const PreloadedRun result = run_preloaded(probe, {{"CUPOOL_TRACE", "/dev/full"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, run_plain(probe).out);
  const std::string& err = result.process.err;
  const size_t first = err.find("cannot write CUPOOL_TRACE /dev/full: No space left on device");
  EXPECT_NE(first, std::string::npos) << err;
  EXPECT_EQ(err.find("cannot write", first + 1), std::string::npos) << err;
  EXPECT_EQ(result.reports.at(0).at("trace").at("dropped_events_total"), 4 * iterations);
}

TEST_F(Trace, IntoAMissingFolderSaysToCreateIt) {
  const PreloadedRun result =
      run_preloaded("probe_words loop=3", {{"CUPOOL_TRACE", file("none/trace.csv")}});
  EXPECT_TRUE(contains(result.process.err,
                       "No such file or directory; the trace ends here. Create "
                       "the folder first"))
      << result.describe();
  EXPECT_TRUE(contains(result.process.err, "lacks 6 events: it could not be written"))
      << result.describe();
  EXPECT_FALSE(contains(result.process.err, "CUPOOL_TRACE_LIMIT")) << result.describe();
}

// Its own process only: what another one has written is not appended to.
TEST_F(Trace, OfTwoProcessesInOneFileEndsWithAWarning) {
  const std::string traced = file("trace.json");
  Command other;
  other.argv = {"/bin/sh", "-c",
                "until [ -s " + traced + " ]; do sleep 0.01; done; echo other > " + traced +
                    "; touch " + file("go")};
  other.environment = base_environment();
  std::thread beside([&other] { run(other); });
  // Enough for a first write before the other's.
  const PreloadedRun result = run_preloaded(
      "probe_words loop=2000 hold=" + file("go") + " loop=2000", {{"CUPOOL_TRACE", traced}});
  beside.join();
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(traced), "other\n");
  EXPECT_TRUE(contains(result.process.err, "another process writes this file"))
      << result.describe();
  EXPECT_TRUE(contains(result.process.err, "With %p in the name")) << result.describe();
}

// RLIMIT_FSIZE stands for any disk that fills up within a row.
TEST_F(Trace, ThatFindsNoRoomEndsWithAWholeRowAndItsFiguresAgree) {
  const int iterations = 400;
  const std::string probe =
      "probe_runtime_shared file_limit=50000 iterations=" + std::to_string(iterations);
  for (const char* name : {"trace.csv", "trace.json"}) {
    SCOPED_TRACE(name);
    const PreloadedRun result = run_preloaded(probe, {{"CUPOOL_TRACE", file(name)}});
    EXPECT_EQ(result.process.signal, 0) << result.describe();
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(result.process.out, run_plain(probe).out);
    EXPECT_TRUE(contains(result.process.err, "File too large; the trace ends here"))
        << result.describe();
    ASSERT_EQ(result.reports.size(), 1u) << "the report has room";
    const nlohmann::json& trace = result.reports[0].at("trace");
    const std::string text = read_file(file(name));
    EXPECT_EQ(trace.at("file_bytes"), text.size());
    EXPECT_LE(text.size(), 50'000u);
    EXPECT_GE(text.size(), 49'000u) << "what was written whole stays";
    const uint64_t events = trace.at("events_total");
    const uint64_t dropped = trace.at("dropped_events_total");
    if (std::string(name) == "trace.csv") {
      EXPECT_EQ(rows_of(text).size(), events);
      EXPECT_EQ(events + dropped, 4u * iterations);
    } else {
      // The closing bracket may be missing, half an event may not.
      EXPECT_FALSE(nlohmann::json::parse(text + "]", nullptr, false).is_discarded());
      EXPECT_GT(dropped, 0u);
    }
  }
}

TEST_F(Trace, IsWholeHoweverTheProcessLeaves) {
  for (const char* mode : {"return", "exit", "_exit", "_Exit", "quick_exit", "thread"}) {
    const PreloadedRun result = expect_same(std::string("probe_exit mode=") + mode, 7, 1,
                                            {{"CUPOOL_TRACE", file("trace.csv")}});
    const uint64_t traced = replay(rows_of(read_file(file("trace.csv")))).allocations;
    const uint64_t counted = result.counter("malloc_calls_total");
    // The report comes after the trace, and in the last mode a thread allocates all the time.
    EXPECT_LE(traced, counted) << mode;
    EXPECT_GE(traced + (std::string(mode) == "thread" ? counted / 2 : 0), counted) << mode;
  }
}

TEST_F(Trace, NeedsNoReport) {
  const PreloadedRun result = run_preloaded(
      "probe_runtime_shared", {{"CUPOOL_TRACE", file("trace.csv")}, {"CUPOOL_STATS", "off"}});
  EXPECT_TRUE(result.reports.empty());
  EXPECT_EQ(replay(rows_of(read_file(file("trace.csv")))).allocations,
            counts_of(result.process.out).mallocs);
}

TEST_F(Trace, IsUpToDateAfterASnapshot) {
  const PreloadedRun result =
      run_preloaded("probe_life_signal mode=killed",
                    {{"CUPOOL_STATS_SIGNAL", "USR1"}, {"CUPOOL_TRACE", file("trace.csv")}});
  EXPECT_EQ(result.process.signal, SIGKILL) << result.describe();
  EXPECT_EQ(replay(rows_of(read_file(file("trace.csv")))).allocations, 8u);
}

TEST_F(Trace, HasTheNameOfItsProcess) {
  const PreloadedRun result =
      run_preloaded("probe_fork mode=both", {{"CUPOOL_TRACE", file("t-%p.csv")}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(folder_.files().size(), 2u) << "both processes allocate";
  EXPECT_FALSE(read_file(file("t-" + std::to_string(result.process.pid) + ".csv")).empty());
}

TEST_F(Trace, FreesWhatWentAwayWithAContext) {
  for (const char* mode : {"reset", "contexts", "primary"}) {
    const PreloadedRun result = expect_same(std::string("probe_contexts mode=") + mode, 0, 1,
                                            {{"CUPOOL_TRACE", file("trace.csv")}});
    const Replayed replayed = replay(rows_of(read_file(file("trace.csv"))));
    EXPECT_EQ(replayed.allocations, result.counter("malloc_calls_total")) << mode;
    uint64_t live = 0;
    for (const auto& block : replayed.live) live += block.second;
    EXPECT_EQ(
        live,
        result.reports.at(0).at("devices").at(0).at("gauges").at("leaked_bytes").at("current"))
        << mode;
  }
}

TEST_F(Trace, HasTheCallsThatFailed) {
  const PreloadedRun result =
      expect_same("probe_oom mode=hopeless", 0, 1,
                  {{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_TRACE", file("trace.csv")}});
  EXPECT_EQ(replay(rows_of(read_file(file("trace.csv")))).failures,
            result.counter("malloc_failed_total"));
  EXPECT_GT(result.counter("malloc_failed_total"), 0u);
}

}  // namespace
}  // namespace preload
