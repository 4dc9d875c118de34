// SPDX-License-Identifier: Apache-2.0
// See harness.h.
#include "harness.h"

#include <dirent.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace preload {

namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

Command probe_command(const std::string& probe, const Environment& environment) {
  Command command;
  command.argv = words(probe);
  command.argv.at(0) = probe_path(command.argv.at(0));
  command.environment = environment;
  return command;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "cupool-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> ScratchFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().string());
  }
  return names;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, uint64_t> calls_in(const std::string& file) {
  std::map<std::string, uint64_t> calls;
  std::istringstream lines(read_file(file));
  std::string symbol;
  uint64_t count = 0;
  while (lines >> symbol >> count) calls[symbol] = count;
  return calls;
}

uint64_t PreloadedRun::counter(const std::string& key) const {
  uint64_t sum = 0;
  for (const nlohmann::json& report : reports) {
    for (const nlohmann::json& device : report.at("devices")) {
      sum += device.at("counters").at(key).get<uint64_t>();
    }
  }
  return sum;
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& entry : more) environment[entry.first] = entry.second;
  return environment;
}

Environment old_driver(const char* folder, const Environment& more) {
  const TestedBuild& build = tested_build();
  return with(more, {{"LD_LIBRARY_PATH",
                      build.simulator() + "/" + folder + ":" + build.simulated_driver()}});
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string name_of(const std::string& text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

Environment base_environment() {
  Environment environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                             {"HOME", "/tmp"},
                             {"LC_ALL", "C"},
                             {"LD_LIBRARY_PATH", tested_build().simulated_driver()},
                             {"CUPOOL_SIM_JUDGE", "1"},
                             // What a program allocates first is looked at as well.
                             {"CUPOOL_POOL_START", "first"}};
  // Sanitizer options of the caller stay in force, and a fault must end the probe with an error.
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return environment;
}

const TestedBuild& tested_build() {
  static const TestedBuild build = [] {
    const char* other = std::getenv("PRELOAD_TEST_BUILD");
    TestedBuild found;
    found.folder = other == nullptr ? CUPOOL_TEST_BINARY_FOLDER : other;
    std::ifstream file(found.folder + "/tests/sanitizer.txt");
    if (!file) throw std::runtime_error("no build with tests: " + found.folder);
    std::getline(file, found.sanitizer);
    std::getline(file, found.sanitizer_runtime);
    return found;
  }();
  return build;
}

int often(int times) {
  return tested_build().has_thread_sanitizer() ? times / 4 : times;
}

// The hangs were seen in the stacks of children, and of those of programs without cupool. (The
// heap's lock in children of probe_life_fork alone; those of probe_fork need it too, more rarely:
// none hung in 65 runs.)
const char* reason_to_skip(std::string_view probe) {
  const bool forks_from_library = probe == "probe_life_fork mode=busy";
  if ((forks_from_library || probe == "probe_fork mode=busy") &&
      tested_build().has_thread_sanitizer()) {
    return "children of busy threads hang at a lock of the thread sanitizer's allocator";
  }
  if (forks_from_library && tested_build().has_memory_sanitizer()) {
    return "children of busy threads hang at a lock of the address sanitizer's heap";
  }
  if (probe.find("deep=1") != std::string_view::npos && tested_build().has_memory_sanitizer()) {
    return "the sanitizers refuse RTLD_DEEPBIND";
  }
  if (probe == "probe_life_fork mode=start_race" && tested_build().has_thread_sanitizer()) {
    return "a thread held the lock of the thread sanitizer's dlopen at the fork";
  }
  return nullptr;
}

std::string library_path() {
  const char* other = std::getenv("PRELOAD_TEST_LIBRARY");
  return other == nullptr ? tested_build().folder + "/libcupool.so" : other;
}

void add_preload(Environment* environment) {
  const std::string& runtime = tested_build().sanitizer_runtime;
  (*environment)["LD_PRELOAD"] = runtime.empty() ? library_path() : runtime + ":" + library_path();
}

std::string probe_path(const std::string& name) {
  return tested_build().folder + "/tests/preload/probes/" + name;
}

ProcessResult run_plain(const std::string& probe, const Environment& extra) {
  return run(probe_command(probe, with(base_environment(), extra)));
}

ProcessResult run_with_library(const std::string& probe, const Environment& extra) {
  Environment environment = base_environment();
  add_preload(&environment);
  return run(probe_command(probe, with(environment, extra)));
}

PreloadedRun run_preloaded(const std::string& probe, const Environment& extra) {
  const ScratchFolder folder;
  const Environment reporting = {{"CUPOOL_STATS", "json"},
                                 {"CUPOOL_STATS_FILE", folder.path() + "/report-%p.json"}};
  PreloadedRun result;
  result.process = run_with_library(probe, with(reporting, extra));
  for (const std::string& file : folder.files()) {
    const std::string text = read_file(file);
    nlohmann::json report = nlohmann::json::parse(text, nullptr, false);
    EXPECT_FALSE(report.is_discarded()) << file << " is no JSON:\n" << text;
    if (!report.is_discarded()) result.reports.push_back(std::move(report));
  }
  return result;
}

Counts counts_of(const std::string& out) {
  Counts counts;
  const size_t at = out.find("counts mallocs=");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no line of counts in:\n" << out;
    return counts;
  }
  unsigned long long mallocs = 0;
  unsigned long long frees = 0;
  EXPECT_EQ(2, std::sscanf(out.c_str() + at, "counts mallocs=%llu frees=%llu", &mallocs, &frees));
  counts.mallocs = mallocs;
  counts.frees = frees;
  return counts;
}

namespace {

// A forked child has none of its parent's threads, of which the address sanitizer then remarks, in
// a line of its own, that they do not stop.
std::string without_remarks(const std::string& text) {
  if (tested_build().sanitizer.empty()) return text;
  std::istringstream lines(text);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("was not suspended. False leaks are possible.") == std::string::npos) {
      rest += line + "\n";
    }
  }
  return rest;
}

}  // namespace

PreloadedRun expect_same(const std::string& probe, int expected_exit_code, size_t expected_reports,
                         const Environment& extra) {
  SCOPED_TRACE(probe);
  const ProcessResult plain = run_plain(probe, extra);
  PreloadedRun preloaded = run_preloaded(probe, extra);
  EXPECT_EQ(plain.exit_code, expected_exit_code) << "without the preload: " << plain.describe();
  EXPECT_EQ(preloaded.process.exit_code, plain.exit_code) << preloaded.describe();
  EXPECT_EQ(preloaded.process.signal, plain.signal) << preloaded.describe();
  EXPECT_FALSE(preloaded.process.timed_out) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, plain.out);
  EXPECT_EQ(without_remarks(preloaded.process.err), plain.err) << "cupool must be quiet here";
  EXPECT_EQ(preloaded.reports.size(), expected_reports) << preloaded.describe();
  return preloaded;
}

void expect_thread_only_with(const Environment& asked) {
  const std::string probe = "probe_life_signal mode=tasks";
  const std::string plain = run_plain(probe).out;
  const Environment base = {{"CUPOOL_BACKEND", "malloc"}};  // pools have threads
  EXPECT_EQ(run_preloaded(probe, base).process.out, plain);
  EXPECT_NE(run_preloaded(probe, with(base, asked)).process.out, plain);
  EXPECT_EQ(run_preloaded(probe, with(with(base, asked), {{"CUPOOL_STATS", "off"}})).process.out,
            plain)
      << "nothing to write";
}

void expect_counts(const PreloadedRun& result) {
  const Counts counts = counts_of(result.process.out);
  ASSERT_FALSE(result.reports.empty());
  EXPECT_EQ(result.counter("malloc_calls_total"), counts.mallocs);
  EXPECT_EQ(result.counter("free_calls_total"), counts.frees);
  for (const nlohmann::json& report : result.reports) expect_identity(report);
}

namespace {

// What threads did adds up to what was done on all devices.
void expect_threads(const nlohmann::json& report) {
  const auto sum_of_threads = [&report](const char* key) {
    uint64_t sum = report.at("other_threads").at(key).get<uint64_t>();
    for (const nlohmann::json& thread : report.at("threads")) sum += thread.at(key).get<uint64_t>();
    return sum;
  };
  const auto sum_of_devices = [&report](const char* key) {
    uint64_t sum = 0;
    for (const nlohmann::json& device : report.at("devices")) {
      sum += device.at("counters").at(key).get<uint64_t>();
    }
    return sum;
  };
  EXPECT_EQ(sum_of_threads("malloc_calls_total"),
            sum_of_devices("malloc_calls_total") - sum_of_devices("malloc_failed_total"));
  EXPECT_EQ(sum_of_threads("malloc_requested_bytes_total"),
            sum_of_devices("malloc_requested_bytes_total"));
  EXPECT_EQ(sum_of_threads("free_waits_total"), sum_of_devices("free_waits_total"));
}

}  // namespace

namespace {

// The parts are of one moment: none is above its own peak, and what pools had reserved is below the
// driver's.
void expect_peak_use_adds_up(const nlohmann::json& device) {
  const nlohmann::json& use = device.at("peak_use");
  if (use.is_null()) return;
  const auto part = [&use](const char* key) { return use.at(key).get<int64_t>(); };
  int64_t sum = part("driver_slack_bytes");
  for (const char* key : {"application_bytes", "rounding_bytes", "retired_bytes", "cached_bytes"}) {
    EXPECT_GE(part(key), 0) << use.dump(1);
    sum += part(key);
  }
  EXPECT_EQ(sum, part("taken_bytes")) << use.dump(1);
  EXPECT_LE(sum - part("driver_slack_bytes"), device.at("gauges").at("held_bytes").at("peak"));
  EXPECT_LE(part("application_bytes"), device.at("gauges").at("application_bytes").at("peak"));
  if (!device.at("pool").is_null()) {
    EXPECT_LE(sum - part("plain_bytes"), device.at("pool").at("reserved_high_bytes"))
        << use.dump(1);
  }
}

}  // namespace

void expect_identity(const nlohmann::json& report) {
  EXPECT_EQ(report.at("schema_version"), 1);
  for (const nlohmann::json& device : report.at("devices")) {
    const nlohmann::json& gauges = device.at("gauges");
    const auto current = [&gauges](const char* key) {
      return gauges.at(key).at("current").get<int64_t>();
    };
    EXPECT_EQ(current("application_bytes") + current("rounding_bytes") + current("retired_bytes") +
                  current("cached_bytes"),
              current("held_bytes"))
        << device.dump(1);
    // What pools reserve is what of it they have given us, and the driver's slack.
    if (!device.at("driver_slack_bytes").is_null()) {
      const int64_t slack = device.at("driver_slack_bytes").get<int64_t>();
      EXPECT_GE(slack, 0) << device.dump(1);
      EXPECT_EQ(current("held_bytes") - current("plain_bytes") + slack,
                device.at("pool").at("reserved_current_bytes").get<int64_t>());
    }
    expect_peak_use_adds_up(device);
    EXPECT_GE(current("plain_bytes"), 0);
    const auto counter = [&device](const char* key) {
      return device.at("counters").at(key).get<uint64_t>();
    };
    // What served each malloc adds up to the calls that succeeded.
    EXPECT_EQ(counter("served_thread_cache_total") + counter("served_shared_cache_total") +
                  counter("served_fresh_total") + counter("served_passthrough_total"),
              counter("malloc_calls_total") - counter("malloc_failed_total"))
        << device.dump(1);
    // So do the sizes.
    uint64_t sized = 0;
    uint64_t sized_bytes = 0;
    for (const nlohmann::json& bucket : device.at("requested_sizes")) {
      sized += bucket.at("count").get<uint64_t>();
      sized_bytes += bucket.at("bytes").get<uint64_t>();
    }
    EXPECT_EQ(sized, counter("malloc_calls_total") - counter("malloc_failed_total"));
    EXPECT_EQ(sized_bytes, counter("malloc_requested_bytes_total"));
  }
  expect_threads(report);
}

}  // namespace preload
