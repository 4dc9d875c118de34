// SPDX-License-Identifier: Apache-2.0
// The driver in the life of a process: fork, exit, no device, what is written at the end.
// Rules: contract 11 and I6; after exit handlers and in a forked child nothing works and nothing
// hangs (measured with an H200: error 4 and error 3).
#include "fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

namespace cupool::sim::test {

/// Runs sim_child with one scene and extra variables, and returns what it printed.
std::string play(const std::string& scene, const std::string& variables = "") {
  const std::string command = variables + " timeout 20 " SIM_CHILD " " + scene;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 256> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  const int status = pclose(pipe);
  return text + "exit " + std::to_string(WEXITSTATUS(status));
}

TEST(Process, AForkedChildOfAnInitialisedProcessHasNoDriver) {
  EXPECT_EQ(play("fork"), "child: init 3 alloc 3 free0 3 sync 3 count 3\nparent: alloc 0\nexit 0");
}

TEST(Process, AForkWhileThreadsAreInTheDriverDoesNotHang) {
  EXPECT_EQ(play("fork-busy"), "children done\nexit 0");
}

TEST(Process, AForkedChildMayInitialiseIfTheParentDidNot) {
  EXPECT_EQ(play("fork-first"), "child: init 0 alloc 0\nexit 0");
}

TEST(Process, AfterTheTeardownEveryCallSaysSo) {
  EXPECT_EQ(play("exit"),
            "handler after init: alloc 0\n"
            "handler before init: alloc 4 free 4 sync 4 attribute 4 current 4\nexit 0");
}

TEST(Process, WithoutADeviceInitFails) {
  EXPECT_EQ(play("init", "CUPOOL_SIM_DEVICES=0"), "init 100 alloc 3\nexit 0");
}

TEST(Process, CallsAreWrittenAtExit) {
  char path[] = "/tmp/cupool_sim_calls_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  close(file);
  EXPECT_EQ(play("exit", std::string("CUPOOL_SIM_CALLS=") + path).substr(0, 7), "handler");
  std::ifstream in(path);
  std::map<std::string, int> calls;
  std::string name;
  int n = 0;
  while (in >> name >> n) calls[name] = n;
  unlink(path);
  EXPECT_EQ(calls["cuInit"], 1);
  EXPECT_EQ(calls["cuMemAlloc_v2"], 3) << "calls of exit handlers are counted too";
  EXPECT_EQ(calls.count("cuMemAllocAsync"), 0u);
}

TEST(Process, PoolsCanBeMissing) {
  EXPECT_EQ(play("pools"), "supported 1 default 0 create 0 alloc 0\nexit 0");
  EXPECT_EQ(play("pools", "CUPOOL_SIM_POOLS=0"),
            "supported 0 default 801 create 801 alloc 801\nexit 0");
}

TEST(Process, TheDriverVersionCanBeChosen) {
  EXPECT_EQ(play("version"), "version 13000 record found\nexit 0");
  EXPECT_EQ(play("version", "CUPOOL_SIM_DRIVER_VERSION=12040"),
            "version 12040 record missing\nexit 0");
}

TEST(Process, MemoryCanBeChosen) {
  EXPECT_EQ(play("memory", "CUPOOL_SIM_MEMORY=64M"), "total 67108864\nexit 0");
}

TEST(Process, IdlePoolMemoryCanBeReclaimed) {
  EXPECT_EQ(play("reclaim"), "alloc 2 reserved 256\nexit 0");
  EXPECT_EQ(play("reclaim", "CUPOOL_SIM_RECLAIM=1"), "alloc 0 reserved 0\nexit 0");
}

TEST(Process, StreamsTakeMemoryIfTheyAreToldTo) {
  EXPECT_EQ(play("streams"), "taken 0 0 0 full 0 0 0 reset 0\nexit 0");
  EXPECT_EQ(play("streams", "CUPOOL_SIM_STREAM_BYTES=3M"),
            "taken 0 4 8 full 0 0 2 reset 0\nexit 0");
}

TEST(Process, FaultsComeFromTheEnvironment) {
  EXPECT_EQ(play("init", "CUPOOL_SIM_FAIL=cuInit:1=999"), "init 999 alloc 3\nexit 0");
}

TEST(Process, AnUnknownSettingStopsTheProcess) {
  EXPECT_EQ(play("init", "CUPOOL_SIM_MODE=lazy 2>/dev/null").find("init"), std::string::npos);
}

TEST(Process, PatienceRunsWorkThatNobodyWaitsFor) {
  EXPECT_EQ(play("patience", "CUPOOL_SIM_PATIENCE_MS=20"), "callback came\nexit 0");
}

}  // namespace cupool::sim::test
