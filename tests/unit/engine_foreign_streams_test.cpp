// SPDX-License-Identifier: Apache-2.0
// Frees in a stream of another context (contract 12): ordered on the device, or waited for on the
// host where the driver refuses that.
#include "engine/reclaim/foreign_streams.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cupool::engine {
namespace {

struct ForeignGpu {
  std::vector<std::string> calls;
  CUcontext current = nullptr;
  CUcontext of_stream = nullptr;
  CUcontext refuses = nullptr;  // to be made current
  unsigned flags = CU_STREAM_NON_BLOCKING;
  CUresult ask_flags = CUDA_SUCCESS;
  int unknown = 0;        // refusals of the question for a stream's context
  int refused_waits = 0;  // of the host for the stream
  CUresult create_event = CUDA_SUCCESS;
  CUresult create_stream = CUDA_SUCCESS;
  CUresult wait_event = CUDA_SUCCESS;
};
ForeignGpu foreign;
CUcontext const kHome = reinterpret_cast<CUcontext>(0x1000);
CUcontext const kAbroad = reinterpret_cast<CUcontext>(0x2000);
CUstream const kForeign = reinterpret_cast<CUstream>(0x30000);

class ForeignStreamsTest : public testing::Test {
 protected:
  ForeignStreamsTest() : streams_(driver_, kHome) {
    foreign = ForeignGpu{};
    foreign.current = kHome;
    foreign.of_stream = kAbroad;
    driver_.cuCtxGetCurrent = [](CUcontext* context) {
      *context = foreign.current;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = foreign.of_stream;
      return foreign.unknown-- > 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    };
    driver_.cuStreamGetFlags = [](CUstream, unsigned* flags) {
      *flags = foreign.flags;
      return foreign.ask_flags;
    };
    driver_.cuCtxPushCurrent_v2 = [](CUcontext context) {
      if (context == foreign.refuses) return CUDA_ERROR_INVALID_CONTEXT;
      before_ = foreign.current;
      foreign.current = context;
      return CUDA_SUCCESS;
    };
    driver_.cuCtxPopCurrent_v2 = [](CUcontext* context) {
      *context = foreign.current;
      foreign.current = before_;
      return CUDA_SUCCESS;
    };
    driver_.cuEventCreate = [](CUevent* event, unsigned) {
      *event = reinterpret_cast<CUevent>(0x50);
      return foreign.create_event;
    };
    driver_.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
    driver_.cuEventRecord = [](CUevent, CUstream) {
      foreign.calls.emplace_back(foreign.current == kAbroad ? "record" : "record elsewhere");
      return CUDA_SUCCESS;
    };
    driver_.cuStreamCreate = [](CUstream* stream, unsigned) {
      foreign.calls.emplace_back("create");
      *stream = reinterpret_cast<CUstream>(0x40);
      return foreign.create_stream;
    };
    driver_.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) {
      foreign.calls.emplace_back(foreign.current == kHome ? "wait" : "wait elsewhere");
      return foreign.wait_event;
    };
    driver_.cuStreamSynchronize = [](CUstream stream) {
      if (stream == CU_STREAM_LEGACY) {
        foreign.calls.emplace_back(foreign.current == kHome ? "legacy" : "legacy elsewhere");
        return CUDA_SUCCESS;
      }
      foreign.calls.emplace_back("synchronise");
      return foreign.refused_waits-- > 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    };
  }
  // The calls of a free in `stream`, which is ordered.
  std::vector<std::string> order(CUstream stream = kForeign) {
    foreign.calls.clear();
    EXPECT_TRUE(streams_.order_behind(stream));
    return foreign.calls;
  }
  using Calls = std::vector<std::string>;

  static inline CUcontext before_ = nullptr;
  cuda::Driver driver_;
  ForeignStreams streams_;
};

TEST_F(ForeignStreamsTest, AStreamOfCupoolsWaitsForTheEventOfTheOther) {
  EXPECT_EQ(order(), (Calls{"record", "create", "wait"}));
  EXPECT_EQ(order(), (Calls{"record", "wait"}));
  streams_.clear();
  EXPECT_EQ(order(), (Calls{"record", "create", "wait"})) << "it went with the context";
}

TEST_F(ForeignStreamsTest, TheContextsOwnStreamsAreCoveredByItsFences) {
  foreign.of_stream = kHome;
  EXPECT_EQ(order(), Calls{});
}

TEST_F(ForeignStreamsTest, InAStreamThatOthersWaitForTheFreeIsAnOperation) {
  foreign.of_stream = kHome;
  const Calls operation = {"record elsewhere", "wait"};  // than abroad
  for (CUstream const stream : {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_EQ(order(stream), operation);
  }
  EXPECT_EQ(order(nullptr), operation) << "the default stream of the current context";
  foreign.flags = CU_STREAM_DEFAULT;
  EXPECT_EQ(order(), operation);
  foreign.flags = CU_STREAM_NON_BLOCKING;
  foreign.ask_flags = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(order(), operation) << "it may be one";
  foreign.wait_event = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(order(), (Calls{"record elsewhere", "wait", "legacy", "synchronise"}));
  foreign.create_event = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(order(), (Calls{"legacy", "synchronise"})) << "the free would be behind its work";
  foreign.refused_waits = 3;
  EXPECT_EQ(order(), (Calls{"legacy", "synchronise", "synchronise", "synchronise"}))
      << "the fences cover it all the same";
}

TEST_F(ForeignStreamsTest, SoItIsInABlockingStreamOfAnotherContext) {
  foreign.flags = CU_STREAM_DEFAULT;
  EXPECT_EQ(order(), (Calls{"record", "create", "wait", "wait elsewhere"}));
  foreign.wait_event = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(order(), (Calls{"record", "wait", "legacy elsewhere", "synchronise"}));
}

TEST_F(ForeignStreamsTest, ADefaultStreamWithoutAContextHasNoWork) {
  foreign.current = nullptr;
  EXPECT_EQ(order(CU_STREAM_LEGACY), Calls{});
}

TEST_F(ForeignStreamsTest, TheQuestionForTheContextIsAskedOnceMore) {
  foreign.unknown = 1;
  EXPECT_EQ(order(), (Calls{"record", "create", "wait"}));
  foreign.unknown = 2;
  EXPECT_EQ(order(), Calls{"synchronise"});
}

TEST_F(ForeignStreamsTest, TheHostWaitsWhereTheDriverRefusesTheOrder) {
  foreign.refuses = kAbroad;
  EXPECT_EQ(order(), Calls{"synchronise"});
  foreign.refuses = nullptr;
  foreign.create_event = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(order(), Calls{"synchronise"});
  foreign.create_event = CUDA_SUCCESS;
  foreign.create_stream = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(order(), (Calls{"record", "create", "synchronise"}));
  foreign.create_stream = CUDA_SUCCESS;
  foreign.wait_event = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(order(), (Calls{"record", "create", "wait", "synchronise"}));
  // The thread is abroad, and may not come home.
  foreign.wait_event = CUDA_SUCCESS;
  foreign.current = kAbroad;
  foreign.refuses = kHome;
  EXPECT_EQ(order(), (Calls{"record", "synchronise"}));
}

TEST_F(ForeignStreamsTest, ItIsNotOrderedIfTheHostCannotWaitEither) {
  foreign.refuses = kAbroad;
  foreign.refused_waits = 2;
  EXPECT_EQ(order(), (Calls{"synchronise", "synchronise", "synchronise"}));
  foreign.refused_waits = 3;
  EXPECT_FALSE(streams_.order_behind(kForeign));
}

}  // namespace
}  // namespace cupool::engine
