// SPDX-License-Identifier: Apache-2.0
// Contract 6: what the driver says of pointers, line by line as without us; how blocks are aligned;
// and graph nodes that fill memory, which find its context by it.
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

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
  const ProcessResult plain = run_plain("probe_pointer_queries", extra);
  const PreloadedRun ours = run_preloaded("probe_pointer_queries", extra);
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

TEST(PointerQueries, AreAnsweredAsWithoutUs) {
  expect_same_answers({});
}

TEST(PointerQueries, AreAnsweredAsWithoutUsOnTheMallocBackend) {
  expect_same_answers({{"CUPOOL_BACKEND", "malloc"}});
}

TEST(PointerQueries, AreAnsweredAsWithoutUsWhenFreesWait) {
  expect_same_answers({{"CUPOOL_FREE_MODE", "sync"}});
}

// Contract 1, 5 and 6.
TEST(Addresses, AlignmentRangesAndFreeMemory) {
  expect_counts(expect_same("probe_alignment"));
}

TEST(Addresses, AlignmentOnTheMallocBackend) {
  expect_counts(expect_same("probe_alignment", 0, 1, {{"CUPOOL_BACKEND", "malloc"}}));
}

TEST(Addresses, PitchesAreTheDrivers) {
  expect_counts(expect_same("probe_pitch"));
}

TEST(GraphNodes, FillMemoryOfPoolsWithoutAContext) {
  const NamedEnvironment rows[] = {{"Pool", {{"CUPOOL_POOL_START", "first"}}},
                                   {"Background", {}},
                                   {"Malloc", {{"CUPOOL_BACKEND", "malloc"}}},
                                   {"DefaultPool", {{"CUPOOL_POOL", "default"}}}};
  for (const NamedEnvironment& row : rows) {
    SCOPED_TRACE(row.name);
    expect_same("probe_graph_nodes", 0, 1, row.extra);
  }
}

}  // namespace
}  // namespace preload
