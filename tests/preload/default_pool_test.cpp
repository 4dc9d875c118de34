// SPDX-License-Identifier: Apache-2.0
// The device's default pool as the program uses it (docs/design.md, The default pool): when it is
// kept, when its memory goes back, and when it is the program's alone.
#include "harness.h"

namespace preload {
namespace {

const Environment kSoon = {{"CUPOOL_DECAY_MS", "400"}, {"CUPOOL_SIM_MODE", "early"}};
const Environment kNever = {{"CUPOOL_DECAY_MS", "0"}, {"CUPOOL_SIM_MODE", "early"}};

void expect_out(const std::string& probe, const Environment& extra, const std::string& out) {
  SCOPED_TRACE(probe);
  const PreloadedRun run = run_preloaded("probe_default_pool " + probe, extra);
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.out, out) << run.describe();
  EXPECT_EQ(run.process.err, "");
}

TEST(DefaultPool, KeepsItsMemoryUntilItIsNotNeeded) {
  const std::string kept = "stays 1\nstays 1\ngoes 1\ndone\n";
  expect_out("mode=stays", kSoon, kept);
  expect_out("mode=stays", with(kSoon, {{"CUPOOL_BACKEND", "malloc"}}), kept);
  expect_out("mode=stays", with(kSoon, {{"CUPOOL_ASYNC", "threshold"}}), kept);
}

TEST(DefaultPool, IsTheDriversIfToldSo) {
  const std::string left = "stays 0\nstays 0\ngoes 1\ndone\n";
  EXPECT_EQ(run_plain("probe_default_pool mode=stays", kSoon).out, left);
  for (const Environment& settings :
       {Environment{{"CUPOOL_ASYNC", "off"}}, Environment{{"CUPOOL_RELEASE_THRESHOLD", "0"}},
        Environment{{"CUPOOL_MODE", "observe"}}, Environment{{"CUPOOL_ENABLE", "0"}}}) {
    expect_out("mode=stays", with(kSoon, settings), left);
  }
}

// Nothing would give back what it keeps.
TEST(DefaultPool, IsTheDriversWhereNoThreadCanBeStarted) {
  const std::string left = "stays 0\nstays 0\ngoes 1\ndone\n";
  for (const char* backend : {"auto", "malloc"}) {
    const Environment extra = with(kSoon, {{"CUPOOL_BACKEND", backend}});
    const PreloadedRun run = run_preloaded("probe_default_pool mode=stays threads=0", extra);
    EXPECT_EQ(run.process.out, left) << run.describe();
  }
}

// The threshold is a bound of the driver's.
TEST(DefaultPool, KeepsNoMoreThanTheThreshold) {
  expect_out("mode=stays", with(kSoon, {{"CUPOOL_RELEASE_THRESHOLD", "32M"}}),
             "stays 0\nstays 0\ngoes 1\ndone\n");
}

TEST(DefaultPool, DecaysToWhatWasNeededThroughout) {
  expect_out("mode=peaks", with(kSoon, {{"CUPOOL_DECAY_MS", "400"}}),
             "what is needed stays 1\nthe rest has gone 1\ndone\n");
}

// Where the device is nearly full, long before the span is over.
TEST(DefaultPool, DecaysSoonerWhereMemoryIsScarce) {
  expect_out("mode=stays",
             {{"CUPOOL_DECAY_MS", "86400000"},
              {"CUPOOL_SIM_MODE", "early"},
              {"CUPOOL_SIM_MEMORY", "104M"}},
             "stays 1\nstays 1\ngoes 1\ndone\n");
}

TEST(DefaultPool, IsTheProgramsOnceItSetsOrTrimsIt) {
  for (const Environment& environment : {kSoon, kNever}) {
    for (const char* first : {"", " first=1"}) {
      const auto expect = [&](const std::string& how, const char* out) {
        const std::string probe = "mode=owned how=" + how + first;
        EXPECT_EQ(run_plain("probe_default_pool " + probe, environment).out, out);
        expect_out(probe, environment, out);
      };
      expect("threshold", "gone 1\nstays 1\nthreshold 1073741824\ndone\n");
      expect("zero", "gone 1\nstays 0\nthreshold 0\ndone\n");
      expect("trim", "gone 1\nstays 0\nthreshold 0\ndone\n");
    }
  }
}

// The driver evicts no idle memory for managed memory.
TEST(DefaultPool, IsLeftOnceThereIsManagedMemory) {
  expect_out("mode=managed", kNever, "gone 1\ngone 1\ndone\n");
}

TEST(DefaultPool, IsLeftWhenCupoolStepsAside) {
  const PreloadedRun run = run_preloaded("probe_default_pool mode=aside", kNever);
  EXPECT_EQ(run.process.out, "gone 1\ngone 1\ndone\n") << run.describe();
  EXPECT_TRUE(contains(run.process.err, "the driver serves its memory from now on"));
}

// Decay looks at a device by its contexts, and never here. Later it is kept as before.
TEST(DefaultPool, IsTrimmedWhenTheDeviceIsReset) {  // contract 10
  expect_out("mode=reset", kNever, "gone 1\nstays 1\ndone\n");
}

TEST(DefaultPool, IsKeptWhatOtherPoolsThereAre) {
  expect_out("mode=other", kSoon,
             "own pool 0\nown pool keeps 1\nthreshold 1\ndefault pool keeps 1\ndone\n");
}

// Contract 4. Giving memory back would cost the next allocations, and cure nothing.
TEST(DefaultPool, ARequestBeyondTheDeviceEmptiesNoCache) {
  const PreloadedRun run = expect_same("probe_default_pool mode=beyond", 0, 1, kNever);
  EXPECT_EQ(run.process.out, "beyond the device 2\ndone\n");
  EXPECT_EQ(run.counter("returned_bytes_total"), 0u);
  EXPECT_EQ(run.counter("trims_total"), 0u);
}

// Contract 9.
TEST(DefaultPool, IsNotTouchedDuringACapture) {
  expect_out("mode=capture", kNever, "capture 0\ngone 1\nstays 1\ndone\n");
}

TEST(DefaultPool, HarmsNoCapture) {  // contract 9
  for (const char* decay : {"4", "0"}) {
    expect_same("probe_default_pool mode=captures", 0, 1,
                {{"CUPOOL_DECAY_MS", decay}, {"CUPOOL_SIM_MEMORY", "400M"}});
  }
}

TEST(DefaultPool, MayBeSetAndTrimmedBesideAllocations) {
  for (const char* mode : {"early", "timed"}) {
    expect_same("probe_default_pool mode=threads", 0, 1,
                {{"CUPOOL_DECAY_MS", "8"}, {"CUPOOL_SIM_MODE", mode}});
  }
}

// Contract 4. A call of cupool's that fails now and then costs the program nothing; where the
// driver refuses for good, the pool is left to it, or its memory stays.
TEST(DefaultPool, FailsOpen) {
  const Environment small = with(kNever, {{"CUPOOL_SIM_MEMORY", "400M"}});
  const std::string probe = "probe_default_pool mode=oom";
  const std::string without_fault = run_plain(probe, small).out;
  for (const char* name : {"cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool", "cuMemPoolTrimTo",
                           "cuMemGetInfo_v2", "cuMemPoolSetAttribute", "cuMemPoolGetAttribute"}) {
    for (const char* when : {":1=1", ":2=999", ":3=801", ":5=2", ":2+=1"}) {
      const Environment fault = with(small, {{"CUPOOL_SIM_FAIL", std::string(name) + when}});
      SCOPED_TRACE(fault.at("CUPOOL_SIM_FAIL"));
      const ProcessResult plain = run_plain(probe, fault);
      if (plain.exit_code != 0) continue;  // the program's own call
      const PreloadedRun run = run_preloaded(probe, fault);
      EXPECT_EQ(run.process.exit_code, 0) << run.describe();
      if (std::string(when).find('+') != std::string::npos) continue;
      EXPECT_EQ(run.process.out, without_fault) << run.describe();
    }
  }
}

}  // namespace
}  // namespace preload
