// SPDX-License-Identifier: Apache-2.0
// Contract 2, the host's side: for which host memory a free waits, and until when.
#include <filesystem>

#include "harness.h"

namespace preload {
namespace {

const Environment kRealTime{{"CUPOOL_SIM_MODE", "timed"}, {"CUPOOL_POOL_START", "first"}};

// Contract 2. The driver waits in every free; cupool while it has to.
TEST(HostSide, ADevicePointerInsidePageLockedMemoryGoesWithIt) {
  const PreloadedRun result = run_preloaded("probe_host_side case=interior", kRealTime);
  EXPECT_EQ(result.process.out, "before=0\nallocated while=1 after=0\nregistered while=1 after=0\n")
      << result.describe();
}

// Contract 2. A library of the program's may have a name that begins like one of the toolkit's,
// whose memory is their own.
TEST(HostSide, ZeroCopyMemoryOfTheProgramsLibrariesIsTheirs) {
  const std::filesystem::path probes = tested_build().folder + "/tests/preload/probes";
  const std::filesystem::path folder = probes / "named";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::pair<const char*, const char*> names[] = {
      {"libcufft_x.so", "while=1\n"},           {"libcufft-x.so", "while=1\n"},
      {"libncclient.so.2", "while=1\n"},        {"libcudnn_ops_of_mine.so", "while=1\n"},
      {"libcufft.so.11", "while=0\n"},          {"libcufft-6c4e7a90.so.11", "while=0\n"},
      {"libcudnn_ops_infer.so.8", "while=0\n"}, {"libnvrtc-builtins.alt.so.13.0", "while=0\n"},
      {"libnccl-net-ofi.so", "while=0\n"},
  };
  for (const auto& [name, expected] : names) {
    SCOPED_TRACE(name);
    std::filesystem::copy_file(probes / "libnet_static.so", folder / name);
    const std::string probe = "probe_host_side case=library library=" + (folder / name).string();
    const PreloadedRun result = run_preloaded(probe, kRealTime);
    EXPECT_EQ(result.process.out, expected) << result.describe();
  }
}

// I4. The mutation waits-with-lock is caught by this (tests/property/CMakeLists.txt).
TEST(HostSide, AFreeThatWaitsHoldsUpNoCapture) {
  for (const char* mode : {"auto", "sync"}) {
    const PreloadedRun result =
        run_preloaded("probe_host_side case=beside",
                      {{"CUPOOL_FREE_MODE", mode}, {"CUPOOL_POOL_START", "first"}});
    EXPECT_EQ(result.process.out, "done\n") << mode << result.describe();
  }
}

TEST(HostSide, ReachableMemoryGoesWithItsContext) {
  const PreloadedRun result = run_preloaded("probe_host_side case=contexts", kRealTime);
  EXPECT_EQ(result.process.out, "while=1 after=0\n") << result.describe();
}

// Contract 2: mapped host memory, too.
TEST(HostSide, AKernelMayBeGivenHostMemoryThatIsMapped) {
  const PreloadedRun result = run_preloaded("probe_host_side case=elsewhere", kRealTime);
  EXPECT_EQ(result.process.out, "before=0 after=1\n") << result.describe();
}

TEST(HostSide, ManyManagedBlocksGoOneByOne) {
  const PreloadedRun result = run_preloaded("probe_host_side case=managed", kRealTime);
  EXPECT_EQ(result.process.out, "while=1 after=0\n") << result.describe();
}

constexpr std::size_t kAimedCalls = 27;  // of probe_aimed

// Contract 2: what takes device memory may be given page-locked memory.
TEST(HostSide, WhatIsAimedAtPageLockedMemoryIsThereAfterAFree) {
  for (const char* way : {"explicit", "per_thread", "explicit memory=oldest"}) {
    SCOPED_TRACE(way);
    const PreloadedRun result =
        expect_same(std::string("probe_aimed stream=") + way, 0, 1, kRealTime);
    const std::vector<std::string> lines = lines_of(result.process.out);
    EXPECT_EQ(lines.size(), kAimedCalls);
    for (const std::string& line : lines) EXPECT_TRUE(contains(line, "=0 there=1")) << line;
  }
}

// Contract 2, where another thread frees before the call has returned.
const Environment kReturnsLate =
    with(kRealTime, {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_RETURN_MS", "20"}});

TEST(HostSide, WhatIsAimedAtPageLockedMemoryIsThereBesideItsCall) {
  for (const char* stream : {"explicit", "per_thread"}) {
    SCOPED_TRACE(stream);
    const PreloadedRun result =
        expect_same(std::string("probe_aimed free=beside stream=") + stream, 0, 1, kReturnsLate);
    const std::vector<std::string> lines = lines_of(result.process.out);
    EXPECT_EQ(lines.size(), kAimedCalls);
    for (const std::string& line : lines) EXPECT_TRUE(contains(line, "=0 there=1")) << line;
  }
}

// So the test above would notice a call that is not counted: a free before its end is too early.
TEST(HostSideMutation, CallsAreUnderWayWhileTheProbeFrees) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  Environment environment = with(
      kReturnsLate, {{"CUPOOL_STATS", "off"}, {"CUPOOL_TEST_MUTATION", "forgets-calls-under-way"}});
  environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
  const ProcessResult run = run_plain("probe_aimed free=beside stream=explicit", environment);
  std::size_t early = 0;
  for (const std::string& line : lines_of(run.out)) early += contains(line, "=0 there=0") ? 1 : 0;
  EXPECT_GT(early, kAimedCalls / 2) << run.describe();
}

// Contract 2: memory stays page-locked if the call that would end it is refused, and whatever was
// known of its bytes before.
TEST(HostSide, PageLockedMemoryIsKnownUntilTheDriverHasTakenItBack) {
  const PreloadedRun result = expect_same("probe_host_side case=kept", 0, 1, kRealTime);
  std::size_t seen = 0;
  for (const std::string& line : lines_of(result.process.out)) {
    if (!contains(line, "there=")) continue;
    ++seen;
    EXPECT_TRUE(contains(line, "there=1")) << line;
  }
  EXPECT_EQ(seen, 5u) << result.describe();
}

// Contract 2, also for a launch that needed a second attempt (contract 4).
TEST(HostSide, ALaunchThatIsMadeAgainIsWaitedForAsWell) {
  const std::pair<const char*, const char*> launches[] = {
      {"configuration", "cuLaunchKernelEx:1=2"}, {"arguments", "cuLaunchCooperativeKernel:1=2"}};
  for (const auto& [by, fault] : launches) {
    SCOPED_TRACE(fault);
    const PreloadedRun result = run_preloaded(std::string("probe_host_side case=rescued by=") + by,
                                              with(kRealTime, {{"CUPOOL_SIM_FAIL", fault}}));
    EXPECT_EQ(result.process.out, "launch=0 there=1\n") << result.describe();
  }
}

TEST(HostSide, KernelsThatGetPageLockedMemoryAreNotForgotten) {
  if (!tested_build().sanitizer.empty()) GTEST_SKIP() << "no such engine with a sanitizer";
  Environment environment = with(
      kRealTime, {{"CUPOOL_STATS", "off"}, {"CUPOOL_TEST_MUTATION", "ignores-pinned-arguments"}});
  environment["LD_PRELOAD"] = tested_build().folder + "/tests/libcupool_mutable.so";
  const ProcessResult run = run_plain("probe_aimed stream=explicit", environment);
  EXPECT_TRUE(contains(run.out, "cuLaunchKernel=0 there=0")) << run.describe();
}

TEST(HostSide, WorkOnDeviceMemoryAloneHoldsUpNoFree) {
  const PreloadedRun result = run_preloaded("probe_host_side case=unaimed", kRealTime);
  EXPECT_EQ(result.process.out, "waits=0\n") << result.describe();
}

}  // namespace
}  // namespace preload
