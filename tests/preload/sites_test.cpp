// SPDX-License-Identifier: Apache-2.0
// Where memory comes from, by call site (docs/statistics.md, Call sites).
#include "harness.h"

namespace preload {
namespace {

// The name of a function at an offset, as addr2line tells it.
std::string function_at(const nlohmann::json& sites, size_t frame) {
  const nlohmann::json& found = sites.at("frames").at(frame);
  if (!found.at("module").is_number()) return "";
  char offset[32];
  std::snprintf(offset, sizeof offset, "0x%lx", found.at("offset").get<unsigned long>());
  Command command;
  command.argv = {"/usr/bin/addr2line", "-f", "-e",
                  sites.at("modules").at(found.at("module").get<size_t>()).at("path"), offset};
  command.environment = base_environment();
  return lines_of(run(command).out).at(0);
}

// The figures of sites by the innermost function of the program.
std::map<std::string, nlohmann::json> by_function(const nlohmann::json& report) {
  std::map<std::string, nlohmann::json> named;
  const nlohmann::json& sites = report.at("sites");
  for (const nlohmann::json& site : sites.at("sites")) {
    nlohmann::json& sum = named[function_at(sites, site.at("frames").at(0).get<size_t>())];
    if (sum.is_null()) sum = nlohmann::json::object();
    for (const auto& [key, value] : site.items()) {
      if (value.is_number()) sum[key] = sum.value(key, uint64_t{0}) + value.get<uint64_t>();
    }
  }
  return named;
}

void expect_near(const nlohmann::json& value, double expected, double share) {
  EXPECT_NEAR(value.get<double>(), expected, expected * share);
}

TEST(Sites, AreEstimatedByCallSite) {
  for (const char* thread : {"0", "1"}) {
    const PreloadedRun result = expect_same(
        std::string("probe_sites rounds=20000 thread=") + thread, 0, 1, {{"CUPOOL_SITES", "64K"}});
    const nlohmann::json& report = result.reports.at(0);
    auto sites = by_function(report);
    ASSERT_EQ(sites.count("site_small"), 1u) << report.at("sites").dump(1);
    // 28,000 calls of 40,000 bytes, of which 46 % are sampled: a standard deviation of 0.7 %.
    expect_near(sites["site_small"].at("calls"), 28000, 0.04);
    expect_near(sites["site_small"].at("bytes"), 28000 * 4e4, 0.04);
    expect_near(sites["site_small"].at("freed_calls"), 28000, 0.04);
    expect_near(sites["site_small"].at("temporary_calls"), 28000, 0.04);
    EXPECT_EQ(sites["site_small"].at("live_calls"), 0);
    // Far above the interval, all are sampled.
    EXPECT_EQ(sites["site_large"].at("calls"), 2000);
    EXPECT_EQ(sites["site_large"].at("bytes"), 2000 * (uint64_t{3} << 20));
    EXPECT_EQ(sites["site_large"].at("temporary_calls"), 0);
    EXPECT_EQ(sites["site_large"].at("peak_bytes"), 3 << 20);
    EXPECT_EQ(sites["site_kept"].at("calls"), 16);
    expect_near(sites["site_kept"].at("peak_bytes"), 16 << 20, 1e-6);
    expect_near(sites["site_kept"].at("live_bytes"), 8 << 20, 1e-6);
    EXPECT_EQ(report.at("sites").at("lost_samples"), 0);
    EXPECT_EQ(report.at("sites").at("others").at("samples"), 0);
    EXPECT_EQ(result.counter("malloc_calls_total"), 30016u);
    EXPECT_EQ(result.counter("free_calls_total"), 30008u);
    expect_identity(report);
  }
}

TEST(Sites, OfAllRoutesSumUpToAllBytes) {
  for (const char* probe : {"probe_runtime_shared", "probe_runtime_static", "probe_driver_linked",
                            "probe_dlsym", "probe_getproc"}) {
    for (const char* most : {"100%", "512"}) {  // with the latter, all are passed through
      const PreloadedRun result =
          expect_same(probe, 0, 1, {{"CUPOOL_SITES", "2"}, {"CUPOOL_MAX_BLOCK", most}});
      uint64_t bytes = 0;
      uint64_t live = 0;
      for (const nlohmann::json& site : result.reports.at(0).at("sites").at("sites")) {
        bytes += site.at("bytes").get<uint64_t>();
        live += site.at("live_bytes").get<uint64_t>();
      }
      // Requests of a few bytes are not all sampled.
      EXPECT_NEAR(static_cast<double>(bytes),
                  static_cast<double>(result.counter("malloc_requested_bytes_total")), 200)
          << probe;
      EXPECT_EQ(live, 0u) << probe;
    }
  }
}

TEST(Sites, SayWhichFreesWaited) {
  const PreloadedRun result = expect_same("probe_sites rounds=100 work=1", 0, 1,
                                          {{"CUPOOL_SITES", "2"}, {"CUPOOL_FREE_MODE", "sync"}});
  auto sites = by_function(result.reports.at(0));
  uint64_t waited = 0;
  for (const auto& [name, site] : sites) waited += site.at("waited_calls").get<uint64_t>();
  EXPECT_EQ(waited, result.counter("free_waits_total"));
  EXPECT_GT(sites["site_large"].at("waited_calls"), 0) << "the GPU has work before each";
}

TEST(Sites, GoWithTheOtherWatchers) {
  const PreloadedRun result =
      expect_same("probe_sites rounds=100", 0, 1,
                  {{"CUPOOL_SITES", "2"}, {"CUPOOL_LEAKS", "1"}, {"CUPOOL_NVTX", "1"}});
  EXPECT_EQ(by_function(result.reports.at(0))["site_small"].at("calls"), 140);
  EXPECT_EQ(result.reports.at(0).at("leaks").at("sites").at(0).at("blocks"), 8);
}

// Without GPU work the program does nothing but allocate: there are too many samples for its time.
TEST(Sites, OfOneAreAsManyAsTheProgramHasTimeFor) {
  const PreloadedRun paced = expect_same("probe_sites rounds=20000", 0, 1, {{"CUPOOL_SITES", "1"}});
  const nlohmann::json& sites = paced.reports.at(0).at("sites");
  EXPECT_GT(sites.at("widest_interval_bytes"), 512 << 10);
  auto named = by_function(paced.reports.at(0));
  expect_near(named["site_large"].at("bytes"), 2000 * 3.0 * (1 << 20), 0.9);
  EXPECT_LT(named["site_large"].at("samples"), 2000);
  const PreloadedRun fixed =
      expect_same("probe_sites rounds=20000", 0, 1, {{"CUPOOL_SITES", "512K"}});
  EXPECT_EQ(fixed.reports.at(0).at("sites").at("widest_interval_bytes"), 512 << 10);
}

TEST(Sites, HaveTheBuildIdsOfTheirModules) {
  const PreloadedRun result = expect_same("probe_sites rounds=10", 0, 1, {{"CUPOOL_SITES", "1"}});
  const nlohmann::json& sites = result.reports.at(0).at("sites");
  EXPECT_EQ(sites.at("interval_bytes"), 512 << 10);
  bool found = false;
  for (const nlohmann::json& module : sites.at("modules")) {
    if (module.at("path") != probe_path("probe_sites")) continue;
    found = true;
    Command command;
    command.argv = {"/usr/bin/readelf", "-n", module.at("path")};
    command.environment = base_environment();
    const std::string notes = run(command).out;
    if (!contains(notes, "Build ID")) {
      EXPECT_TRUE(module.at("build_id").is_null());
    } else {
      EXPECT_TRUE(contains(notes, "Build ID: " + module.at("build_id").get<std::string>()));
    }
  }
  EXPECT_TRUE(found) << sites.dump(1);
}

TEST(Sites, AreKeptThroughForksExitsAndHandlers) {
  const Environment sites = {{"CUPOOL_SITES", "2"}};
  expect_same("probe_fork", 0, 1, sites);
  EXPECT_FALSE(expect_same("probe_threads", 0, 1, sites).reports.at(0).at("sites").is_null());
  expect_same("probe_contexts mode=reset", 0, 1, sites);
}

// Allocates in functions of Python, with the interpreter's lock (PyDLL) or without it (CDLL).
constexpr char kPython[] = R"(
import ctypes, sys
cuda = getattr(ctypes, sys.argv[1])("libcudart.so.13")
def allocate(size):
    block = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    return block
def train():
    for _ in range(10): allocate(1 << 20)
def evaluate():
    allocate(3 << 20)
def spin():
    while not ended: pass
ended = False
if "subinterpreter" in sys.argv:
    try: import _xxsubinterpreters as interpreters
    except ImportError: import _interpreters as interpreters
    interpreters.create()
    import threading
    other = threading.Thread(target=spin)
    other.start()
cuda.cudaMalloc  # looked up now: that is an event
events = []
sys.addaudithook(lambda name, arguments: events.append((name, arguments)))
train()
evaluate()
seen = list(events)
ended = True
assert not seen, seen
)";

std::vector<std::vector<std::string>> python_stacks(const std::vector<std::string>& kind,
                                                    uint64_t* bytes) {
  const ScratchFolder folder;
  Command command;
  command.argv = {"python3", "-c", kPython};
  command.argv.insert(command.argv.end(), kind.begin(), kind.end());
  command.environment =
      with(base_environment(), {{"CUPOOL_SITES", "2"},
                                {"CUPOOL_STATS", "json"},
                                {"CUPOOL_STATS_FILE", folder.path() + "/r.json"},
                                {"ASAN_OPTIONS", "detect_leaks=0"}});  // of the interpreter
  add_preload(&command.environment);
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  const nlohmann::json report = nlohmann::json::parse(read_file(folder.path() + "/r.json"));
  std::vector<std::vector<std::string>> stacks;
  for (const nlohmann::json& site : report.at("sites").at("sites")) {
    *bytes += site.at("bytes").get<uint64_t>();
    stacks.emplace_back();
    for (const nlohmann::json& frame : site.at("frames")) {
      const nlohmann::json& found = report.at("sites").at("frames").at(frame.get<size_t>());
      if (!found.contains("function")) continue;
      stacks.back().push_back(found.at("function").get<std::string>() + ":" +
                              std::to_string(found.at("line").get<int>()));
      EXPECT_EQ(found.at("file"), "<string>");
    }
  }
  return stacks;
}

TEST(Sites, OfPythonHaveItsFunctionsWhereItsLockIsHeld) {
  uint64_t bytes = 0;
  const auto held = python_stacks({"PyDLL"}, &bytes);
  EXPECT_EQ(bytes, 13u << 20);
  using Stacks = std::vector<std::vector<std::string>>;
  EXPECT_EQ(held, (Stacks{{"allocate:6", "train:9", "<module>:25"},
                          {"allocate:6", "evaluate:11", "<module>:26"}}));
}

// With a subinterpreter, another thread has the lock meanwhile.
TEST(Sites, OfPythonHaveNoFunctionsWhereItsLockIsNotHeld) {
  for (const std::vector<std::string>& kind :
       std::vector<std::vector<std::string>>{{"CDLL"}, {"CDLL", "subinterpreter"}}) {
    uint64_t bytes = 0;
    for (const auto& stack : python_stacks(kind, &bytes)) {
      EXPECT_TRUE(stack.empty()) << "Python must not be asked: " << stack.front();
    }
    EXPECT_EQ(bytes, 13u << 20);
  }
}

TEST(Sites, AreNotKeptUnlessAskedFor) {
  EXPECT_TRUE(expect_same("probe_sites rounds=10").reports.at(0).at("sites").is_null());
}

// Contract 3 and 11: what is refused, what a child asks for, and what passes through stay as they
// are when someone looks on.
TEST(Sites, ChangeNoAnswer) {
  const ScratchFolder folder;
  const Environment watchers[] = {{{"CUPOOL_SITES", "1"}},
                                  {{"CUPOOL_LEAKS", "1"}},
                                  {{"CUPOOL_TRACE", folder.path() + "/trace-%p.csv"}}};
  for (const char* probe : {"probe_linked", "probe_capture_modes", "probe_errors route=driver",
                            "probe_errors route=runtime", "probe_fork", "probe_pitch"}) {
    for (const Environment& watcher : watchers) {
      const ProcessResult plain = run_plain(probe);
      const PreloadedRun result = run_preloaded(probe, watcher);
      EXPECT_EQ(result.process.exit_code, plain.exit_code) << probe << result.describe();
      EXPECT_EQ(result.process.out, plain.out) << probe << result.describe();
    }
  }
}

}  // namespace
}  // namespace preload
