// SPDX-License-Identifier: Apache-2.0
// NVTX (docs/statistics.md): what a tool sees of a program under cupool.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

class Nvtx : public testing::Test {
 protected:
  std::string log() const { return folder_.path() + "/log"; }
  Environment with_tool(const char* value) const {
    return {{"CUPOOL_NVTX", value},
            {"NVTX_INJECTION64_PATH", probe_path("libnvtx_tool.so")},
            {"NVTX_TOOL_LOG", log()}};
  }
  const ScratchFolder folder_;
};

// Until the tool has answered, each of its functions would wait for that answer.
TEST_F(Nvtx, WaitsForNoToolThatAllocatesWhileItStarts) {
  const PreloadedRun run =
      run_preloaded("probe_driver_linked", with(with_tool("1"), {{"NVTX_TOOL_ALLOCATES", "1"}}));
  EXPECT_EQ(run.process.exit_code, 0) << run.describe();
  EXPECT_EQ(run.process.out, run_plain("probe_driver_linked").out);
  std::istringstream lines(read_file(log()));
  int depth = 0;
  int ranges = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.rfind("push", 0) == 0;
    ranges += begins ? 1 : 0;
    depth += begins ? 1 : line.rfind("pop", 0) == 0 ? -1 : 0;
    EXPECT_GE(depth, 0) << "no range ends that has not begun";
  }
  EXPECT_EQ(depth, 0);
  EXPECT_GT(ranges, 0);
}

// The tool is a library, and a constructor of another one holds the dynamic linker's lock.
TEST_F(Nvtx, FindsItsToolBesideAConstructorThatAllocates) {
  expect_same("probe_start_beside_load", 0, 1, with_tool("1"));
}

TEST_F(Nvtx, ShowsEachCallAsARangeAndTheLiveBytesAsMarks) {
  for (const char* probe :
       {"probe_runtime_shared iterations=10", "probe_runtime_static iterations=10"}) {
    const PreloadedRun result = expect_same(probe, 0, 1, with_tool("1"));
    std::map<std::string, uint64_t> numbers;
    std::map<std::string, uint64_t> bytes;
    int depth = 0;
    std::istringstream lines(read_file(log()));
    std::string what;
    for (std::string line; std::getline(lines, line);) {
      const size_t last = line.rfind(' ');
      what = line.substr(0, last);
      ++numbers[what];
      bytes[what] += std::stoull(line.substr(last + 1));
      depth += what.rfind("push", 0) == 0 ? 1 : what.rfind("pop", 0) == 0 ? -1 : 0;
      EXPECT_TRUE(depth == 0 || depth == 1) << "ranges of one call do not nest";
    }
    const Counts counts = counts_of(result.process.out);
    EXPECT_EQ(numbers["domain cupool"], 1u) << read_file(log());
    EXPECT_EQ(numbers["push cupool:malloc"], counts.mallocs);
    EXPECT_EQ(numbers["push cupool:free"], counts.frees);
    EXPECT_EQ(bytes["push cupool:malloc"], result.counter("malloc_requested_bytes_total"));
    EXPECT_EQ(bytes["push cupool:free"], result.counter("free_bytes_total"));
    EXPECT_EQ(numbers["pop -"], counts.mallocs + counts.frees);
    EXPECT_GE(numbers["mark cupool:live bytes of device 0"], 1u);
    EXPECT_EQ(depth, 0);
  }
}

TEST_F(Nvtx, IsSilentUnlessAskedFor) {
  expect_same("probe_runtime_shared", 0, 1, with_tool("0"));
  EXPECT_EQ(read_file(log()), "");
}

TEST_F(Nvtx, NeedsNoTool) {
  expect_counts(expect_same("probe_runtime_shared threads=2", 0, 1, {{"CUPOOL_NVTX", "1"}}));
}

}  // namespace
}  // namespace preload
