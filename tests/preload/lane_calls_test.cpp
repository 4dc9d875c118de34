// SPDX-License-Identifier: Apache-2.0
// Which calls leave the lane of a program whose first work went to one stream, for a time or for
// good: those that submit work to another one, or to one that is not known, and what ends the
// stream or its context.
#include "harness.h"

namespace preload {
namespace {

enum class Open { stream, legacy };

const char* const kStays = "";
const char* const kAway = "away";
const char* const kPerThread = "work on a per-thread default stream";
const char* const kUnknown = "work whose stream is not known";
const char* const kContext = "another context";
const char* const kContextEnd = "the end of its context";
const char* const kDestroyed = "its stream was destroyed";

struct Call {
  Open open;
  const char* symbol;
  const char* arguments;
  const char* end;
};

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.symbol << "(" << call.arguments << ")"
       << (call.open == Open::legacy ? " in the lane of the legacy stream" : "");
}

void expect_end(const Call& call, const std::string& more = "") {
  const std::string command = std::string("probe_lane_calls call=") + call.symbol +
                              " args=" + call.arguments +
                              (call.open == Open::legacy ? " open=legacy" : " open=stream") + more;
  SCOPED_TRACE(command);
  const PreloadedRun result = run_preloaded(
      command, old_driver("lib-newer", {{"CUPOOL_LANE", "1"}, {"CUPOOL_LOG_LEVEL", "debug"}}));
  EXPECT_EQ(result.process.exit_code, 0) << result.describe();
  std::string end;
  for (const std::string& line : lines_of(result.process.err)) {
    const std::string what = line.substr(line.rfind(": ") + 2);
    if (contains(line, "has left its one lane after ")) end += what.substr(0, what.find(", by "));
    if (!contains(line, "is away from its one lane: ")) continue;
    EXPECT_EQ(what, call.symbol);
    end += kAway;
  }
  EXPECT_EQ(end, call.end) << result.describe();
}

class LaneCalls : public testing::TestWithParam<Call> {};

TEST_P(LaneCalls, LeaveItOrStay) {
  expect_end(GetParam());
}

const Call kCalls[] = {
    // To the stream that they name.
    {Open::stream, "cuMemsetD8Async", "0,0,0,h", kStays},
    {Open::stream, "cuMemsetD8Async", "0,0,0,o", kAway},
    {Open::stream, "cuMemcpyDtoHAsync_v2", "0,0,0,h", kStays},
    {Open::stream, "cuMemcpyDtoHAsync_v2", "", kAway},
    {Open::legacy, "cuMemcpyDtoHAsync_v2", "", kStays},
    {Open::legacy, "cuMemcpyDtoHAsync_v2", "0,0,0,1", kStays},
    {Open::legacy, "cuMemcpyDtoHAsync_v2_ptsz", "", kPerThread},
    {Open::legacy, "cuMemcpyDtoHAsync_v2_ptsz", "0,0,0,1", kStays},
    {Open::stream, "cuMemcpyDtoHAsync", "0,0,0,h", kStays},
    {Open::stream, "cuMemcpyDtoHAsync", "0,0,0,o", kAway},
    {Open::stream, "cuStreamWriteValue32_v2", "h", kStays},
    {Open::stream, "cuStreamWriteValue32_v2", "o", kAway},
    {Open::stream, "cuStreamBatchMemOp", "o", kAway},
    {Open::stream, "cuLaunchHostFunc", "h", kStays},
    {Open::stream, "cuLaunchHostFunc", "o", kAway},
    {Open::stream, "cuStreamAddCallback", "o", kAway},
    {Open::stream, "cuGraphLaunch", "0,h", kStays},
    {Open::stream, "cuGraphLaunch", "0,o", kAway},
    {Open::legacy, "cuGraphLaunch_ptsz", "", kPerThread},
    {Open::stream, "cuGraphUpload", "0,h", kStays},
    {Open::stream, "cuGraphUpload", "0,o", kAway},
    {Open::stream, "cuLaunchKernel", "0,0,0,0,0,0,0,0,h", kStays},
    {Open::stream, "cuLaunchKernel", "0,0,0,0,0,0,0,0,o", kAway},
    {Open::legacy, "cuLaunchKernel", "", kStays},
    {Open::legacy, "cuLaunchKernel_ptsz", "", kPerThread},
    {Open::stream, "cuLaunchKernelEx", "e", kStays},
    {Open::legacy, "cuLaunchKernelEx", "e", kAway},
    {Open::legacy, "cuLaunchKernelEx_ptsz", "", kPerThread},
    {Open::stream, "cuLaunchCooperativeKernel", "0,0,0,0,0,0,0,0,h", kStays},
    {Open::stream, "cuLaunchCooperativeKernel", "0,0,0,0,0,0,0,0,o", kAway},
    {Open::stream, "cuLaunchGridAsync", "0,0,0,h", kStays},
    {Open::stream, "cuLaunchGridAsync", "0,0,0,o", kAway},
    {Open::stream, "cuMemPrefetchAsync", "0,0,0,h", kStays},
    {Open::stream, "cuMemPrefetchAsync", "0,0,0,o", kAway},
    {Open::stream, "cuMemPrefetchAsync_v2", "0,0,0,0,h", kStays},
    {Open::stream, "cuMemPrefetchAsync_v2", "0,0,0,0,o", kAway},
    {Open::legacy, "cuMemPrefetchAsync_v2_ptsz", "", kPerThread},
    {Open::stream, "cuMemDiscardBatchAsync", "0,0,0,0,h", kStays},
    {Open::stream, "cuMemDiscardBatchAsync", "0,0,0,0,o", kAway},
    {Open::stream, "cuMemBatchDecompressAsync", "0,0,0,0,o", kAway},
    {Open::stream, "cuMemMapArrayAsync", "0,0,o", kAway},
    {Open::stream, "cuStreamAttachMemAsync", "h", kStays},
    {Open::stream, "cuStreamAttachMemAsync", "o", kAway},
    {Open::stream, "cuSignalExternalSemaphoresAsync", "0,0,0,o", kAway},
    {Open::stream, "cuWaitExternalSemaphoresAsync", "0,0,0,h", kStays},
    {Open::stream, "cuWaitExternalSemaphoresAsync", "0,0,0,o", kAway},
    {Open::stream, "cuGraphicsMapResources", "0,0,h", kStays},
    {Open::stream, "cuGraphicsUnmapResources", "0,0,o", kAway},
    // To the default stream.
    {Open::legacy, "cuMemcpy", "", kStays},
    {Open::legacy, "cuMemcpy_ptds", "", kPerThread},
    {Open::stream, "cuMemcpy", "", kAway},
    {Open::legacy, "cuMemcpyHtoD_v2", "", kStays},
    {Open::legacy, "cuMemcpyHtoD_v2_ptds", "", kPerThread},
    {Open::stream, "cuMemcpyHtoD_v2", "", kAway},
    {Open::stream, "cuMemcpyHtoD", "", kAway},
    {Open::stream, "cuMemcpyAtoA_v2", "", kAway},
    {Open::stream, "cuMemcpy2DUnaligned_v2", "", kAway},
    {Open::stream, "cuMemcpy3D_v2", "", kAway},
    {Open::legacy, "cuMemsetD2D32_v2", "", kStays},
    {Open::legacy, "cuMemsetD2D32_v2_ptds", "", kPerThread},
    {Open::stream, "cuMemsetD2D32_v2", "", kAway},
    {Open::stream, "cuLaunch", "", kAway},
    {Open::legacy, "cuLaunchGrid", "", kStays},
    // Between contexts, or in several streams.
    {Open::legacy, "cuMemcpyPeer", "0,c,0,c", kStays},
    {Open::legacy, "cuMemcpyPeer", "0,c,0,4096", kUnknown},
    {Open::stream, "cuMemcpyPeerAsync", "0,c,0,c,0,h", kStays},
    {Open::stream, "cuMemcpyPeerAsync", "0,c,0,c,0,o", kAway},
    {Open::stream, "cuMemcpyPeerAsync", "0,4096,0,c,0,h", kUnknown},
    {Open::legacy, "cuMemcpy3DPeer", "d", kUnknown},
    {Open::legacy, "cuMemcpy3DPeer", "", kStays},
    {Open::stream, "cuMemcpy3DPeerAsync", "d,h", kUnknown},
    {Open::stream, "cuLaunchCooperativeKernelMultiDevice", "", kUnknown},
    {Open::stream, "cuGreenCtxCreate", "", kUnknown},
    {Open::stream, "cuIpcGetEventHandle", "p", kUnknown},
    {Open::stream, "cuIpcOpenEventHandle", "p", kUnknown},
    // Newer than cupool.
    {Open::stream, "cuMemcpyTomorrowAsync", "0,0,0,h", kUnknown},
    // No work.
    {Open::stream, "cuEventRecord", "0,o", kStays},
    {Open::stream, "cuStreamWaitEvent", "o", kStays},
    {Open::stream, "cuStreamSynchronize", "o", kStays},
    {Open::stream, "cuMemAllocAsync", "p,4096,o", kStays},
    {Open::stream, "cuStreamBeginCapture_v2", "o,2", kStays},
    // Streams and contexts.
    {Open::stream, "cuStreamDestroy_v2", "h", kDestroyed},
    {Open::stream, "cuStreamDestroy_v2", "o", kStays},
    {Open::stream, "cuStreamDestroy_v2", "", kStays},
    {Open::legacy, "cuStreamDestroy_v2", "o", kStays},
    {Open::stream, "cuCtxSetCurrent", "c", kStays},
    {Open::stream, "cuCtxSetCurrent", "", kStays},
    {Open::stream, "cuCtxPushCurrent_v2", "c", kStays},
    {Open::stream, "cuDevicePrimaryCtxRetain", "p", kStays},
    {Open::stream, "cuCtxCreate_v2", "p", kContext},
    {Open::stream, "cuCtxDestroy_v2", "", kStays},
};

INSTANTIATE_TEST_SUITE_P(Each, LaneCalls, testing::ValuesIn(kCalls));

// With an engine, and without one.
TEST(Lane, TheEndOfItsContextLeavesIt) {
  for (const char* blocks : {" blocks=1", " blocks=0"}) {
    for (const char* symbol : {"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease",
                               "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"}) {
      expect_end({Open::stream, symbol, "", kContextEnd}, blocks);
    }
    expect_end({Open::stream, "cuCtxDestroy_v2", "c", kContextEnd}, blocks);
  }
}

}  // namespace
}  // namespace preload
