// SPDX-License-Identifier: Apache-2.0
// Stream capture: what is refused, what that does to the capture, and replay.
// Rules: docs/measurements/2026-11-22-h200-driver-facts.txt; the table was measured
// call by call with an H200.
#include "capture_fixture.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace cupool::sim::test {

TEST_F(Captures, GlobalModeRefusesUnsafeCallsAndIsInvalidated) {
  for (auto& call : unsafe()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(call.second(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << call.first;
    EXPECT_FALSE(survived()) << call.first;
  }
}

TEST_F(Captures, InOtherThreadsToo) {
  for (auto& call : unsafe()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    std::thread([&] {
      cuCtxSetCurrent(context);
      EXPECT_EQ(call.second(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << call.first;
    }).join();
    EXPECT_FALSE(survived()) << call.first;
  }
}

TEST_F(Captures, AThreadLocalCaptureDoesNotConcernOtherThreads) {
  for (auto& call : unsafe()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    std::thread([&] {
      cuCtxSetCurrent(context);
      EXPECT_EQ(call.second(), CUDA_SUCCESS) << call.first;
    }).join();
    EXPECT_TRUE(survived()) << call.first;
  }
}

// "With the thread's mode exchanged to relaxed, event query, cuMemAlloc, cuMemFree inside a
// global-mode capture succeed and the capture survives." Contract I3 rests on it.
TEST_F(Captures, ARelaxedThreadMayDoUnsafeCalls) {
  for (auto& call : unsafe()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    relaxed([&] { EXPECT_EQ(call.second(), CUDA_SUCCESS) << call.first; });
    EXPECT_TRUE(survived()) << call.first;
  }
}

// What a library may use to wait in a capture. Each makes what its release frees.
struct Release {
  const char* name;
  void (*make)(CUdeviceptr* address);
  CUresult (*release)(CUdeviceptr address);
};
alignas(4096) char page[4096];
const Release kReleases[] = {
    {"cuMemFree", [](CUdeviceptr* p) { ASSERT_EQ(cuMemAlloc(p, 4096), CUDA_SUCCESS); },
     [](CUdeviceptr p) { return cuMemFree(p); }},
    {"cuMemFreeHost",
     [](CUdeviceptr* p) {
       void* host = nullptr;
       ASSERT_EQ(cuMemAllocHost(&host, 4096), CUDA_SUCCESS);
       *p = reinterpret_cast<CUdeviceptr>(host);
     },
     [](CUdeviceptr p) { return cuMemFreeHost(reinterpret_cast<void*>(p)); }},
    {"cuMemHostUnregister",
     [](CUdeviceptr* p) {
       ASSERT_EQ(cuMemHostRegister(page, sizeof page, 0), CUDA_SUCCESS);
       *p = reinterpret_cast<CUdeviceptr>(page);
     },
     [](CUdeviceptr p) { return cuMemHostUnregister(reinterpret_cast<void*>(p)); }},
};
constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

// "In relaxed mode during a capture, cuMemFree, cuMemFreeHost and cuMemHostUnregister wait for all
// work of the context, that of destroyed streams included, and the capture survives": measured for
// each mode and kind of stream with the same H200.
TEST_F(Captures, ARelaxedReleaseWaitsForAllWorkAndHarmsNothing) {
  uint32_t value = 0;
  for (const Release& is : kReleases) {
    for (const auto mode : kModes) {
      for (const char* kind : {"non-blocking", "blocking", "destroyed"}) {
        SCOPED_TRACE(std::string(is.name) + ", mode " + std::to_string(mode) + ", " + kind);
        CUdeviceptr block = 0;
        is.make(&block);
        begin(CU_STREAM_NON_BLOCKING, mode);
        const bool blocking = std::string(kind) == "blocking";
        const CUstream busy = stream(blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        ASSERT_EQ(stamp(busy, memory, 1, ++value), CUDA_SUCCESS);
        const bool destroyed = std::string(kind) == "destroyed";
        ASSERT_EQ(destroyed ? cuStreamDestroy(busy) : CUDA_SUCCESS, CUDA_SUCCESS);
        EXPECT_NE(word(memory), value);
        relaxed([&] { EXPECT_EQ(is.release(block), CUDA_SUCCESS); });
        EXPECT_EQ(word(memory), value);
        EXPECT_TRUE(survived());
      }
    }
  }
}

// Measured for cuMemFree, and taken to be alike for host memory.
TEST_F(Captures, ReleasesAreUnsafeOtherwise) {
  for (const Release& is : kReleases) {
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
      CUdeviceptr block = 0;
      is.make(&block);
      begin(CU_STREAM_NON_BLOCKING, mode);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(is.release(block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << is.name;
      }
      EXPECT_FALSE(survived()) << is.name;
      EXPECT_EQ(is.release(block), CUDA_SUCCESS) << is.name;
    }
  }
}

TEST_F(Captures, ARelaxedCaptureAllowsUnsafeCalls) {
  for (auto& call : unsafe()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(call.second(), CUDA_SUCCESS) << call.first;
    EXPECT_TRUE(survived()) << call.first;
  }
}

TEST_F(Captures, HarmlessCallsStayHarmless) {
  for (auto& call : harmless()) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(call.second(), CUDA_SUCCESS) << call.first;
    EXPECT_TRUE(survived()) << call.first;
  }
}

// "During a capture in the context, cuCtxRecordEvent is refused and invalidates the capture,
// relaxed mode too." The same holds for cuCtxWaitEvent and cuCtxSynchronize.
TEST_F(Captures, ContextCallsAreRefusedInEveryMode) {
  const std::vector<std::function<CUresult()>> calls = {
      [this] { return cuCtxRecordEvent(context, event()); },
      [this] { return cuCtxWaitEvent(context, recorded); },
      [] { return cuCtxSynchronize(); },
  };
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (size_t i = 0; i < calls.size(); ++i) {
      begin(CU_STREAM_NON_BLOCKING, mode);
      const unsigned long long before = cupoolSimInvalidatedCaptures();
      relaxed([&] { EXPECT_EQ(calls[i](), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << i; });
      EXPECT_EQ(cupoolSimInvalidatedCaptures(), before + 1);
      EXPECT_FALSE(survived()) << i;
    }
  }
}

// What a library calls while the program is in a call of its own is no call of the program.
TEST_F(Captures, AnInvalidationIsTheProgramsOnlyInTheCallThatItNamed) {
  const unsigned long long before = cupoolSimCapturesInvalidatedByOthers();
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  cupoolSimProgramCall("cuCtxSynchronize");
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cupoolSimProgramCall(nullptr), 1u);
  EXPECT_FALSE(survived());
  EXPECT_EQ(cupoolSimCapturesInvalidatedByOthers(), before);

  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  cupoolSimProgramCall("cuMemFree_v2");
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cupoolSimProgramCall(nullptr), 0u);
  EXPECT_FALSE(survived());
  EXPECT_EQ(cupoolSimCapturesInvalidatedByOthers(), before + 1);
  std::string how = cupoolSimLastInvalidatedByOthers();
  EXPECT_EQ(how.find("cuCtxSynchronize on thread "), 0u) << how;
  EXPECT_NE(how.find("in cuMemFree_v2 of the program"), std::string::npos) << how;

  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_FALSE(survived());
  EXPECT_EQ(cupoolSimCapturesInvalidatedByOthers(), before + 2);
  how = cupoolSimLastInvalidatedByOthers();
  EXPECT_NE(how.find("in no call of the program"), std::string::npos) << how;
}

TEST_F(Captures, AnotherContextIsNotConcerned) {
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, device), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxRecordEvent(second, event()), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
  EXPECT_TRUE(survived());
}

// "Once a stream of another device has joined, an event of that context is refused and the capture
// is invalidated", seen with two H200; in the same way with two contexts of a device.
TEST_F(Captures, AContextWhoseStreamHasJoinedIsConcerned) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, device), CUDA_SUCCESS);
  const CUstream joining = stream();
  const CUevent of_second = event();
  const std::vector<std::function<CUresult()>> calls = {
      [=] { return cuCtxRecordEvent(second, of_second); },
      [=] { return cuCtxWaitEvent(second, of_second); },
      [=] {
        CUcontext popped = nullptr;
        EXPECT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
        const CUresult result = cuCtxSynchronize();
        EXPECT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
        return result;
      },
  };
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  const CUevent fork = event();
  for (size_t i = 0; i < calls.size(); ++i) {
    begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(calls[i](), CUDA_SUCCESS) << i;
    ASSERT_EQ(cuEventRecord(fork, capturing), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(joining, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(calls[i](), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << i;
    EXPECT_FALSE(survived()) << i;
  }
  // Its end is that of the stream, too.
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(cuEventRecord(fork, capturing), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(joining, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
  EXPECT_FALSE(survived());
}

// "With a blocking stream capturing, recording on the legacy stream invalidates the capture, while
// asking whether the legacy stream is capturing answers cudaErrorStreamCaptureImplicit and harms
// nothing."
TEST_F(Captures, UseOfTheLegacyStreamInvalidatesBlockingCaptures) {
  const std::vector<std::function<CUresult()>> calls = {
      [this] { return cuEventRecord(recorded, nullptr); },
      [this] { return cuMemsetD8(memory, 0, 4); },
      [this] {
        int v = 0;
        return cuMemcpyHtoD(memory, &v, 4);
      },
      [] { return cuStreamQuery(nullptr); },
      [] { return cuStreamSynchronize(nullptr); },
      [this] { return spin(nullptr, 1); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    begin(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(calls[i](), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) << i;
    EXPECT_FALSE(survived()) << i;
  }
}

TEST_F(Captures, AskingAboutTheLegacyStreamHarmsNothing) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  begin(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_TRUE(survived());
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_TRUE(survived());
}

TEST_F(Captures, TheCapturingStreamCannotBeWaitedFor) {
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuStreamSynchronize(capturing), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_FALSE(survived());
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuStreamWaitEvent(capturing, recorded, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_FALSE(survived());
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
  const CUevent inside = event();
  ASSERT_EQ(cuEventRecord(inside, capturing), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_FALSE(survived());
}

TEST_F(Captures, NothingRunsUntilTheGraphIsLaunched) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(stamp(capturing, memory, 4, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoDAsync(memory + 64, memory, 4, capturing), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(memory), 0u);
  size_t nodes = 0;
  ASSERT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 2u);
  const size_t before = free_bytes();
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_LT(free_bytes(), before) << "an executable graph takes memory";
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuMemsetD8(memory, 0, 128), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, other), CUDA_SUCCESS);
    EXPECT_EQ(word(memory), 0u);
    ASSERT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(word(memory, 3), 5u);
    EXPECT_EQ(word(memory, 16), 5u);
  }
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Captures, AStreamJoinsByWaitingAndHasToBeJoinedAgain) {
  const CUevent fork = event();
  const CUevent join = event();
  const CUstream branch = stream();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  cuuint64_t branch_id = 0;
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(stamp(capturing, memory, 1, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork, capturing), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(branch, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetCaptureInfo(branch, &status, &branch_id, nullptr, nullptr, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuStreamGetCaptureInfo(capturing, &status, &id, nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(id, branch_id);
  ASSERT_EQ(stamp(branch, memory + 4, 1, 2), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuEventRecord(join, branch), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(capturing, join, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS);
  cuStreamIsCapturing(branch, &status);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  cuGraphDestroy(graph);

  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(cuEventRecord(fork, capturing), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(branch, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(stamp(branch, memory, 1, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_F(Captures, MemoryOfTheGraphIsAllocatedInside) {
  CUdeviceptr inside = 0;
  CUdeviceptr outside = 0;
  ASSERT_EQ(cuMemAllocAsync(&outside, 64, other), CUDA_SUCCESS);
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(cuMemAllocAsync(&inside, 64, capturing), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(outside, capturing), CUDA_ERROR_INVALID_VALUE) << "as measured";
  EXPECT_EQ(cuMemFreeAsync(inside, capturing), CUDA_SUCCESS);
  EXPECT_TRUE(survived());
  CUdeviceptr base = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, nullptr, inside), CUDA_ERROR_NOT_FOUND)
      << "it goes with its graph";
}

TEST_F(Captures, TheLegacyStreamCannotBeCaptured) {
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  capturing = CU_STREAM_PER_THREAD;
  EXPECT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_TRUE(survived());
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(Captures, AnotherThreadCannotEndIt) {
  begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  std::thread([&] {
    CUgraph graph = nullptr;
    cuCtxSetCurrent(context);
    EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  EXPECT_TRUE(survived());
}

}  // namespace cupool::sim::test
