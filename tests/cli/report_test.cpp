// SPDX-License-Identifier: Apache-2.0
// `cupool report`: what it reads, what it refuses, and what it says. The page is the matter of
// report_page_test.cpp and page_test.py.
#include <sys/stat.h>

#include <filesystem>

#include "cli/page/html.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "command.h"
#include "example_report.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using cupool::cli::find_outliers;
using cupool::cli::html_page;
using cupool::cli::parse_report;
using cupool::cli::Report;
using cupool::cli::ReportError;
using cupool::cli::tell;
using nlohmann::json;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

std::string error_of(const std::string& text) {
  try {
    parse_report(text, "file.json");
  } catch (const ReportError& error) {
    return error.what();
  }
  return "";
}

bool says(const std::vector<std::string>& sentences, const std::string& part) {
  for (const std::string& sentence : sentences) {
    if (contains(sentence, part)) return true;
  }
  return false;
}

TEST(ReadReport, ReadsAReportOfAnEarlierLibraryWithoutTheNewerParts) {
  const Report report = parsed(example_report());
  EXPECT_EQ(report.program, "/opt/simulate");
  EXPECT_EQ(report.rank, "");
  EXPECT_EQ(report.ran_ns(), 2000000000u);
  EXPECT_EQ(report.counter("malloc_calls_total"), 1000u);
  EXPECT_EQ(report.counter("a_counter_that_is_not_there"), 0u);
  EXPECT_TRUE(report.series.empty());
  EXPECT_TRUE(report.events.empty());
  EXPECT_TRUE(report.threads.empty());
  EXPECT_FALSE(report.observe.has_value());
}

TEST(ReadReport, ReadsSeriesEventsThreadsAndHistograms) {
  json report = example_report();
  report["series"] = {{"samples",
                       {{{"time_ns", 5},
                         {"devices",
                          {{{"ordinal", 0},
                            {"application_bytes", 7},
                            {"device_free_bytes", 60},
                            {"device_total_bytes", 100}}}}}}}};
  report["events"] = {{{"time_ns", 900},
                       {"kind", "wait"},
                       {"device", 0},
                       {"count", 2},
                       {"bytes", 0},
                       {"duration_ns", 400}}};
  report["threads"] = {{{"tid", 9}, {"name", "worker"}, {"malloc_calls_total", 3}}};
  report["other_threads"] = {{"threads", 4}, {"malloc_calls_total", 8}};
  report["leaks"] = {{"sampled_one_in", 64},
                     {"is_estimate", true},
                     {"sites",
                      {{{"device", 0},
                        {"blocks", 3},
                        {"bytes", 9000},
                        {"frames",
                         {{{"module", "/lib/a.so"}, {"offset", 255}, {"symbol", "leak"}},
                          {{"module", "/bin/b"}, {"offset", 16}, {"symbol", nullptr}}}}}}}};
  report["devices"][0]["times"]["malloc"]["buckets"] = {{{"upper_bound_ns", 200}, {"count", 2}},
                                                        {{"upper_bound_ns", 100}, {"count", 1}}};
  report["devices"][0]["requested_sizes"] = {
      {{"upper_bound_bytes", 512}, {"count", 6}, {"bytes", 3000}}};
  const Report read = parsed(report);
  ASSERT_EQ(read.series.size(), 1u);
  EXPECT_EQ(read.series[0].values.at("application_bytes"), 7u);
  EXPECT_EQ(read.series[0].values.at("device_used_bytes"), 40u);
  ASSERT_EQ(read.events.size(), 1u);
  EXPECT_EQ(read.events[0].time, 500u) << "a wait is told when it ended";
  ASSERT_EQ(read.threads.size(), 2u);
  EXPECT_EQ(read.threads[0].name, "worker (9)");
  EXPECT_EQ(read.threads[1].name, "4 other threads");
  ASSERT_EQ(read.leaks.size(), 1u);
  EXPECT_EQ(read.leaks[0].site, "leak (a.so+0xff)");
  EXPECT_EQ(read.leaks[0].callers, "b+0x10");
  EXPECT_EQ(read.leaks_sampled_one_in, 64u);
  ASSERT_EQ(read.devices[0].malloc_time.buckets.size(), 2u);
  EXPECT_EQ(read.devices[0].malloc_time.buckets[0].upper, 100u) << "by size, whatever the order";
  ASSERT_EQ(read.devices[0].sizes.size(), 1u);
  EXPECT_EQ(read.devices[0].sizes[0].count, 6u);
}

TEST(ReadReport, NamesTheFileAndWhatIsWrong) {
  EXPECT_EQ(error_of("words"), "file.json: not JSON (CUPOOL_STATS=json writes it)");
  EXPECT_TRUE(contains(error_of("[1]"), "file.json: not a report of cupool"));
  EXPECT_TRUE(contains(error_of("{}"), "file.json: not a report of cupool"));
  json newer = example_report();
  newer["schema_version"] = 2;
  newer["cupool_version"] = "9.8.7";
  const std::string error = error_of(newer.dump());
  EXPECT_TRUE(contains(error, "file.json")) << error;
  EXPECT_TRUE(contains(error, "schema version 2")) << error;
  EXPECT_TRUE(contains(error, "9.8.7")) << error;
  EXPECT_TRUE(contains(error, "reads schema version 1")) << error;
}

TEST(ReadReport, RefusesValuesOfTheWrongType) {
  const std::vector<std::pair<std::string, json>> spoilt = {
      {"/devices", 3},
      {"/devices/0", 3},
      {"/devices/0/counters/malloc_calls_total", -1},
      {"/devices/0/counters/malloc_calls_total", "many"},
      {"/devices/0/gauges/held_bytes", 5},
      {"/devices/0/times/malloc/p50_ns", 1.5},
      {"/devices/0/pool", "full"},
      {"/process/host", 7},
      {"/settings", "none"},
      {"/settings/0/is_default", "yes"},
      {"/suggested_settings", json::array({1})},
      {"/series", 7},
      {"/events", {{"time_ns", 1}}},
      {"/threads", json::array({json::array()})}};
  for (const auto& [place, value] : spoilt) {
    json report = example_report();
    report[json::json_pointer(place)] = value;
    const std::string error = error_of(report.dump());
    EXPECT_EQ(error.rfind("file.json: ", 0), 0u) << place << ": " << error;
  }
}

TEST(ReadReport, RefusesWhatWouldFillTheMemory) {
  const std::string deep(10'000'000, '[');
  EXPECT_EQ(error_of(deep), "file.json: not a report of cupool (nested too deeply)");
  json report = example_report();
  report["note"] = "[[[[\"{{{{" + deep;  // brackets in a text are none
  EXPECT_EQ(error_of(report.dump()), "");
  for (int i = 0; i < 5000; ++i) {
    report["devices"][0]["requested_sizes"].push_back({{"upper_bound_bytes", i}, {"count", 1}});
  }
  EXPECT_TRUE(contains(error_of(report.dump()), "requested_sizes is not a histogram of at most"));
}

TEST(Story, TellsTheFiguresOfTheReport) {
  const auto story = tell({parsed(example_report())});
  EXPECT_EQ(story.headline,
            "At least 400 stalls avoided in 990 frees; driver calls replaced: 900 cudaMalloc, 990 "
            "cudaFree");
  EXPECT_EQ(story.verdict.memory, "peak 100 MiB with cupool, the program's own peak 50.0 MiB");
  EXPECT_TRUE(says(story.sentences, "Spent 2.00 ms in malloc and free, in a run of 2.00 s."));
  EXPECT_TRUE(says(story.sentences, "at most 100 MiB of 4.00 GiB (2.4 %) on device 0"));
  EXPECT_TRUE(says(story.sentences, "90.0 % of 1,000 allocations came from caches"));
  EXPECT_TRUE(says(story.troubles, "10 blocks with 4.00 KiB were never freed"));
  EXPECT_FALSE(says(story.troubles, "waited"));
}

TEST(Story, PlainMemoryIsHeldBesideThePool) {
  json report = example_report();
  report["devices"][0]["gauges"]["held_bytes"]["peak"] = 1073741824;
  EXPECT_TRUE(says(tell({parsed(report)}).sentences, "cupool held at most 1.00 GiB"));
}

TEST(Story, ChoosesTheHeadlineByWhatHappened) {
  json report = example_report();
  json& counters = report["devices"][0]["counters"];
  counters["frees_unwaited_busy_total"] = 0;
  EXPECT_TRUE(contains(tell({parsed(report)}).headline, "No free was seen to avoid a stall"));
  counters["free_waits_total"] = 60;
  counters["free_waits_pending_limit_total"] = 60;
  counters["free_wait_ns_total"] = 5000000;
  const auto waiting = tell({parsed(report)});
  EXPECT_TRUE(contains(waiting.headline, "; 60 waited, 5.00 ms in all"));
  EXPECT_TRUE(says(waiting.troubles, "60 beyond CUPOOL_MAX_PENDING): CUPOOL_MAX_PENDING=64M"));
  EXPECT_EQ(waiting.verdict.next, "CUPOOL_MAX_PENDING=64M where there is memory to spare");
  counters["served_passthrough_total"] = 1000;
  EXPECT_TRUE(contains(tell({parsed(report)}).headline, "the driver served all 1,000 allocations"));
  counters["malloc_calls_total"] = 0;
  EXPECT_TRUE(contains(tell({parsed(report)}).headline, "no allocation to serve"));
}

// A share of the run only for a single thread: how long others lived is not known.
TEST(Story, TellsTheTimeSpentAsFarAsItIsKnown) {
  json report = example_report();
  const auto thread = [](int tid) { return json({{"tid", tid}, {"malloc_calls_total", 1}}); };
  report["threads"] = {thread(1)};
  EXPECT_TRUE(says(tell({parsed(report)}).sentences,
                   "Spent 2.00 ms in malloc and free, 0.1 % of a run of 2.00 s."));
  // One timed call counts as 63: an interrupted one makes more than the run.
  json slow = report;
  slow["devices"][0]["times"]["free"]["sum_ns"] = 3000000000;
  const auto more = tell({parsed(slow)});
  EXPECT_FALSE(says(more.sentences, "Spent"));
  EXPECT_TRUE(says(more.sentences,
                   "The time in malloc and free is not known: its estimate, 3.00 s, is more than "
                   "the run of 2.00 s."));
  EXPECT_EQ(more.tiles.front().label, "Stalls avoided");
  report["threads"].push_back(thread(2));
  report["other_threads"] = {{"threads", 3}};
  EXPECT_TRUE(says(tell({parsed(report)}).sentences,
                   "Spent 2.00 ms in malloc and free by 5 threads, in a run of 2.00 s"));
  EXPECT_TRUE(says(tell({parsed(report), parsed(report)}).sentences,
                   "Spent 4.00 ms in malloc and free by 10 threads of 2 processes, in a run"));
  report["devices"][0]["times"] = json::object();
  const auto unknown = tell({parsed(report)});
  EXPECT_FALSE(says(unknown.sentences, "Spent"));
  EXPECT_EQ(unknown.tiles.front().label, "Stalls avoided");
}

TEST(Story, CountsNoStallsWhereNobodyDid) {
  json report = example_report();
  const auto stalls = [](const json& of) {
    for (const auto& tile : tell({parsed(of)}).tiles) {
      if (tile.label == "Stalls avoided") return true;
    }
    return false;
  };
  report["free_mode"] = "ordered";
  EXPECT_TRUE(stalls(report)) << "some were: in one lane they are counted";
  report["devices"][0]["counters"]["frees_unwaited_busy_total"] = 0;
  EXPECT_FALSE(stalls(report));
  report["free_mode"] = "auto";
  EXPECT_TRUE(stalls(report)) << "none is a finding there";
}

// A report of a process whose modes libmpi.so.40 decided.
json report_under_mpi() {
  json report = example_report();
  report["free_mode"] = "sync";
  report["backend"] = "malloc";
  report["requested"] = {{"free_mode", "auto"}, {"backend", "auto"}};
  report["mode_reason"] = {{"text", "Requested: ..., because libmpi.so.40 is loaded"},
                           {"library", "libmpi.so.40"},
                           {"free_mode", "sync"},
                           {"backend", "malloc"}};
  json& counters = report["devices"][0]["counters"];
  counters["free_waits_total"] = 60;
  counters["free_waits_sync_total"] = 60;
  counters["free_waits_pending_limit_total"] = 50;
  counters["free_wait_ns_total"] = 5000000;
  report["suggested_settings"] = json::object();
  return report;
}

TEST(Story, GivesTheReasonOfTheModesAndNoAdviceAgainstIt) {
  const auto story = tell({parsed(report_under_mpi())});
  EXPECT_TRUE(says(story.sentences, "because libmpi.so.40 is loaded."));
  EXPECT_TRUE(says(story.troubles, "60 frees waited"));
  EXPECT_FALSE(says(story.troubles, "CUPOOL_FREE_MODE=auto waits"));
  json chosen = report_under_mpi();
  chosen["mode_reason"] = nullptr;
  EXPECT_TRUE(says(tell({parsed(chosen)}).troubles, "CUPOOL_FREE_MODE=auto waits only"));
  const auto both = tell({parsed(report_under_mpi()), parsed(example_report())});
  EXPECT_TRUE(says(both.sentences, "In 1 of 2 processes: Requested"));
}

TEST(Tuning, AdvisesNothingThatAnRdmaLibraryRulesOut) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "mpi.json", report_under_mpi());
  const ProcessResult result = cupool({"tune", file});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "because libmpi.so.40 is loaded.")) << result.out;
  for (const char* advice : {"CUPOOL_RELEASE_THRESHOLD", "CUPOOL_PREALLOC", "CUPOOL_MAX_PENDING",
                             "CUPOOL_FREE_MODE", "pool to size"}) {
    EXPECT_FALSE(contains(result.out, advice)) << result.out;
  }
}

TEST(Story, AnObservedRunTellsItsVerdict) {
  json report = example_report();
  report["observe"] = {{"verdict", "Worth trying"},      {"sentences", {"Seen."}},
                       {"assumptions", {"a."}},          {"malloc_calls_total", 10},
                       {"saved_at_most_ns", 3000000},    {"legacy_ns", 4000000},
                       {"rounded_peak_bytes", 33554432}, {"pool_most_bytes", 67108864}};
  const auto story = tell({parsed(report)});
  EXPECT_EQ(story.headline, "Worth trying");
  EXPECT_TRUE(says(story.sentences, "Assumed: a."));
  ASSERT_EQ(story.tiles.size(), 4u);
  EXPECT_EQ(story.tiles[0].value, "3.00 ms");
  EXPECT_EQ(story.tiles[3].value, "32.0 MiB");
  const std::string page = html_page({parsed(report)});
  EXPECT_TRUE(contains(page, "observed by cupool"));
  EXPECT_FALSE(contains(page, "Current values add up")) << "nothing was served";
}

TEST(Outliers, FollowTheStatedRule) {
  EXPECT_EQ(find_outliers({1}), std::vector<bool>({false}));
  EXPECT_EQ(find_outliers({5, 5, 5, 5, 5}), std::vector<bool>(5, false));
  EXPECT_EQ(find_outliers({10, 11, 12, 11, 40}),
            std::vector<bool>({false, false, false, false, true}));
  // Beyond the fences, but less than a quarter from the median.
  EXPECT_EQ(find_outliers({100, 100, 100, 100, 110}), std::vector<bool>(5, false));
  EXPECT_EQ(find_outliers({10, 10, 25}), std::vector<bool>({false, false, true}));
  EXPECT_EQ(find_outliers({10, 10, 4}), std::vector<bool>({false, false, true}));
  EXPECT_EQ(find_outliers({10, 15}), std::vector<bool>({false, false}));
  EXPECT_EQ(find_outliers({10, -1, 11, -1}), std::vector<bool>(4, false)) << "no values";
}

TEST(ReportCommand, PrintsTheVerdictFirst) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const ProcessResult result = cupool({"report", file});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.out.rfind("Time    at least 400 stalls avoided in 990 frees; driver", 0), 0u);
  EXPECT_TRUE(contains(result.out, "\nMemory  peak 100 MiB")) << result.out;
  EXPECT_TRUE(contains(result.out,
                       "\nNext    cupool compare ./program measures the gain; cupool run --leaks"))
      << result.out;
  EXPECT_EQ(result.err, "") << "hints are for terminals";
}

TEST(ReportCommand, MergesProcessesAndNamesOutliers) {
  const ScratchFolder folder;
  std::vector<std::string> arguments = {"report", "--text", "--html", folder.path() + "/p.html"};
  for (int rank = 0; rank < 5; ++rank) {
    json report = example_report();
    report["process"]["rank"] = std::to_string(rank);
    if (rank == 3) report["devices"][0]["counters"]["malloc_calls_total"] = 5000;
    arguments.push_back(write_report(folder.path(), std::to_string(rank) + ".json", report));
  }
  const ProcessResult result = cupool(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "- rank 3 on node1: allocations 5,000 (high)")) << result.out;
  const std::string page = preload::read_file(folder.path() + "/p.html");
  EXPECT_TRUE(contains(page, "<td class=\"outlier\">* 5,000</td>"));
  EXPECT_TRUE(contains(page, "<li>rank 3 on node1: allocations 5,000 (high)</li>"));
}

// A job's reports in a directory, as `CUPOOL_STATS_FILE=dir/%r.json` leaves them.
void write_job(const std::string& folder, int ranks, const json& report) {
  for (int rank = 0; rank < ranks; ++rank) {
    json of_rank = report;
    of_rank["process"]["rank"] = std::to_string(rank);
    of_rank["process"]["ranks"] = ranks;
    of_rank["process"]["pid"] = 1000 + rank;
    of_rank["process"]["host"] = "node" + std::to_string(rank / 8);
    json& counters = of_rank["devices"][0]["counters"];
    counters["malloc_calls_total"] = rank % 100 == 7 ? 9000 : 1000 + rank % 10;
    write_report(folder, "r" + std::to_string(rank) + ".json", of_rank);
  }
}

TEST(ReportCommand, ReadsADirectoryInTheOrderOfRanks) {
  const ScratchFolder folder;
  write_job(folder.path(), 11, example_report());
  json snapshot = example_report();
  snapshot["snapshot_number"] = 2;
  snapshot["process"]["rank"] = "3";
  snapshot["process"]["pid"] = 1003;
  snapshot["process"]["host"] = "node0";
  snapshot["process"]["end_wall_ns"] = 2000000000;
  write_report(folder.path(), "r3.2.json", snapshot);
  std::ofstream(folder.path() + "/trace.json") << "[{}]";
  std::ofstream(folder.path() + "/notes.txt") << "no report";
  const ProcessResult result = cupool({"report", folder.path()});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  std::size_t last = 0;
  for (int rank = 0; rank < 11; ++rank) {
    const std::size_t at = result.out.find("\n  rank " + std::to_string(rank) + " on ");
    EXPECT_NE(at, std::string::npos) << rank << result.out;
    EXPECT_GT(at, last) << rank << result.out;
    last = at;
  }
  EXPECT_FALSE(contains(result.out, "r3.2.json")) << "the report at exit is there";
  EXPECT_TRUE(contains(result.err, "passed over 1 file of ")) << result.err;
  EXPECT_TRUE(contains(result.err, "trace.json: not a report of cupool")) << result.err;
  // A shell's own order of the files does not matter.
  const ProcessResult named =
      cupool({"report", folder.path() + "/r10.json", folder.path() + "/r2.json"});
  EXPECT_LT(named.out.find("  rank 2 on "), named.out.find("  rank 10 on ")) << named.out;
}

TEST(ReportCommand, ADirectoryWithoutReportsIsAnError) {
  const ScratchFolder folder;
  const ProcessResult result = cupool({"report", folder.path()});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_TRUE(contains(result.err, folder.path() + ": no report in this directory")) << result.err;
}

// Issue 18: in less than 10 s, and a page of at most 5 MiB.
TEST(ReportCommand, SumsUpAThousandRanks) {
  const ScratchFolder folder;
  const std::string job = folder.path() + "/job";
  std::filesystem::create_directory(job);
  const std::string one = folder.path() + "/one.json";
  const ProcessResult run =
      cupool({"run", "--stats", "json", "--stats-file", one, "--stats-interval", "20", "--",
              preload::probe_path("probe_runtime_shared"), "threads=2"});
  ASSERT_EQ(run.exit_code, 0) << run.describe();
  write_job(job, 1000, json::parse(preload::read_file(one)));
  const std::string page = folder.path() + "/page.html";
  const ProcessResult result = cupool({"report", "--text", "--html", page, job});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  RecordProperty("milliseconds", static_cast<int>(result.seconds * 1e3));
  RecordProperty("page_bytes", static_cast<int>(std::filesystem::file_size(page)));
#if defined(NDEBUG) && !defined(CUPOOL_TEST_SANITIZED_BUILD)
  EXPECT_LT(result.seconds, 10);
#endif
  EXPECT_LE(std::filesystem::file_size(page), 5u << 20);
  EXPECT_TRUE(contains(result.out, "\n  rank 7 on node0 ")) << "an outlier";
  EXPECT_FALSE(contains(result.out, "\n  rank 8 on node1 ")) << "not an outlier";
  EXPECT_TRUE(contains(result.out, "\n  of all 1,000 processes\n")) << result.out;
  EXPECT_LT(preload::lines_of(result.out).size(), 120u) << result.out;
  const std::string html = preload::read_file(page);
  EXPECT_TRUE(contains(html, "Distribution of 1,000 processes"));
  EXPECT_TRUE(contains(html, "median of 1,000"));
  EXPECT_TRUE(contains(html, "rank 907 on node113: allocations 9,000"));
}

TEST(ReportCommand, EndsWith2ForWhatIsNoReport) {
  const ScratchFolder folder;
  json newer = example_report();
  newer["schema_version"] = 4;
  const std::string good = write_report(folder.path(), "good.json", example_report());
  const std::string bad = write_report(folder.path(), "newer.json", newer);
  for (const std::vector<std::string>& files :
       std::vector<std::vector<std::string>>{{bad}, {good, bad}, {folder.path() + "/none.json"}}) {
    std::vector<std::string> arguments = {"report", "--html", folder.path() + "/page.html"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_TRUE(contains(result.err, files.back() + ": ")) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::filesystem::exists(folder.path() + "/page.html"), files.front() == good);
    std::filesystem::remove(folder.path() + "/page.html");
  }
  EXPECT_TRUE(contains(cupool({"report", bad}).err, "schema version 4"));
  const ProcessResult both = cupool({"report", folder.path()});
  EXPECT_EQ(both.exit_code, 2) << "not passed over: its figures would be missing silently";
  EXPECT_TRUE(contains(both.err, "schema version 4")) << both.err;
  EXPECT_TRUE(contains(both.out, "/opt/simulate, process 42")) << "nor does it hide the others";
}

TEST(ReportCommand, ShowsTheFilesThatItCanRead) {
  const ScratchFolder folder;
  const std::string good = write_report(folder.path(), "good.json", example_report());
  const std::string cut = folder.path() + "/cut.json";
  const std::string whole = example_report().dump();
  std::ofstream(cut) << whole.substr(0, whole.size() / 2);
  const std::string trace = folder.path() + "/run.csv";
  std::ofstream(trace) << "Thread,Time,Action,Pointer,Size,Stream\n";
  const ProcessResult result = cupool({"report", cut, good, trace, folder.path() + "/none.json"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_EQ(result.out, cupool({"report", good}).out);
  EXPECT_TRUE(contains(result.err, "cupool: " + cut + ": ends early or is damaged")) << result.err;
  EXPECT_TRUE(
      contains(result.err, "cupool: " + trace + ": that is a trace: cupool replay " + trace + "\n"))
      << result.err;
  EXPECT_TRUE(contains(result.err, "/none.json: cannot be read: No such file")) << result.err;
  const ProcessResult none = cupool({"report", cut, trace});
  EXPECT_EQ(none.exit_code, 2) << none.describe();
  EXPECT_TRUE(contains(none.err, cut) && contains(none.err, trace)) << none.err;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"tune", good, cut}, {"diff", good, cut}}) {
    const ProcessResult strict = cupool(words);
    EXPECT_EQ(strict.exit_code, 2) << strict.describe();
    EXPECT_EQ(strict.out, "") << "sums and settings are of all";
    EXPECT_TRUE(contains(strict.err, cut + ": ends early or is damaged")) << strict.err;
  }
}

// Files that never end, or that nobody writes to.
TEST(ReportCommand, GivesUpFilesWithoutAnEnd) {
  const ScratchFolder folder;
  const ProcessResult device = cupool({"report", "/dev/zero"});
  EXPECT_EQ(device.exit_code, 2) << device.describe();
  EXPECT_EQ(device.err.rfind("cupool: /dev/zero: cannot be read: a device\n", 0), 0u);
  EXPECT_EQ(cupool({"replay", "/dev/zero"}).exit_code, 2);
  preload::Command endless;
  endless.argv = {"/bin/sh", "-c", "yes | \"$0\" report /dev/stdin", tested_command()};
  endless.environment = environment();
  const ProcessResult pipe = preload::run(endless);
  EXPECT_EQ(pipe.err.rfind("cupool: /dev/stdin: cannot be read: larger than 256 MiB\n", 0), 0u)
      << pipe.describe();
  std::ofstream(folder.path() + "/large");
  std::filesystem::resize_file(folder.path() + "/large", std::uintmax_t{1} << 40);
  EXPECT_EQ(cupool({"report", folder.path() + "/large"}).exit_code, 2);
  EXPECT_EQ(cupool({"replay", folder.path() + "/large"}).exit_code, 2);
}

TEST(ReportCommand, ReadsAPipe) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  for (const char* input : {"/dev/stdin", "-"}) {
    preload::Command command;
    command.argv = {"/bin/sh",        "-c", "(sleep 0.2; cat \"$1\") | \"$0\" report \"$2\"",
                    tested_command(), file, input};
    command.environment = environment();
    const ProcessResult result = preload::run(command);
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_TRUE(contains(result.out, "/opt/simulate")) << result.out;
  }
}

// The library's warnings and the command's own carry names and values of strangers.
TEST(ReportCommand, PrintsNoControlSequencesOfNames) {
  const ProcessResult result = cupool({"report", "/no\x1b[31m/file"});
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << result.err;
  EXPECT_TRUE(contains(result.err, "/no?[31m/file")) << result.err;
}

TEST(ReportCommand, SaysWhenThePageCannotBeWritten) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const ProcessResult result = cupool({"report", "--html", folder.path() + "/no/p.html", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "/no/p.html: No such file or directory. Create the folder"))
      << result.err;
  const ProcessResult full = cupool({"report", "--html", "/dev/full", file});
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_TRUE(contains(full.err, "No space left on device. Make room")) << full.err;
}

// A pipe that is slow to come makes the reading long.
TEST(ReportCommand, ShowsAtATerminalHowManyAreRead) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string line = "(sleep 0.5; cat " + file + " > " + pipe + ") & " + tested_command() +
                           " report " + file + " " + pipe + " " + file;
  const std::string shown = run_at_terminal({"/bin/sh", "-c", line}, environment()).output;
  EXPECT_TRUE(contains(shown, "reading report 3 of 3\x1b[K")) << shown;
  const std::string quick =
      run_at_terminal({tested_command(), "report", file, file}, environment()).output;
  EXPECT_FALSE(contains(quick, "reading")) << quick;
}

TEST(ReportCommand, SaysWhatItWrote) {
  const ScratchFolder folder;
  const std::string file = write_report(folder.path(), "a.json", example_report());
  const std::string page = folder.path() + "/p.html";
  EXPECT_EQ(cupool({"report", "--html", page, file}).err,
            "cupool: wrote " + page + ", 1 process\n");
  json second = example_report();
  second["process"]["pid"] = 43;
  const std::string other = write_report(folder.path(), "b.json", second);
  const ProcessResult many = cupool({"report", "--html", page, file, other});
  EXPECT_TRUE(contains(many.err, "2 processes")) << many.err;
  EXPECT_EQ(many.out, "");
  EXPECT_EQ(cupool({"report", "--html", "-", file}).err, "");
  const ProcessResult tuned = cupool({"tune", "-o", folder.path() + "/t.env", file});
  EXPECT_EQ(tuned.err, "cupool: wrote " + folder.path() + "/t.env, 2 settings\n");
}

// What the library of today writes is read, with every part.
TEST(ReportCommand, ReadsWhatTheLibraryWrites) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/report.json";
  const ProcessResult run =
      cupool({"run", "--stats", "json", "--stats-file", file, "--stats-interval", "1", "--",
              preload::probe_path("probe_runtime_shared"), "threads=2"});
  ASSERT_EQ(run.exit_code, 0) << run.describe();
  const ProcessResult result = cupool({"report", "--html", "-", file});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  for (const char* part : {"Memory over time", "Requests by size", "Calls of each thread",
                           "Allocations by source", "Time of a call"}) {
    EXPECT_TRUE(contains(result.out, part)) << part;
  }
}

}  // namespace
}  // namespace cli
