// SPDX-License-Identifier: Apache-2.0
// Contract 4: out of memory is reported only after idle memory was given back and the real call has
// failed, for every allocator of the process, and at the device's limit exactly as without us.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

const Environment kSmallDevice = {{"CUPOOL_SIM_MEMORY", "512M"}};

long total_of(const std::string& out) {
  const size_t at = out.find("total_mib=");
  return at == std::string::npos ? -1 : std::strtol(out.c_str() + at + 10, nullptr, 10);
}

// The driver's errors name the call; a line of the probe is "name: code, last error code".
std::string line_of(const std::vector<std::string>& lines, const std::string& name) {
  for (const std::string& line : lines) {
    if (line.compare(0, name.size() + 1, name + ":") == 0) return line;
  }
  return "";
}

struct Walk {
  const char* leave;
  Environment extra;
};

TEST(DeviceLimit, WalkDownEndsWhereItDoesInAFreshProcess) {
  for (const Walk& walk :
       {Walk{"0", {}}, Walk{"4", {}}, Walk{"0", {{"CUPOOL_BACKEND", "malloc"}}},
        Walk{"4", {{"CUPOOL_SIM_RECLAIM", "1"}}}, Walk{"4", {{"CUPOOL_SIM_MODE", "early"}}},
        Walk{"4", {{"CUPOOL_FREE_MODE", "sync"}}}}) {
    const std::string probe = std::string("probe_device_limit mode=walk leave=") + walk.leave;
    const PreloadedRun run = expect_same(probe, 0, 1, with(kSmallDevice, walk.extra));
    const bool loads = run.process.out.find("kernel: 1024 of 1024") != std::string::npos;
    EXPECT_EQ(loads, std::string(walk.leave) == "4") << run.describe();
  }
}

TEST(DeviceLimit, AFilledDeviceHasALittleLeftInTheDriversChunk) {
  expect_same("probe_full_device", 0, 1, with(kSmallDevice, {{"CUPOOL_POOL_START", "first"}}));
}

// A stream takes device memory, and cupool's own has taken what the context had in reserve.
TEST(DeviceLimit, AFilledDeviceHasTheProgramsFirstStream) {
  for (const char* fill : {"pieces", "block", "walk"}) {
    const PreloadedRun run = expect_same(
        std::string("probe_full_device mode=stream fill=") + fill, 0, 1,
        with(kSmallDevice, {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_STREAM_BYTES", "2M"}}));
    EXPECT_EQ(run.process.out, "stream: 0\nthe next: 2\n") << fill;
  }
}

// Nothing is live, so the driver alone would have had no chunk open: it waits in each free.
TEST(DeviceLimit, AllOfItIsThereHoweverLongTheGpuTakes) {
  expect_same("probe_full_device", 0, 1, with(kSmallDevice, {{"CUPOOL_SIM_POLLS", "2000"}}));
}

// Work that is no freed memory's is waited for only if the chunk is all that the call lacks.
TEST(DeviceLimit, ARefusalDoesNotWaitForOtherWork) {
  expect_same(
      "probe_oom mode=busy", 0, 1,
      with(kSmallDevice, {{"CUPOOL_POOL_START", "first"}, {"CUPOOL_SIM_POLLS", "1000000000"}}));
}

// Live blocks keep the rest of their step of 32 MiB in each of the two pools.
TEST(DeviceLimit, WalkDownEndsNearByWithLiveBlocks) {
  for (const char* reclaim : {"0", "1"}) {
    const std::string probe = "probe_device_limit mode=walk leave=4 live=1";
    const Environment extra = with(kSmallDevice, {{"CUPOOL_SIM_RECLAIM", reclaim}});
    const ProcessResult plain = run_plain(probe, extra);
    const PreloadedRun ours = run_preloaded(probe, extra);
    EXPECT_EQ(plain.exit_code, 0) << plain.describe();
    EXPECT_EQ(ours.process.exit_code, 0) << ours.describe();
    EXPECT_GT(total_of(plain.out), 400);
    EXPECT_GE(total_of(ours.process.out) + 64, total_of(plain.out));
    EXPECT_LE(total_of(ours.process.out), total_of(plain.out));
    EXPECT_NE(plain.out.find("kernel: 1024 of 1024"), std::string::npos) << plain.describe();
    EXPECT_NE(ours.process.out.find("kernel: 1024 of 1024"), std::string::npos) << ours.describe();
    EXPECT_EQ(ours.process.err, "");
    for (const nlohmann::json& report : ours.reports) expect_identity(report);
  }
}

TEST(DeviceLimit, ThreadsAreRefusedOnlyWhereNothingIsLeft) {
  const std::pair<const char*, const char*> rows[] = {{"400M", "late"}, {"160M", "timed"}};
  for (const auto& [memory, mode] : rows) {
    if (tested_build().has_thread_sanitizer() && memory[0] == '4')
      continue;  // the same with more of it
    const Environment extra = {{"CUPOOL_SIM_MEMORY", memory}, {"CUPOOL_SIM_MODE", mode}};
    const PreloadedRun ours = run_preloaded("probe_device_limit mode=threads", extra);
    EXPECT_EQ(ours.process.exit_code, 0) << ours.describe();
    EXPECT_EQ(ours.process.err, "");
    // Beside live blocks: their classes' rounding, a step of each pool, and what the three other
    // threads have just asked for or are giving back.
    EXPECT_GE(total_of(ours.process.out), std::strtol(memory, nullptr, 10) * 3 / 4 - 64 - 3 * 24)
        << ours.describe();
    for (const nlohmann::json& report : ours.reports) expect_identity(report);
  }
}

TEST(DeviceLimit, InsideACapture) {
  expect_same("probe_device_limit mode=capture", 0, 1, {{"CUPOOL_SIM_MEMORY", "300M"}});
  expect_same("probe_device_limit mode=capture", 0, 1,
              {{"CUPOOL_SIM_MEMORY", "300M"}, {"CUPOOL_BACKEND", "malloc"}});
}

// Contracts 2 and 4: the barrier of a capture needs nothing of the device.
TEST(DeviceLimit, AFreeWaitsInACaptureThatBeganOnAFullDevice) {
  for (const char* backend : {"pool", "malloc"}) {
    for (const char* mode : {"auto", "sync"}) {
      SCOPED_TRACE(std::string(backend) + ", " + mode);
      const PreloadedRun run = expect_same(
          "probe_device_limit mode=wait", 0, 1,
          {{"CUPOOL_SIM_MEMORY", "128M"}, {"CUPOOL_BACKEND", backend}, {"CUPOOL_FREE_MODE", mode}});
      EXPECT_TRUE(contains(run.process.out, "wrong bytes after the free 0")) << run.describe();
    }
  }
}

// CUPOOL_MAX_SIZE bounds what cupool holds, not what the program gets.
TEST(DeviceLimit, MaximumSizeIsNotTheProgramsLimit) {
  const PreloadedRun run = expect_same("probe_device_limit mode=fill", 0, 1,
                                       with(kSmallDevice, {{"CUPOOL_MAX_SIZE", "64M"}}));
  EXPECT_GT(run.counter("served_passthrough_total"), 40u);
  ASSERT_EQ(run.reports.size(), 1u);
  const nlohmann::json& gauges = run.reports[0].at("devices").at(0).at("gauges");
  EXPECT_LE(gauges.at("held_bytes").at("peak").get<uint64_t>(), 64u << 20);
  EXPECT_GT(gauges.at("held_bytes").at("peak").get<uint64_t>(), 0u);
}

// Three quarters of the device for each of the others, after all of it was served and freed.
TEST(OtherAllocators, GetWhatWasFreed) {
  for (const char* backend : {"pool", "malloc"}) {
    for (const char* busy : {"0", "1"}) {
      const Environment extra = with(kSmallDevice, {{"CUPOOL_BACKEND", backend}});
      const PreloadedRun run =
          expect_same(std::string("probe_other_allocators fill=1 busy=") + busy, 0, 1, extra);
      const std::vector<std::string> lines = lines_of(run.process.out);
      EXPECT_EQ(lines.size(), 26u);
      for (const std::string& line : lines) {
        EXPECT_NE(line.find(": 0, last error 0"), std::string::npos) << line;
      }
      EXPECT_GT(run.counter("oom_rescues_total"), 9u);
    }
  }
}

// One failed attempt is no failure while there was idle memory to give back. With a small cache
// that is what threads have freed last: it goes back as soon as it is reclaimed.
TEST(OtherAllocators, AreMadeOnceMoreWhenMemoryWasIdle) {
  for (const Environment& settings :
       {Environment{{"CUPOOL_BACKEND", "pool"}}, Environment{{"CUPOOL_BACKEND", "malloc"}},
        Environment{{"CUPOOL_BACKEND", "malloc"},
                    {"CUPOOL_MAX_CACHED", "1M"},
                    {"CUPOOL_MAX_PENDING", "100%"}}}) {
    const Environment extra = with(kSmallDevice, settings);
    const std::string probe = "probe_other_allocators fill=1 inject=1";
    const std::vector<std::string> plain = lines_of(run_plain(probe, extra).out);
    const PreloadedRun run = run_preloaded(probe, extra);
    EXPECT_EQ(run.process.exit_code, 0) << run.describe();
    EXPECT_EQ(run.process.err, "");
    const std::vector<std::string> ours = lines_of(run.process.out);
    ASSERT_EQ(plain.size(), 26u);
    ASSERT_EQ(ours.size(), plain.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_NE(plain[i].find(": 2, last error"), std::string::npos) << "no fault: " << plain[i];
      EXPECT_NE(ours[i].find(": 0, last error 0"), std::string::npos) << ours[i];
    }
  }
}

// Idle blocks that another thread is giving back are on their way.
TEST(OtherAllocators, GetWhatOtherThreadsGiveBack) {
  expect_same("probe_device_limit mode=physical", 0, 1,
              {{"CUPOOL_SIM_MEMORY", "128M"}, {"CUPOOL_BACKEND", "malloc"}});
}

// With nothing idle the driver's first answer is the answer, and the last error is as without us.
TEST(OtherAllocators, FailAsWithoutUsWhenNothingWasIdle) {
  const std::string probe = "probe_other_allocators fill=0 inject=1";
  const ProcessResult plain = run_plain(probe, kSmallDevice);
  const PreloadedRun run = run_preloaded(probe, kSmallDevice);
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.err, "");
  const std::vector<std::string> expected = lines_of(plain.out);
  const std::vector<std::string> ours = lines_of(run.process.out);
  ASSERT_EQ(ours.size(), expected.size());
  for (const std::string& line : expected) {
    const std::string name = line.substr(0, line.find(':'));
    if (name == "malloc") continue;  // we have two ways to it
    EXPECT_EQ(line_of(ours, name), line);
  }
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
  // A driver pool grows by 32 MiB (docs/measurements/2026-11-22-h200-driver-facts.txt), legacy
  // memory by 2.
  constexpr long kChunkMib = 34;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_GT(got[i], 0);
    EXPECT_GE(got[i] + kChunkMib, expected[i]) << "fill " << i;
    EXPECT_LE(got[i], expected[i] + kChunkMib) << "fill " << i;
  }
  for (const nlohmann::json& report : preloaded.reports) expect_identity(report);
}

TEST(OutOfMemory, ComesWhereItWould) {
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"}});
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "300M"}});
}

TEST(OutOfMemory, ComesWhereItWouldOnTheMallocBackend) {
  expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_BACKEND", "malloc"}});
}

TEST(OutOfMemory, ComesWhereItWouldWhateverIsJustBeingReserved) {
  for (int i = 0; i < 3; ++i) {
    expect_same_capacity({{"CUPOOL_SIM_MEMORY", "1G"}, {"CUPOOL_PREALLOC", "50%,background"}});
  }
}

// Contract 4, second half: freed memory is there for the process's other allocators.
TEST(OutOfMemory, FreedMemoryServesOtherAllocators) {
  expect_same("probe_oom mode=others", 0, 1, {{"CUPOOL_SIM_MEMORY", "1G"}});
}

// Idle plain memory goes back although the device is busy, by a free that waits for no other work:
// that work may wait for what the program does next.
TEST(OutOfMemory, IdlePlainMemoryIsThereAlthoughTheDeviceIsBusy) {
  for (const char* backend : {"malloc", "auto"}) {
    for (const char* mode : {"late", "early", "timed"}) {
      SCOPED_TRACE(std::string(backend) + " " + mode);
      const PreloadedRun run = expect_same("probe_async_full case=plain by=malloc", 0, 1,
                                           {{"CUPOOL_BACKEND", backend},
                                            {"CUPOOL_SIM_MODE", mode},
                                            {"CUPOOL_SIM_PATIENCE_MS", "1"},
                                            {"CUPOOL_SIM_MEMORY", "256M"}});
      EXPECT_EQ(run.process.out, "allocated 0\nat once 1\n");
    }
  }
}

// A pool maps all that is free before it finds that it is not enough: 0.4 s on an H200.
TEST(OutOfMemory, PoolsAreNotAskedForWhatTheyCannotHave) {
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

// Contract 4 with two devices: idle memory is looked for where it is needed.
TEST(OutOfMemory, IdleMemoryOfTheOtherDeviceIsGivenBack) {
  for (const char* backend : {"pool", "malloc"}) {
    expect_same(
        "probe_devices mode=pressure", 0, 1,
        {{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_MEMORY", "256M"}, {"CUPOOL_BACKEND", backend}});
  }
}

}  // namespace
}  // namespace preload
