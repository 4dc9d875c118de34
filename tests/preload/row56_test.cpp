// Contracts 5 and 6: what the driver says of free memory and of pointers, line by line as without
// us.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

TEST(Row5, FreeMemory) {
  for (const char* mode : {"auto", "sync"}) {
    expect_same("probe_row5", 0, 1, {{"CUPOOL_FREE_MODE", mode}});
    expect_same("probe_row5 tolerance_mib=2", 0, 1,
                {{"CUPOOL_BACKEND", "malloc"}, {"CUPOOL_FREE_MODE", mode}});
  }
  expect_same("probe_row5", 0, 1, {{"CUPOOL_SIM_MODE", "timed"}});
}

bool begins_with(const std::string& line, const std::string& start) {
  return line.compare(0, start.size(), start) == 0;
}

// Lines in which pool memory is known to differ (docs/compatibility.md, IPC): whether legacy IPC
// (10) and GPUDirect RDMA (15) can be had. The mapping (18) is the driver's chunk, whatever lies in
// it. All else has to be the same.
bool may_differ(const std::string& line) {
  for (const char* start : {"  attribute 10:", "  plural 10:", "  attribute 15:", "  plural 15:",
                            "  attribute 18:", "  plural 18:"}) {
    if (begins_with(line, start)) return true;
  }
  return false;
}

void expect_same_answers(const Environment& extra) {
  const ProcessResult plain = run_plain("probe_row6", extra);
  const PreloadedRun ours = run_preloaded("probe_row6", extra);
  EXPECT_EQ(plain.exit_code, 0) << plain.describe();
  EXPECT_EQ(ours.process.exit_code, 0) << ours.describe();
  EXPECT_EQ(ours.process.err, "");
  std::istringstream expected(plain.out);
  std::istringstream got(ours.process.out);
  std::string expected_line;
  std::string line;
  std::string size;
  std::string subject;
  size_t lines = 0;
  while (std::getline(expected, expected_line)) {
    ++lines;
    ASSERT_TRUE(std::getline(got, line)) << "ends before: " << expected_line;
    if (begins_with(line, "size")) size = line;
    if (line[0] != ' ') subject = line;
    if (may_differ(line)) continue;
    EXPECT_EQ(line, expected_line) << size << ", " << subject;
  }
  EXPECT_FALSE(std::getline(got, line)) << line;
  EXPECT_GT(lines, 1000u);
}

TEST(Row6, PointerQueries) {
  expect_same_answers({});
}

TEST(Row6, PointerQueriesOnTheMallocBackend) {
  expect_same_answers({{"CUPOOL_BACKEND", "malloc"}});
}

TEST(Row6, PointerQueriesWhenFreesWait) {
  expect_same_answers({{"CUPOOL_FREE_MODE", "sync"}});
}

}  // namespace
}  // namespace preload
