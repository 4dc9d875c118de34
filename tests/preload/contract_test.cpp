// What a program may observe (design.md section 2), rule by rule: each probe's own checks hold, and
// its output is the same as without the preload.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

// Contract 1 and 2: one owner at a time, also across threads, streams and frees with work pending.
TEST(Contract, ThreadsThatComeAndGoOwnTheirBlocks) {
  expect_counts(expect_same("probe_threads"));
}

TEST(Contract, ThreadsAreRightInRealTime) {
  expect_counts(expect_same("probe_threads", 0, 1, {{"CUPOOL_SIM_MODE", "timed"}}));
}

// Contract 2: the program has waited for its copies itself, so no free asks for them, and each
// shares its fence with others.
TEST(Contract, FreesAfterTheProgramsOwnWaitAskTheDriverNothing) {
  for (const char* kind : {"shared", "static"}) {
    SCOPED_TRACE(kind);
    const ScratchFolder folder;
    const std::string calls = folder.path() + "/calls";
    expect_same(std::string("probe_runtime_") + kind + " copies=400", 0, 1,
                {{"CUPOOL_SIM_CALLS", calls}});
    std::map<std::string, uint64_t> count = calls_in(calls);
    EXPECT_EQ(count["cuMemcpyDtoHAsync_v2"] + count["cuMemcpyAsync"], 400u);
    EXPECT_EQ(count["cuEventRecord"], 400u);
    EXPECT_LT(count["cuCtxRecordEvent"], 40u);
    EXPECT_LT(count["cuEventQuery"], 80u);
  }
}

// The program's own wait for the legacy stream is one for the whole context, and its frees need no
// fence; but for non-blocking streams, which it does not wait for.
TEST(Contract, FreesBeforeAWaitForTheLegacyStreamNeedNoFence) {
  for (const char* kind : {"shared", "static"}) {
    for (const char* other : {"none", "blocking", "non_blocking"}) {
      SCOPED_TRACE(std::string(kind) + ", " + other);
      const ScratchFolder folder;
      const std::string calls = folder.path() + "/calls";
      expect_same(std::string("probe_runtime_") + kind + " legacy=400 other=" + other, 0, 1,
                  {{"CUPOOL_SIM_CALLS", calls}});
      const uint64_t fences = calls_in(calls)["cuCtxRecordEvent"];
      if (std::string(other) == "non_blocking") {
        EXPECT_GT(fences, 10u);
      } else {
        EXPECT_LT(fences, 5u) << "in the beginning, before there are blocks enough";
      }
    }
  }
}

// Contract 3: the same codes as without us, the last-error state included.
TEST(Contract, RuntimeErrorsAreTheSame) {
  expect_same("probe_errors route=runtime");
}
TEST(Contract, DriverErrorsAreTheSame) {
  expect_same("probe_errors route=driver");
}

TEST(Contract, ErrorsAreTheSameOnTheMallocBackend) {
  expect_same("probe_errors route=runtime", 0, 1, {{"CUPOOL_BACKEND", "malloc"}});
  expect_same("probe_errors route=driver", 0, 1, {{"CUPOOL_BACKEND", "malloc"}});
}

// The lines of the program's output in which only the totals are taken out.
std::vector<long> totals(const std::string& out) {
  std::vector<long> result;
  for (size_t at = out.find("total_mib="); at != std::string::npos;
       at = out.find("total_mib=", at + 1)) {
    result.push_back(std::strtol(out.c_str() + at + 10, nullptr, 10));
  }
  return result;
}

std::string without_totals(std::string out) {
  for (size_t at = out.find("total_mib="); at != std::string::npos;
       at = out.find("total_mib=", at + 1)) {
    out.erase(at + 10, out.find('\n', at) - at - 10);
  }
  return out;
}

// Contract 4: out of memory only where the program would have had it without us.
void expect_same_capacity(const Environment& extra) {
  const ProcessResult plain = run_plain("probe_oom", extra);
  const PreloadedRun preloaded = run_preloaded("probe_oom", extra);
  EXPECT_EQ(plain.exit_code, 0) << plain.describe();
  EXPECT_EQ(preloaded.process.exit_code, 0) << preloaded.describe();
  EXPECT_EQ(without_totals(preloaded.process.out), without_totals(plain.out));
  EXPECT_EQ(preloaded.process.err, plain.err);
  const std::vector<long> expected = totals(plain.out);
  const std::vector<long> got = totals(preloaded.process.out);
  ASSERT_EQ(got.size(), expected.size());
  ASSERT_FALSE(got.empty());
  constexpr long kChunkMib = 34;  // a driver pool grows by 32 MiB (facts.md), legacy memory by 2
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_GT(got[i], 0);
    EXPECT_GE(got[i] + kChunkMib, expected[i]) << "fill " << i;
    EXPECT_LE(got[i], expected[i] + kChunkMib) << "fill " << i;
  }
  for (const nlohmann::json& report : preloaded.reports) expect_identity(report);
}

TEST(Contract, OutOfMemoryComesWhereItWould) {
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"}});
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "300M"}});
}

TEST(Contract, OutOfMemoryComesWhereItWouldOnTheMallocBackend) {
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_BACKEND", "malloc"}});
}

TEST(Contract, OutOfMemoryComesWhereItWouldWhateverIsJustBeingReserved) {
  for (int i = 0; i < 3; ++i) {
    expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"},
                          {"CUPOOL_PREALLOC", "50%"},
                          {"CUPOOL_PREALLOC_BACKGROUND", "1"}});
  }
}

// Contract 4, second half: freed memory is there for the process's other allocators.
TEST(Contract, FreedMemoryServesOtherAllocators) {
  expect_same("probe_oom mode=others", 0, 1, {{"CUPOOL_SIM_MEMORY", "1G"}});
}

// A pool maps all that is free before it finds that it is not enough: 0.4 s on an H200.
TEST(Contract, PoolsAreNotAskedForWhatTheyCannotHave) {
  const ScratchFolder folder;
  const std::string calls = folder.path() + "/calls";
  expect_same("probe_oom mode=hopeless", 0, 1, {{"CUPOOL_SIM_MEMORY", "1G"}});
  run_preloaded("probe_oom mode=hopeless",
                {{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_SIM_CALLS", calls}});
  std::istringstream lines(read_file(calls));
  std::map<std::string, int> made;
  for (std::string name; lines >> name;) lines >> made[name];
  EXPECT_GE(made["cuMemAlloc_v2"], 8) << "the driver decides";
  EXPECT_LT(made["cuMemAllocFromPoolAsync"], 8);
}

// Contract 2: what cupool does with a stream after the driver's call is done before another thread
// destroys it, in the first use of the GPU as well.
TEST(Contract, AStreamMayBeDestroyedWhenItsCallbackIsSeen) {
  expect_same("probe_callback", 0, 1,
              {{"CUPOOL_SIM_MODE", "early"}, {"CUPOOL_SIM_RETURN_MS", "50"}});
}

// Contract 5 and 6.
TEST(Contract, AlignmentRangesAndFreeMemory) {
  expect_counts(expect_same("probe_alignment"));
}
TEST(Contract, AlignmentOnTheMallocBackend) {
  expect_counts(expect_same("probe_alignment", 0, 1, {{"CUPOOL_BACKEND", "malloc"}}));
}
TEST(Contract, PitchesAreTheDrivers) {
  expect_counts(expect_same("probe_pitch"));
}

// The parts of the probe's output, one for each capture.
std::vector<std::string> captures(const std::string& out) {
  std::vector<std::string> parts;
  for (size_t at = out.find("capture "); at != std::string::npos;) {
    const size_t next = out.find("capture ", at + 1);
    parts.push_back(out.substr(at, next == std::string::npos ? next : next - at));
    at = next;
  }
  return parts;
}

// Contract 9: no capture is invalidated by us. Where the driver itself refuses an allocation and
// gives the capture up, we may serve it from our cache instead: then all of it has to be right.
TEST(Contract, CapturesSurvive) {
  for (const char* backend : {"pool", "malloc"}) {
    SCOPED_TRACE(backend);
    const std::vector<std::string> plain = captures(run_plain("probe_capture").out);
    const PreloadedRun result = run_preloaded("probe_capture", {{"CUPOOL_BACKEND", backend}});
    const std::vector<std::string> ours = captures(result.process.out);
    EXPECT_EQ(result.process.exit_code, 0) << result.describe();
    EXPECT_EQ(result.process.err, "");
    ASSERT_EQ(plain.size(), 12u);
    ASSERT_EQ(ours.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      if (ours[i] == plain[i]) continue;
      EXPECT_NE(plain[i].find("graph lost"), std::string::npos) << plain[i] << "ours: " << ours[i];
      EXPECT_NE(ours[i].find("graph made"), std::string::npos) << ours[i];
      EXPECT_NE(ours[i].find("wrong bytes after launch 0"), std::string::npos) << ours[i];
    }
    for (const nlohmann::json& report : result.reports) expect_identity(report);
  }
}

// Contract 10: contexts end, the device is reset, allocation works again.
TEST(Contract, DeviceResetThenAllocateAgain) {
  const PreloadedRun result = expect_same("probe_contexts mode=reset");
  EXPECT_GE(result.counter("context_lost_bytes_total"), 3u << 20);
}
TEST(Contract, TwoContexts) {
  const PreloadedRun result = expect_same("probe_contexts mode=contexts");
  expect_counts(result);
  EXPECT_GE(result.counter("context_lost_bytes_total"), 3u << 20);
}
TEST(Contract, PrimaryContextReleased) {
  expect_counts(expect_same("probe_contexts mode=primary"));
}

TEST(Contract, TwoDevices) {
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

}  // namespace
}  // namespace preload
