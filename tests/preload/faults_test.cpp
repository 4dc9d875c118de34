// SPDX-License-Identifier: Apache-2.0
// Faults of the driver and older drivers (docs/design.md, Contract, "Fail open": trouble of ours is
// never the program's error). Every call that we make for ourselves is made to fail; the program
// must see what it sees without us: right data, or the error that the same fault gives it there.
#include <unistd.h>

#include <algorithm>

#include "harness.h"

namespace preload {
namespace {

// From "errors:" on: what the program was told. Before it: whether its data was right.
std::string errors_line(const std::string& out) {
  const size_t at = out.find("errors:");
  return at == std::string::npos ? "" : out.substr(at);
}

void expect_fails_open(const std::string& fault, const Environment& more = {}) {
  SCOPED_TRACE(fault);
  Environment extra = more;
  extra["CUPOOL_SIM_FAIL"] = fault;
  const std::string without_fault = errors_line(run_plain("probe_faults", more).out);
  const ProcessResult plain = run_plain("probe_faults", extra);
  const PreloadedRun preloaded = run_preloaded("probe_faults", extra);
  EXPECT_EQ(preloaded.process.exit_code, 0) << preloaded.describe();
  EXPECT_EQ(preloaded.process.signal, 0) << preloaded.describe();
  EXPECT_FALSE(preloaded.process.timed_out) << preloaded.describe();
  EXPECT_NE(preloaded.process.out.find("wrong_bytes=0\n"), std::string::npos)
      << preloaded.describe();
  const std::string errors = errors_line(preloaded.process.out);
  EXPECT_FALSE(errors.empty());
  EXPECT_TRUE(errors == without_fault || errors == errors_line(plain.out))
      << "the program was told: " << errors << "without us: " << errors_line(plain.out)
      << preloaded.process.err;
}

class FaultIn : public testing::TestWithParam<const char*> {};

TEST_P(FaultIn, IsNotTheProgramsError) {
  for (const char* when : {"1", "2", "*"}) {
    for (const char* code : {"1", "2", "801", "999"}) {
      expect_fails_open(std::string(GetParam()) + ":" + when + "=" + code);
    }
  }
}

TEST_P(FaultIn, IsNotTheProgramsErrorOnTheMallocBackend) {
  for (const char* code : {"1", "2", "999"}) {
    expect_fails_open(std::string(GetParam()) + ":2=" + code, {{"CUPOOL_BACKEND", "malloc"}});
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FaultIn,
    testing::Values("cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolSetAttribute",
                    "cuMemPoolGetAttribute", "cuMemPoolSetAccess", "cuMemPoolTrimTo",
                    "cuMemAllocFromPoolAsync", "cuMemAllocAsync", "cuMemFreeAsync",
                    "cuDeviceGetDefaultMemPool", "cuStreamCreate", "cuStreamCreateWithPriority",
                    "cuStreamDestroy_v2", "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate",
                    "cuEventRecord", "cuEventQuery", "cuCtxRecordEvent", "cuCtxGetCurrent",
                    "cuCtxGetDevice", "cuCtxGetId", "cuCtxGetFlags", "cuCtxPushCurrent_v2",
                    "cuCtxPopCurrent_v2", "cuCtxSynchronize", "cuDeviceGetAttribute",
                    "cuDeviceTotalMem_v2", "cuDeviceGetName", "cuStreamIsCapturing",
                    "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttribute",
                    "cuPointerGetAttributes", "cuMemGetInfo_v2", "cuMemGetAddressRange_v2",
                    "cuMemAlloc_v2", "cuMemFree_v2"),
    [](const auto& row) { return std::string(row.param); });

// Drivers that lack what we would like to use: no context events (before 12.5), no pools (before
// 11.2), or a device that does not support pools (vGPU, Maxwell).
struct Driver {
  const char* name;
  Environment extra;
  bool has_resolver;  // cuGetProcAddress came with 11.3
};

class OldDriver : public testing::TestWithParam<Driver> {};

TEST_P(OldDriver, ServesEveryRoute) {
  // Without the folder's own driver the test would silently run on the new one.
  const auto folder = GetParam().extra.find("LD_LIBRARY_PATH");
  if (folder != GetParam().extra.end()) {
    const std::string path = folder->second.substr(0, folder->second.find(':'));
    ASSERT_EQ(access((path + "/libcuda.so.1").c_str(), R_OK), 0) << path;
  }
  for (const char* probe : {"probe_runtime_shared threads=3", "probe_runtime_static",
                            "probe_driver_linked", "probe_dlsym", "probe_getproc"}) {
    SCOPED_TRACE(probe);
    if (!GetParam().has_resolver && std::string(probe) == "probe_getproc") {
      expect_same(probe, 3, 0, GetParam().extra);  // no route invents the missing function
      continue;
    }
    const ProcessResult plain = run_plain(probe, GetParam().extra);
    const PreloadedRun preloaded = run_preloaded(probe, GetParam().extra);
    EXPECT_EQ(plain.exit_code, 0) << plain.describe();
    EXPECT_EQ(preloaded.process.exit_code, 0) << preloaded.describe();
    EXPECT_EQ(preloaded.process.out, plain.out);
    expect_counts(preloaded);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OldDriver,
    testing::Values(Driver{"WithoutContextEvents", old_driver("lib-no-ctx-event"), true},
                    Driver{"WithoutPools", old_driver("lib-no-pools"), false},
                    Driver{"DeviceWithoutPools", {{"CUPOOL_SIM_POOLS", "0"}}, true}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(OldDriver, WithoutPoolsUsesTheMallocBackend) {
  const PreloadedRun result = run_preloaded("probe_runtime_shared", {{"CUPOOL_SIM_POOLS", "0"}});
  ASSERT_EQ(result.reports.size(), 1u) << result.describe();
  EXPECT_NE(result.reports[0].dump().find("malloc"), std::string::npos);
  EXPECT_GT(
      result.counter("served_thread_cache_total") + result.counter("served_shared_cache_total"),
      0u);
}

// Asked for by name, pools that do not exist are one warning, and the program runs.
TEST(OldDriver, PoolAskedForInVainWarnsOnce) {
  const PreloadedRun result = run_preloaded(
      "probe_runtime_shared", {{"CUPOOL_SIM_POOLS", "0"}, {"CUPOOL_BACKEND", "pool"}});
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  EXPECT_EQ(result.process.out, run_plain("probe_runtime_shared").out);
  EXPECT_EQ(std::count(result.process.err.begin(), result.process.err.end(), '\n'), 1)
      << result.describe();
}

// A pool is tried with a block before memory that can be shared comes from it. Without memory for
// that block nothing is decided.
TEST(PoolsFirstBlock, ThatFindsNoMemoryForbidsNoSharing) {
  const char* const command = "probe_errors route=driver";
  const PreloadedRun run = run_preloaded(
      command, {{"CUPOOL_SIM_FAIL", "cuMemAllocFromPoolAsync:1=2,>cuMemAllocFromPoolAsync:1=2"}});
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.out, run_preloaded(command).process.out);
}

}  // namespace
}  // namespace preload
