// Contract 7: memory of several devices, and what a program pays for devices that it does not use.
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

class Row7 : public testing::TestWithParam<NamedEnvironment> {};

TEST_P(Row7, CopiesKernelsAndFreesOfTwoDevices) {
  for (const char* devices : {"2", "8"}) {
    for (const char* api : {"runtime", "driver"}) {
      for (const char* order : {"before", "after", "later"}) {
        for (const char* peer : {"0", "1"}) {
          Environment extra = GetParam().extra;
          extra["CUPOOL_SIM_DEVICES"] = devices;
          const PreloadedRun run = expect_same(
              std::string("probe_row7 api=") + api + " order=" + order + " peer=" + peer, 0, 1,
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

INSTANTIATE_TEST_SUITE_P(All, Row7,
                         testing::Values(NamedEnvironment{"Pool", {{"CUPOOL_BACKEND", "pool"}}},
                                         NamedEnvironment{"Auto", {{"CUPOOL_BACKEND", "auto"}}},
                                         NamedEnvironment{"Malloc", {{"CUPOOL_BACKEND", "malloc"}}},
                                         NamedEnvironment{"DefaultPool",
                                                          {{"CUPOOL_POOL", "default"}}},
                                         NamedEnvironment{"Sync", {{"CUPOOL_FREE_MODE", "sync"}}}),
                         [](const auto& row) { return std::string(row.param.name); });

// Contract 4 with two devices: idle memory is looked for where it is needed.
TEST(Row7Pressure, IdleMemoryOfTheOtherDeviceIsGivenBack) {
  for (const char* backend : {"pool", "malloc"}) {
    expect_same(
        "probe_row7 mode=pressure", 0, 1,
        {{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_MEMORY", "256M"}, {"CUPOOL_BACKEND", backend}});
  }
}

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

TEST(Row7Cost, OneOfEightDevicesGivesNobodyAccess) {
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
TEST(Row7Cost, TwoOfEightDevicesGiveEachOtherAccess) {
  auto calls =
      driver_calls("probe_runtime_shared devices=2 threads=2", {{"CUPOOL_SIM_DEVICES", "8"}});
  EXPECT_GT(calls["cuMemPoolSetAccess"], 0u);
  EXPECT_LE(calls["cuMemPoolSetAccess"], calls["cuMemPoolCreate"]);
}

}  // namespace
}  // namespace preload
