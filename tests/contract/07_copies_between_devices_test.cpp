// SPDX-License-Identifier: Apache-2.0
// Contract 7: memory of several devices, devices that cannot be peers, and what a program pays for
// devices that it does not use.
#include <algorithm>
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

int64_t gauge(const PreloadedRun& run, const char* key) {
  int64_t sum = 0;
  for (const nlohmann::json& report : run.reports) {
    for (const nlohmann::json& device : report.at("devices")) {
      sum += device.at("gauges").at(key).at("current").get<int64_t>();
    }
  }
  return sum;
}

class CopiesBetweenDevices : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(CopiesBetweenDevices, KernelsAndFreesAreAsWithoutUs) {
  for (const char* devices : {"2", "8"}) {
    for (const char* api : {"runtime", "driver"}) {
      for (const char* order : {"before", "after", "later"}) {
        for (const char* peer : {"0", "1"}) {
          Environment extra = GetParam().extra;
          extra["CUPOOL_SIM_DEVICES"] = devices;
          const PreloadedRun run = expect_same(
              std::string("probe_devices api=") + api + " order=" + order + " peer=" + peer, 0, 1,
              extra);
          EXPECT_NE(run.process.out.find("1 to 0, way 5, size 3145728: 0, wrong bytes 0"),
                    std::string::npos)
              << run.describe();
          EXPECT_EQ(gauge(run, "leaked_blocks"), 0);
          for (const nlohmann::json& report : run.reports) expect_identity(report);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CopiesBetweenDevices,
                         testing::Values(NamedEnvironment{"Pool", {{"CUPOOL_BACKEND", "pool"}}},
                                         NamedEnvironment{"Auto", {{"CUPOOL_BACKEND", "auto"}}},
                                         NamedEnvironment{"Malloc", {{"CUPOOL_BACKEND", "malloc"}}},
                                         NamedEnvironment{"DefaultPool",
                                                          {{"CUPOOL_POOL", "default"}}},
                                         NamedEnvironment{"Sync", {{"CUPOOL_FREE_MODE", "sync"}}}),
                         [](const auto& row) { return std::string(row.param.name); });

// The calls of the driver in a run, by the simulator's own count.
std::map<std::string, uint64_t> driver_calls(const std::string& probe, Environment extra) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/calls";
  extra["CUPOOL_SIM_CALLS"] = file;
  const PreloadedRun run = run_preloaded(probe, extra);
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  std::map<std::string, uint64_t> calls;
  std::istringstream lines(read_file(file));
  std::string symbol;
  uint64_t count = 0;
  while (lines >> symbol >> count) calls[symbol] = count;
  EXPECT_GT(calls["cuMemPoolCreate"], 0u) << run.describe();
  return calls;
}

TEST(DevicesInUse, OneOfEightGivesNobodyAccess) {
  const Environment eight = {{"CUPOOL_SIM_DEVICES", "8"}};
  for (const char* probe :
       {"probe_runtime_shared", "probe_runtime_static", "probe_driver_linked"}) {
    auto calls = driver_calls(probe, eight);
    EXPECT_EQ(calls["cuMemPoolSetAccess"], 0u) << probe;
    EXPECT_EQ(calls["cuDevicePrimaryCtxRetain"],
              driver_calls(probe, {})["cuDevicePrimaryCtxRetain"])
        << probe;
  }
}

// Each pool admits the one other device that is used, once.
TEST(DevicesInUse, TwoOfEightGiveEachOtherAccess) {
  auto calls =
      driver_calls("probe_runtime_shared devices=2 threads=2", {{"CUPOOL_SIM_DEVICES", "8"}});
  EXPECT_GT(calls["cuMemPoolSetAccess"], 0u);
  EXPECT_LE(calls["cuMemPoolSetAccess"], calls["cuMemPoolCreate"]);
}

TEST(DevicesInUse, TwoCountEachForItself) {
  const PreloadedRun result = expect_same("probe_runtime_shared iterations=20 threads=2 devices=2",
                                          0, 1, {{"CUPOOL_SIM_DEVICES", "2"}});
  expect_counts(result);
  ASSERT_EQ(result.reports.size(), 1u);
  std::vector<int> ordinals;
  for (const nlohmann::json& device : result.reports[0].at("devices")) {
    ordinals.push_back(device.at("ordinal").get<int>());
    EXPECT_EQ(device.at("counters").at("malloc_calls_total"), 2u * 2 * 20) << device.dump(1);
  }
  EXPECT_EQ(ordinals, (std::vector<int>{0, 1}));
}

// Contract 7: pools that refuse another device would make copies write nothing; plain memory does
// not.
TEST(DevicesWithoutPeers, RefusedAccessMeansPlainMemory) {
  for (const char* order : {"before", "after"}) {
    const Environment extra = {{"CUPOOL_SIM_DEVICES", "2"},
                               {"CUPOOL_SIM_FAIL", "cuMemPoolSetAccess:*=801"}};
    const std::string probe = std::string("probe_devices order=") + order;
    const ProcessResult plain = run_plain(probe, extra);
    const PreloadedRun run = run_preloaded(probe, extra);
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(std::count(run.process.err.begin(), run.process.err.end(), '\n'), 1)
        << run.process.err;
    // What was pooled before the second device came into use cannot be changed any more.
    if (std::string(order) == "before") {
      EXPECT_EQ(run.process.out, plain.out);
    }
  }
}

// Contract 7: where devices cannot be peers, copies between them are right, pools asked for or not.
TEST(DevicesWithoutPeers, HavePlainMemory) {
  for (const char* backend : {"auto", "pool", "malloc"}) {
    for (const char* order : {"before", "after", "later"}) {
      const Environment extra = {
          {"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_PEERS", "0"}, {"CUPOOL_BACKEND", backend}};
      const std::string probe = std::string("probe_devices order=") + order;
      const ProcessResult plain = run_plain(probe, extra);
      const PreloadedRun run = run_preloaded(probe, extra);
      EXPECT_EQ(plain.exit_code, 0) << plain.describe();
      EXPECT_NE(plain.out.find("0 to 1, way 0, size 1000: 0, wrong bytes 0"), std::string::npos);
      EXPECT_EQ(run.process.exit_code, 0) << run.describe();
      EXPECT_EQ(run.process.out, plain.out);
      ASSERT_EQ(run.reports.size(), 1u) << run.describe();
      EXPECT_EQ(run.reports[0].at("backend"), "malloc");
      const bool asked_in_vain = std::string(backend) == "pool";
      EXPECT_EQ(run.process.err.find("can be peers") != std::string::npos, asked_in_vain)
          << run.process.err;
    }
  }
}

}  // namespace
}  // namespace preload
