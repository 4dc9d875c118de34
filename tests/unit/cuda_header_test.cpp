// SPDX-License-Identifier: Apache-2.0
// What the toolkit's cuda.h declares and cupool has to know of: a release with more than that fails
// here, not in a program.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "util/known_cuda.h"

namespace cupool::cuda {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A stream that is made by a function which no hook sees could be a non-blocking one, which a wait
// for the legacy stream does not cover (core/legacy_stream.h).
TEST(Header, HasNoFurtherFunctionThatCreatesStreams) {
  const std::string header = contents(CUPOOL_TEST_CUDA_HEADER);
  const std::regex creates(R"(CUresult\s+CUDAAPI\s+(\w+)\s*\(\s*CUstream\s*\*)");
  std::set<std::string> found;
  for (std::sregex_iterator match(header.begin(), header.end(), creates), end; match != end;
       ++match) {
    found.insert((*match)[1]);
  }
  const std::string hooks = contents(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/hooks.def");
  for (const char* hooked : {"cuStreamCreate", "cuStreamCreateWithPriority"}) {
    EXPECT_EQ(found.erase(hooked), 1u) << hooked;
    EXPECT_NE(hooks.find(std::string("HOOK(") + hooked + ","), std::string::npos) << hooked;
  }
  // Only of a green context, whose creation ends cupool's part.
  found.erase("cuGreenCtxStreamCreate");
  EXPECT_NE(hooks.find("HOOK(cuGreenCtxCreate,"), std::string::npos);
  EXPECT_TRUE(found.empty()) << *found.begin() << " creates streams as well";
}

// What `cupool doctor` says is known.
TEST(Header, NoHookIsNewerThanWhatIsKnown) {
  const std::string hooks = contents(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/hooks.def");
  const std::regex hook(R"(\nHOOK\(\w+, \w+, (\d+),)");
  int newest = 0;
  for (std::sregex_iterator match(hooks.begin(), hooks.end(), hook), end; match != end; ++match) {
    newest = std::max(newest, std::stoi((*match)[1]));
  }
  EXPECT_GT(newest, 13000);
  EXPECT_LE(newest, util::kNewestKnownCuda);
}

// Copies that may touch host memory, host functions and captures (docs/design.md, Routes).
TEST(Header, HasNoFurtherFunctionOfAKindThatTheEngineHasToSee) {
  const std::string header = contents(CUPOOL_TEST_CUDA_HEADER);
  const std::regex kinds(
      R"(CUresult\s+CUDAAPI\s+(cu(?:Memcpy\w*Async|\w*CpyBatchAsync|StreamBegin|LaunchHost)\w*)\s*\()");
  const std::string hooks = contents(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/hooks.def");
  // No host memory takes part; the last two are guarded.
  const std::set<std::string> known = {"cuMemcpyDtoDAsync",     "cuMemcpyDtoDAsync_v2",
                                       "cuMemcpyPeerAsync",     "cuMemcpy3DPeerAsync",
                                       "cuFabricCpyBatchAsync", "cuStreamBeginCaptureToCig"};
  // Of 32-bit device pointers: in the header, and called by nobody.
  const std::set<std::string> old = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoAAsync",
                                     "cuMemcpyAtoHAsync", "cuMemcpy2DAsync",   "cuMemcpy3DAsync"};
  std::set<std::string> found;
  for (std::sregex_iterator match(header.begin(), header.end(), kinds), end; match != end;
       ++match) {
    const std::string name = (*match)[1];
    found.insert(name);
    EXPECT_TRUE(known.count(name) != 0 || old.count(name) != 0 ||
                hooks.find("HOOK(" + name + ",") != std::string::npos)
        << name;
  }
  EXPECT_GT(found.size(), 20u);
}

}  // namespace
}  // namespace cupool::cuda
