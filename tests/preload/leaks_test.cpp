// SPDX-License-Identifier: Apache-2.0
// What is never freed, by call site (docs/statistics.md, Leaks).
#include <filesystem>

#include "harness.h"

namespace preload {
namespace {

// The call sites of a report by the function that called us.
std::map<std::string, nlohmann::json> by_symbol(const nlohmann::json& report) {
  std::map<std::string, nlohmann::json> sites;
  for (const nlohmann::json& site : report.at("leaks").at("sites")) {
    std::string symbol;
    for (const nlohmann::json& frame : site.at("frames")) {
      if (symbol.empty() && frame.at("symbol").is_string()) symbol = frame.at("symbol");
    }
    EXPECT_TRUE(sites.emplace(symbol, site).second) << symbol << " comes twice";
  }
  return sites;
}

TEST(Leaks, AreListedByCallSiteMostBytesFirst) {
  for (const char* most : {"100%", "512"}) {  // with the latter, all are passed through
    const PreloadedRun result =
        expect_same("probe_leaks", 0, 1, {{"CUPOOL_LEAKS", "1"}, {"CUPOOL_MAX_BLOCK", most}});
    const nlohmann::json& report = result.reports.at(0);
    EXPECT_EQ(report.at("leaks").at("is_estimate"), false);
    auto sites = by_symbol(report);
    ASSERT_EQ(sites.size(), 2u) << report.at("leaks").dump(1);
    EXPECT_EQ(sites["leak_large"].at("blocks"), 3);
    EXPECT_EQ(sites["leak_large"].at("bytes"), 15 << 20);
    EXPECT_EQ(sites["leak_small"].at("blocks"), 1);
    EXPECT_EQ(sites["leak_small"].at("bytes"), 1000);
    EXPECT_EQ(report.at("leaks").at("sites").at(0), sites["leak_large"]) << "most bytes first";
    const nlohmann::json& gauges = report.at("devices").at(0).at("gauges");
    EXPECT_EQ(gauges.at("leaked_bytes").at("current"), (15 << 20) + 1000) << "the same sum";
    EXPECT_EQ(gauges.at("leaked_blocks").at("current"), 4);
  }
}

TEST(Leaks, SayWhereInWhichModule) {
  const PreloadedRun result = expect_same("probe_leaks", 0, 1, {{"CUPOOL_LEAKS", "1"}});
  auto sites = by_symbol(result.reports.at(0));
  const nlohmann::json& frames = sites["leak_large"].at("frames");
  ASSERT_GE(frames.size(), 2u);
  EXPECT_EQ(frames.at(0).at("symbol"), "leak_large") << "nothing of cupool or libcudart before it";
  EXPECT_EQ(frames.at(0).at("module"), probe_path("probe_leaks"));
  const nlohmann::json& modules = result.reports.at(0).at("leaks").at("modules");
  const nlohmann::json& module = modules.at(frames.at(0).at("module_index").get<size_t>());
  EXPECT_EQ(module.at("path"), std::filesystem::canonical(probe_path("probe_leaks")).string());
  EXPECT_EQ(module.at("build_id").get<std::string>().size(), 40u) << "hexadecimal, as ld makes it";
  EXPECT_EQ(frames.at(1).at("module_index"), frames.at(0).at("module_index"));
  EXPECT_LE(modules.size(), 2u) << "each once: " << modules.dump(1);
  EXPECT_TRUE(frames.at(1).at("symbol").is_null()) << "main is not exported";
  const char* const functions[] = {"leak_large\n", "main\n"};
  for (size_t i = 0; i < 2; ++i) {
    Command command;
    char offset[32];
    std::snprintf(offset, sizeof offset, "0x%lx", frames.at(i).at("offset").get<unsigned long>());
    command.argv = {"/usr/bin/addr2line", "-f", "-e", probe_path("probe_leaks"), offset};
    command.environment = base_environment();
    EXPECT_EQ(run(command).out.rfind(functions[i], 0), 0u) << "as the page says: " << offset;
  }
}

// With stream-ordered memory of the driver's and of cupool's own.
TEST(Leaks, AreOfEveryKindApart) {
  struct Kind {
    const char* symbol;
    const char* kind;
    int bytes;
    int device;
  };
  for (const char* async : {"threshold", "serve"}) {
    SCOPED_TRACE(async);
    const PreloadedRun result =
        expect_same("probe_leaks kinds=1", 0, 1, {{"CUPOOL_LEAKS", "1"}, {"CUPOOL_ASYNC", async}});
    auto sites = by_symbol(result.reports.at(0));
    EXPECT_EQ(sites.size(), 6u) << result.reports.at(0).at("leaks").dump(1);
    for (const Kind& kind :
         {Kind{"leak_small", "device", 500, 0}, Kind{"leak_page_locked", "page_locked", 3000, -1},
          Kind{"leak_mapped", "page_locked", 70000, -1}, Kind{"leak_managed", "managed", 5000, 0},
          Kind{"leak_stream_ordered", "stream_ordered", 6000, 0}}) {
      ASSERT_EQ(sites.count(kind.symbol), 1u) << kind.symbol;
      const nlohmann::json& site = sites[kind.symbol];
      EXPECT_EQ(site.at("kind"), kind.kind);
      EXPECT_EQ(site.at("device"), kind.device);
      EXPECT_EQ(site.at("bytes"), 2 * kind.bytes);
    }
    const nlohmann::json& gauges = result.reports.at(0).at("devices").at(0).at("gauges");
    EXPECT_EQ(gauges.at("leaked_blocks").at("current"), 4) << "device memory result, as before";
  }
}

// Pool memory of the device outlives its contexts.
TEST(Leaks, AreNoneOfWhatEndedWithItsContext) {
  const PreloadedRun result =
      expect_same("probe_leaks kinds=1 reset=1", 0, 1, {{"CUPOOL_LEAKS", "1"}});
  auto sites = by_symbol(result.reports.at(0));
  EXPECT_EQ(sites.size(), 1u) << result.reports.at(0).at("leaks").dump(1);
  EXPECT_EQ(sites.count("leak_stream_ordered"), 1u);
}

// The engine, and with it the list, starts with the first call.
TEST(Leaks, HaveTheFirstCallOfAProcess) {
  const struct {
    const char* word;
    const char* kind;
    int mib;
  } rows[] = {{"keep_device", "device", 3},
              {"keep_async", "stream_ordered", 5},
              {"keep_managed", "managed", 7},
              {"keep_host", "page_locked", 9}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.word);
    const ScratchFolder folder;
    const PreloadedRun result = run_preloaded(
        std::string("probe_words ") + row.word + " loop=1",  // of device memory: for a report
        {{"CUPOOL_LEAKS", "1"}, {"CUPOOL_TRACE", folder.path() + "/trace.json"}});
    auto sites = by_symbol(result.reports.at(0));
    ASSERT_EQ(sites.count(row.word), 1u) << result.reports.at(0).at("leaks").dump(1);
    EXPECT_EQ(sites[row.word].at("kind"), row.kind);
    EXPECT_EQ(sites[row.word].at("bytes"), row.mib << 20);
    const std::string trace = read_file(folder.path() + "/trace.json");
    EXPECT_TRUE(contains(trace, "\"args\":{\"bytes\":" + std::to_string(row.mib << 20) + ","))
        << trace;
  }
}

TEST(Leaks, OfAnotherDevicesStreamAreOfThatDevice) {
  const PreloadedRun result = run_preloaded("probe_words loop=1 other_stream",
                                            {{"CUPOOL_LEAKS", "1"}, {"CUPOOL_SIM_DEVICES", "2"}});
  ASSERT_EQ(result.reports.size(), 1u) << result.describe();
  const nlohmann::json& sites = result.reports[0].at("leaks").at("sites");
  ASSERT_EQ(sites.size(), 1u) << sites.dump(1);
  EXPECT_EQ(sites[0].at("kind"), "stream_ordered");
  EXPECT_EQ(sites[0].at("device"), 1);
}

// A refused free is no call site of the memory.
TEST(Leaks, OfARefusedFreeKeepTheirCallSite) {
  const ScratchFolder folder;
  const PreloadedRun result =
      run_preloaded("probe_words loop=1 refuse_device refuse_managed",
                    {{"CUPOOL_LEAKS", "1"}, {"CUPOOL_TRACE", folder.path() + "/trace.json"}});
  ASSERT_EQ(result.reports.size(), 1u) << result.describe();
  auto sites = by_symbol(result.reports[0]);
  EXPECT_EQ(sites.count("refuse_device") + sites.count("refuse_managed"), 0u);
  ASSERT_EQ(sites.count("keep_device"), 1u) << result.reports[0].at("leaks").dump(1);
  EXPECT_EQ(sites["keep_device"].at("blocks"), 1);
  ASSERT_EQ(sites.count("keep_managed"), 1u) << result.reports[0].at("leaks").dump(1);
  EXPECT_EQ(sites["keep_managed"].at("blocks"), 1);
  const auto events =
      nlohmann::json::parse(read_file(folder.path() + "/trace.json"), nullptr, false);
  std::map<std::string, int> names;
  std::map<std::string, long> last;
  for (const nlohmann::json& event : events) {
    ++names[event.at("name")];
    if (event.at("ph") == "C") last[event.at("name")] = event.at("args").at("bytes");
  }
  EXPECT_EQ(names["malloc"], 2);
  EXPECT_EQ(names["free"], 1);
  EXPECT_EQ(names["free refused"], 1);
  EXPECT_EQ(names["managed malloc"], 1);
  EXPECT_EQ(names["managed free refused"], 1);
  EXPECT_EQ(last["live bytes of device 0"], 3 << 20);
  EXPECT_EQ(last["live managed bytes of device 0"], 7 << 20);
}

TEST(Leaks, AreInTheTextReport) {
  const ScratchFolder folder;
  run_preloaded("probe_leaks kinds=1", {{"CUPOOL_LEAKS", "1"},
                                        {"CUPOOL_STATS", "text"},
                                        {"CUPOOL_STATS_FILE", folder.path() + "/report.txt"}});
  const std::string text = read_file(folder.path() + "/report.txt");
  const size_t title = text.find("Never freed, by call site\n");
  ASSERT_NE(title, std::string::npos) << text;
  const size_t large = text.find("15.0 MiB in 3 blocks on device 0", title);
  const size_t symbol = text.find(" leak_large\n", large);
  EXPECT_NE(symbol, std::string::npos) << text;
  EXPECT_NE(text.find("1000 B in 1 block on device 0", symbol), std::string::npos) << text;
  EXPECT_NE(text.find("5.86 KiB in 2 blocks of page-locked memory\n"), std::string::npos) << text;
  EXPECT_NE(text.find("9.77 KiB in 2 blocks of managed memory on device 0"), std::string::npos)
      << text;
  EXPECT_NE(text.find("11.7 KiB in 2 blocks of cudaMallocAsync on device 0"), std::string::npos)
      << text;
}

TEST(Leaks, OfASampleAreScaledAndSaySo) {
  const PreloadedRun result = expect_same("probe_leaks many=4000", 0, 1, {{"CUPOOL_LEAKS", "1/8"}});
  const nlohmann::json& report = result.reports.at(0);
  EXPECT_EQ(report.at("leaks").at("sampled_one_in"), 8);
  EXPECT_EQ(report.at("leaks").at("is_estimate"), true);
  auto sites = by_symbol(report);
  ASSERT_EQ(sites.count("leak_many"), 1u) << report.at("leaks").dump(1);
  // 500 expected, with a standard deviation of 21: six of them either way.
  const uint64_t blocks = sites["leak_many"].at("blocks");
  EXPECT_GE(blocks, 3000u);
  EXPECT_LE(blocks, 5000u);
  EXPECT_EQ(sites["leak_many"].at("bytes"), blocks * 4096);
}

TEST(Leaks, GoWithTheirContext) {
  const PreloadedRun result =
      expect_same("probe_contexts mode=reset", 0, 1, {{"CUPOOL_LEAKS", "1"}});
  uint64_t bytes = 0;
  for (const nlohmann::json& site : result.reports.at(0).at("leaks").at("sites")) {
    bytes += site.at("bytes").get<uint64_t>();
  }
  EXPECT_EQ(bytes,
            result.reports.at(0).at("devices").at(0).at("gauges").at("leaked_bytes").at("current"));
}

TEST(Leaks, OfManyThreadsAddUpToNothing) {
  const PreloadedRun result =
      expect_same("probe_runtime_shared threads=4 iterations=100", 0, 1, {{"CUPOOL_LEAKS", "1"}});
  EXPECT_TRUE(result.reports.at(0).at("leaks").at("sites").empty());
}

TEST(Leaks, AreNotKeptUnlessAskedFor) {
  EXPECT_TRUE(expect_same("probe_leaks").reports.at(0).at("leaks").is_null());
}

}  // namespace
}  // namespace preload
