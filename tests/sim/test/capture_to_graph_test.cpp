// SPDX-License-Identifier: Apache-2.0
// Capture into a graph that exists: the order between its nodes and the new ones, and the same
// rules as for any other capture. Rules: cuda.h, cuStreamBeginCaptureToGraph;
// docs/measurements/2026-11-22-h200-driver-facts.txt.
#include "capture_fixture.h"

namespace cupool::sim::test {

class CapturesToGraph : public Captures {
 protected:
  void SetUp() override {
    Captures::SetUp();
    ASSERT_EQ(cuGraphCreate(&into, 0), CUDA_SUCCESS);
    from = memory;
    to = memory + 64;
  }

  size_t nodes() {
    size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(into, nullptr, &count), CUDA_SUCCESS);
    return count;
  }

  /// One capture that stamps `from`, and one, after the nodes named, that copies it to `to`.
  void capture_stamp_and_copy(const CUgraphNode* after, size_t count) {
    CUgraph made = nullptr;
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_EQ(stamp(capturing, from, 1, 5), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamEndCapture(capturing, &made), CUDA_SUCCESS);
    EXPECT_EQ(made, into);
    CUgraphNode first = nullptr;
    size_t one = 1;
    ASSERT_EQ(cuGraphGetNodes(into, &first, &one), CUDA_SUCCESS);
    if (after == nullptr) after = &first;
    ASSERT_EQ(cuStreamBeginCaptureToGraph(capturing, into, after, nullptr, count,
                                          CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoDAsync(to, from, 4, capturing), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamEndCapture(capturing, &made), CUDA_SUCCESS);
    EXPECT_EQ(made, into);
    EXPECT_EQ(nodes(), 2u);
  }

  void launch_graph() {
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuGraphInstantiate(&exec, into, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, other), CUDA_SUCCESS);
    EXPECT_EQ(word(from), 0u) << "nothing forced it";
    ASSERT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(word(from), 5u);
  }

  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
};

TEST_F(CapturesToGraph, NewNodesComeAfterTheNodesThatAreNamed) {
  capture_stamp_and_copy(nullptr, 1);
  launch_graph();
  EXPECT_EQ(word(to), 5u);
}

TEST_F(CapturesToGraph, AndAreNotOrderedAfterOthers) {
  capture_stamp_and_copy(nullptr, 0);
  launch_graph();
  EXPECT_EQ(word(to), 0u) << "late mode runs what was given last first";
}

TEST_F(CapturesToGraph, AForkedStreamComesAfterThemToo) {
  capture_stamp_and_copy(nullptr, 1);
  std::vector<CUgraphNode> before(2);
  size_t count = 2;
  ASSERT_EQ(cuGraphGetNodes(into, before.data(), &count), CUDA_SUCCESS);
  const CUevent fork = event();
  const CUevent join = event();
  const CUstream branch = stream();
  ASSERT_EQ(cuStreamBeginCaptureToGraph(capturing, into, &before[1], nullptr, 1,
                                        CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, capturing), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(branch, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoDAsync(memory + 128, to, 4, branch), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(join, branch), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(capturing, join, 0), CUDA_SUCCESS);
  EXPECT_TRUE(survived());
  launch_graph();
  EXPECT_EQ(word(memory, 32), 5u);
}

// The rules that capture_test.cpp holds cuStreamBeginCapture to.
TEST_F(CapturesToGraph, AreRefusedAndInvalidatedAlike) {
  const CUgraph graph = into;
  const std::vector<std::pair<const char*, std::function<CUresult()>>> others = {
      {"cuCtxRecordEvent", [this] { return cuCtxRecordEvent(context, event()); }},
      {"cuCtxSynchronize", [] { return cuCtxSynchronize(); }},
      {"cuStreamSynchronize of itself", [this] { return cuStreamSynchronize(capturing); }},
      {"cuStreamWaitEvent from outside",
       [this] { return cuStreamWaitEvent(capturing, recorded, 0); }},
      {"cuEventRecord on the legacy stream", [this] { return cuEventRecord(event(), nullptr); }},
  };
  std::vector<std::pair<const char*, std::function<CUresult()>>> calls = unsafe();
  for (const auto& call : harmless()) calls.push_back(call);
  for (const auto& call : others) calls.push_back(call);
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED}) {
      for (auto& call : calls) {
        CUresult results[2];
        bool survivals[2];
        for (const bool to_graph : {false, true}) {
          into = to_graph ? graph : nullptr;
          begin(flags, mode);
          results[to_graph] = call.second();
          survivals[to_graph] = survived();
        }
        EXPECT_EQ(results[0], results[1]) << call.first << " in mode " << mode;
        EXPECT_EQ(survivals[0], survivals[1]) << call.first << " in mode " << mode;
      }
    }
  }
}

TEST_F(CapturesToGraph, TheGraphOutlivesAnInvalidatedCapture) {
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_FALSE(survived());
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(stamp(capturing, from, 1, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(capturing), CUDA_SUCCESS);
  EXPECT_EQ(nodes(), 1u);
  launch_graph();
  EXPECT_EQ(cuGraphDestroy(into), CUDA_SUCCESS);
}

TEST_F(CapturesToGraph, TheGraphIsNotReadyMeanwhile) {
  CUgraphExec exec = nullptr;
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuGraphInstantiate(&exec, into, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(into), CUDA_ERROR_INVALID_VALUE) << "not measured";
  EXPECT_TRUE(survived());
  EXPECT_EQ(cuGraphInstantiate(&exec, into, 0), CUDA_SUCCESS);
}

TEST_F(CapturesToGraph, WhatIsNamedMustExist) {
  capture_stamp_and_copy(nullptr, 1);
  CUgraph empty = nullptr;
  CUgraphNode node = nullptr;
  size_t one = 1;
  const auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  ASSERT_EQ(cuGraphCreate(&empty, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphGetNodes(into, &node, &one), CUDA_SUCCESS);
  const auto begin_into = [&](CUstream s, CUgraph graph, const CUgraphNode* after, size_t count) {
    return cuStreamBeginCaptureToGraph(s, graph, after, nullptr, count, mode);
  };
  EXPECT_EQ(begin_into(capturing, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(begin_into(capturing, into, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(begin_into(capturing, empty, &node, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(begin_into(nullptr, into, nullptr, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ASSERT_EQ(begin_into(capturing, into, &node, 1), CUDA_SUCCESS);
  EXPECT_EQ(begin_into(capturing, into, &node, 1), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_TRUE(survived());
}

}  // namespace cupool::sim::test
