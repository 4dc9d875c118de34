// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes (contract 8). The scenarios are played by probe_ipc; where the
// driver's own handles allow the same, the output is held against that of a run without us.
#include "harness.h"

#include <algorithm>

namespace preload {
namespace {

std::string scenario(const char* name) {
  return std::string("probe_ipc scenario=") + name;
}

// What the driver's own IPC does, pool memory under us does as well.
class Ipc : public testing::TestWithParam<const char*> {};

TEST_P(Ipc, IsLikeTheDrivers) {
  SCOPED_TRACE(GetParam());
  const ProcessResult plain = run_plain(scenario(GetParam()));
  const PreloadedRun preloaded = run_preloaded(scenario(GetParam()));
  EXPECT_EQ(plain.exit_code, 0) << plain.describe();
  EXPECT_EQ(preloaded.process.exit_code, 0) << preloaded.describe();
  EXPECT_EQ(preloaded.process.out, plain.out);
  EXPECT_EQ(preloaded.process.err, "");
  EXPECT_GT(preloaded.counter("ipc_exports_total"), 0u);
  EXPECT_GT(preloaded.counter("ipc_imports_total"), 0u);
  EXPECT_EQ(preloaded.counter("served_passthrough_total"), 0u);
  for (const nlohmann::json& report : preloaded.reports) expect_identity(report);
}

INSTANTIATE_TEST_SUITE_P(All, Ipc,
                         testing::Values("share", "two", "twice", "errors", "attributes", "many",
                                         "captures"),
                         [](const auto& row) { return std::string(row.param); });

// The program's output, line for line, where it has no counterpart without us.
void expect_lines(const PreloadedRun& result, const std::string& lines) {
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, lines + "done 0\n") << result.describe();
  for (const nlohmann::json& report : result.reports) expect_identity(report);
}

long count_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Ipc, CloseWaitsForTheImportersWork) {
  expect_lines(run_preloaded(scenario("close-waits")), "close 0\nwrong 0\n");
}

// I1: what an importer has open is not served again, although the exporter has freed it.
TEST(Ipc, LeaseEndsWithClose) {
  expect_lines(run_preloaded(scenario("lease-close")),
               "wrong bytes of the importer 0\nheld for it 1\nclose 0\ngiven back 1\n");
}
TEST(Ipc, LeaseEndsWithTheImporter) {
  expect_lines(run_preloaded(scenario("lease-kill")),
               "wrong bytes of the importer 0\nheld for it 1\ngiven back 1\n");
}
// Contract 11: a forked child does not keep it.
TEST(Ipc, LeaseEndsWithTheImporterThoughItsChildLives) {
  expect_lines(run_preloaded(scenario("lease-kill-forked")),
               "wrong bytes of the importer 0\nheld for it 1\ngiven back 1\n");
}

TEST(Ipc, ExporterThatDiedIsAnErrorAtOnce) {
  for (const char* name : {"exporter-dies", "exporter-dies-forked"}) {
    const PreloadedRun result = run_preloaded(scenario(name));
    expect_lines(result, "open 205\nat once 1\nwrong 0\nclose 0\nclose again 1\n");
    EXPECT_EQ(count_lines(result.process.err), 1) << result.describe();
    EXPECT_NE(result.process.err.find("is stopped, or is not reachable"), std::string::npos);
  }
}

TEST(Ipc, ExporterThatIsStoppedIsAnErrorInTime) {
  expect_lines(run_preloaded(scenario("exporter-stops")),
               "open 205\nin time 1\nclose 0\nopen 0\nwrong 0\nclose 0\ngiven back 1\n");
}

TEST(Ipc, StrangersGetNothing) {
  const PreloadedRun result = run_preloaded(scenario("strangers"));
  expect_lines(
      result,
      "open of a forged handle 205\nopen of a forged handle 205\n"
      "open of a forged handle 205\nopen of a forged handle 205\n"
      "open of the right one 0\nwrong 0\nanother user 205\nof another user 205\nwrong 0\n");
}

TEST(Ipc, ImporterWithoutCupoolGetsAnError) {
  expect_lines(run_preloaded(scenario("plain-importer")), "open 1\nwrong 0\n");
}

// Where pool memory cannot be shared: the driver's answer, and one warning with the cure.
TEST(Ipc, IsRefusedWithTheCureWhereItCannotWork) {
  for (const char* variable : {"CUPOOL_SIM_POOL_IPC:0", "CUPOOL_SIM_POOL_IPC:keeps", "CUPOOL_IPC:0",
                               "CUPOOL_POOL:default"}) {
    SCOPED_TRACE(variable);
    const PreloadedRun result = run_preloaded(scenario("refused") + " a=" + variable);
    expect_lines(result, "handle 1\nhandle 1\nwrong 0\nfree 0\n");
    EXPECT_EQ(count_lines(result.process.err), 1) << result.describe();
    EXPECT_NE(result.process.err.find("CUPOOL_BACKEND=malloc"), std::string::npos);
    EXPECT_EQ(result.counter("served_passthrough_total"), 0u);
  }
}

TEST(Ipc, PoolsThatKeepMemoryAreNotUsed) {
  const PreloadedRun result = run_preloaded(
      "probe_oom mode=others", {{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_SIM_POOL_IPC", "keeps"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out,
            run_plain("probe_oom mode=others", {{"CUPOOL_SIM_MEMORY", "1G"}}).out);
}

TEST(Ipc, MallocBackendHasTheDriversHandles) {
  const std::string probe = scenario("share") + " a=CUPOOL_BACKEND:malloc";
  const PreloadedRun result = run_preloaded(probe);
  EXPECT_EQ(result.process.out, run_plain(probe).out) << result.describe();
  EXPECT_EQ(result.counter("ipc_exports_total"), 0u);
}

TEST(Ipc, ResetsLeaveTheOtherSideAlone) {
  expect_lines(
      run_preloaded(scenario("resets")),
      "importer's reset 0\nopen 0\nwrong 0\nexporter's reset 0\nwrong 0\nclose 0\nwrong 0\n");
}

TEST(Ipc, OtherDevicesOpenIt) {
  const Environment two = {{"CUPOOL_SIM_DEVICES", "2"}};
  const PreloadedRun result = run_preloaded(scenario("two-devices"), two);
  EXPECT_EQ(result.process.out, run_plain(scenario("two-devices"), two).out) << result.describe();
  EXPECT_EQ(result.counter("ipc_imports_total"), 2u);
}

TEST(Ipc, ThreadsShareAtOnce) {
  const PreloadedRun result = run_preloaded(scenario("races"));
  expect_lines(result, "exports 0\nopens 0\nwrong 0\n");
  EXPECT_EQ(result.counter("ipc_exports_total"), 101u);
  EXPECT_EQ(result.counter("ipc_imports_total"), 100u);
}

// Contract 11: what has become the program's is neither closed, nor read, nor waited for.
TEST(Ipc, FilesThatGotTheNumbersAreTheProgramsOwn) {
  const PreloadedRun result = run_preloaded(scenario("closes"));
  const std::string quiet = "busy 0\nbroken files 0\n";
  expect_lines(result, "a handle from before 205\n" + quiet +
                           "the importer's bytes wrong 0\na handle from after 0\nwrong 0\n" +
                           quiet + "opened after a close 0\nwrong 0\nclose 0\nfree 0\n" + quiet +
                           quiet);
}

TEST(Ipc, FloodOfConnectionsIsBounded) {
  expect_lines(run_preloaded(scenario("flood")),
               "connected 1\na lease outlives it 0\nanother importer 0\nwrong 0\n"
               "the first importer again 0\nwrong 0\n");
}

// Fail open: each driver call of ours fails once, later and always, on either side.
struct Fault {
  const char* side;
  const char* call;
};

class IpcFault : public testing::TestWithParam<Fault> {};

TEST_P(IpcFault, HarmsNobody) {
  for (const char* when : {"1", "2", "*"}) {
    for (const char* code : {"1", "2", "801"}) {
      const std::string rule = std::string(GetParam().call) + ":" + when + "=" + code;
      SCOPED_TRACE(rule);
      const PreloadedRun result =
          run_preloaded(scenario("faults") + " " + GetParam().side + "=CUPOOL_SIM_FAIL:" + rule);
      EXPECT_EQ(result.process.out, "wrong bytes 0\ndone 0\n") << result.describe();
      EXPECT_EQ(result.process.exit_code, 0) << result.describe();
      if (GetParam().side == std::string("b") && when != std::string("*")) {
        // One call that fails costs one block at most: all else is shared.
        EXPECT_GE(result.counter("ipc_imports_total"), 5u) << result.describe();
      }
      for (const nlohmann::json& report : result.reports) expect_identity(report);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, IpcFault,
    testing::Values(Fault{"a", "cuMemPoolCreate"}, Fault{"a", "cuMemPoolTrimTo"},
                    Fault{"a", "cuMemPoolExportToShareableHandle"},
                    Fault{"a", "cuMemPoolExportPointer"}, Fault{"a", "cuMemPoolDestroy"},
                    Fault{"a", "cuMemPoolGetAttribute"}, Fault{"a", "cuMemGetAddressRange_v2"},
                    Fault{"b", "cuMemPoolImportFromShareableHandle"},
                    Fault{"b", "cuMemPoolImportPointer"}, Fault{"b", "cuMemPoolSetAccess"},
                    Fault{"b", "cuMemFree_v2"}, Fault{"b", "cuCtxRecordEvent"},
                    Fault{"b", "cuEventQuery"}, Fault{"b", "cuEventCreate"},
                    Fault{"b", "cuDeviceCanAccessPeer"}),
    [](const auto& row) { return std::string(row.param.side) + "_" + row.param.call; });

}  // namespace
}  // namespace preload
