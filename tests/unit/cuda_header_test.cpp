// SPDX-License-Identifier: Apache-2.0
// What the toolkit's cuda.h declares and cupool has to know of: a release with more than that fails
// here, not in a program.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "cuda/api.h"
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

// The header's functions by the names that it declares, old versions included, and by those that
// the driver exports for per-thread default streams.
std::set<std::string> declared(const std::regex& kind) {
  const std::string header = contents(CUPOOL_TEST_CUDA_HEADER);
  const std::regex function(R"(CUresult\s+CUDAAPI\s+(\w+)\s*\(([^;{]*)\)\s*;)");
  const std::regex twin(R"(__CUDA_API_PT(DS|SZ)\((\w+)\))");
  std::set<std::string> found;
  for (std::sregex_iterator match(header.begin(), header.end(), function), end; match != end;
       ++match) {
    const std::string name = (*match)[1];
    if (std::regex_search(name + "(" + (*match)[2].str(), kind)) found.insert(name);
  }
  for (std::sregex_iterator match(header.begin(), header.end(), twin), end; match != end; ++match) {
    const std::string name = (*match)[2];
    if (found.count(name) != 0) found.insert(name + ((*match)[1] == "DS" ? "_ptds" : "_ptsz"));
  }
  return found;
}

bool tells_the_lane(const std::string& code) {
  return code.find("Submission submission(") != std::string::npos ||
         code.find("submits_unknown(") != std::string::npos ||
         code.find("Lane::leave_unknown(") != std::string::npos;
}

// The hooks that tell the lane of their work, by the first argument of a macro that does, or by
// their own code.
std::set<std::string> hooks_that_submit() {
  std::string code;
  for (const char* part : {"context", "host_work", "rescued", "submitted"}) {
    code += contents(std::string(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/driver_") + part + ".cpp");
  }
  // A macro tells the lane if its text does or names a macro that does.
  std::map<std::string, std::string> macros;
  const std::regex macro(R"(\n#define (CUPOOL_\w+)\(((?:[^\n]*\\\n)*[^\n]*))");
  for (std::sregex_iterator match(code.begin(), code.end(), macro), end; match != end; ++match) {
    macros[(*match)[1]] = (*match)[2];
  }
  std::map<std::string, bool> telling;  // and whether the macro defines the twin as well
  std::size_t before = 0;
  do {
    before = telling.size();
    for (const auto& [name, text] : macros) {
      bool tells = tells_the_lane(text);
      bool twins = text.find("##_pt") != std::string::npos;
      for (const auto& [other, its_twins] : telling) {
        if (text.find(" " + other + "(") == std::string::npos) continue;
        tells = true;
        twins = twins || its_twins;
      }
      if (tells) telling[name] = twins;
    }
  } while (before != telling.size());
  std::set<std::string> found;
  const std::regex use(R"(\n(CUPOOL_\w+)\(\s*(\w+))");
  for (std::sregex_iterator match(code.begin(), code.end(), use), end; match != end; ++match) {
    const auto macro_used = telling.find((*match)[1]);
    if (macro_used == telling.end()) continue;
    const std::string symbol = (*match)[2];
    found.insert(symbol);
    if (macro_used->second) found.insert({symbol + "_ptsz", symbol + "_ptds"});
  }
  const std::regex function(R"(\nCUresult cupool_hook_(\w+)\((?:[^\n]|\n[^}])*)");
  for (std::sregex_iterator match(code.begin(), code.end(), function), end; match != end; ++match) {
    if (tells_the_lane((*match)[0])) found.insert((*match)[1]);
  }
  return found;
}

// What has a stream and submits nothing to it.
bool submits_nothing(const std::string& symbol) {
  static const char* const reviewed[] = {
      // Questions and settings.
      "cuStreamGet", "cuStreamIsCapturing", "cuStreamQuery", "cuStreamCopyAttributes",
      "cuStreamSetAttribute", "cuThreadExchangeStreamCaptureMode",
      // Order between streams, and waits: they touch no memory of the program.
      "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventRecord",
      // The life of streams; a destroyed one is the lane's own business.
      "cuStreamCreate", "cuStreamDestroy", "cuGreenCtxStreamCreate",
      // Captures record, and their graphs are launched.
      "cuStreamBegin", "cuStreamEndCapture", "cuStreamUpdateCaptureDependencies",
      // The driver's own pools order their memory themselves.
      "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
      // Guarded: cupool steps aside and leaves the lane.
      "cuFabricCpyBatchAsync"};
  return std::any_of(std::begin(reviewed), std::end(reviewed),
                     [&](const char* start) { return symbol.rfind(start, 0) == 0; });
}

#if CUDA_VERSION >= 11080
static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(LaunchConfiguration, stream));
static_assert(offsetof(CUlaunchConfig, attrs) == offsetof(LaunchConfiguration, attributes));
static_assert(offsetof(CUlaunchConfig, numAttrs) == offsetof(LaunchConfiguration, attribute_count));
static_assert(sizeof(CUlaunchConfig) == sizeof(LaunchConfiguration));
static_assert(sizeof(CUlaunchAttribute) == sizeof(LaunchAttribute));
static_assert(kProgrammaticStreamSerialization ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
#endif

// A lane rests on it that no work is submitted unseen (docs/design.md, Lanes).
TEST(Header, HasNoFurtherFunctionThatSubmitsWork) {
  const std::set<std::string> found =
      declared(std::regex(R"(CUstream\b|^cu(Memcpy|Memset|Launch|GraphLaunch))"));
  const std::string hooks = contents(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/hooks.def");
  const std::set<std::string> submit = hooks_that_submit();
  std::size_t hooked = 0;
  for (const std::string& symbol : found) {
    if (submits_nothing(symbol)) {
      EXPECT_EQ(submit.count(symbol), 0u) << symbol;
      continue;
    }
    ++hooked;
    EXPECT_NE(hooks.find("HOOK(" + symbol + ","), std::string::npos) << symbol << " has no hook";
    EXPECT_EQ(submit.count(symbol), 1u) << symbol << " does not tell the lane";
  }
  EXPECT_GT(hooked, 100u);
}

// Copies that may touch host memory, host functions and captures (docs/design.md, Routes).
TEST(Header, HasNoFurtherFunctionOfAKindThatTheEngineHasToSee) {
  const std::string header = contents(CUPOOL_TEST_CUDA_HEADER);
  const std::regex kinds(
      R"(CUresult\s+CUDAAPI\s+(cu(?:Memcpy\w*Async|\w*CpyBatchAsync|StreamBegin|LaunchHost)\w*)\s*\()");
  const std::string hooks = contents(CUPOOL_TEST_SOURCE_FOLDER "/src/entry/hooks.def");
  // Guarded (entry/newer.h).
  const std::set<std::string> guarded = {"cuFabricCpyBatchAsync", "cuStreamBeginCaptureToCig"};
  std::set<std::string> found;
  for (std::sregex_iterator match(header.begin(), header.end(), kinds), end; match != end;
       ++match) {
    const std::string name = (*match)[1];
    found.insert(name);
    EXPECT_TRUE(guarded.count(name) != 0 || hooks.find("HOOK(" + name + ",") != std::string::npos)
        << name;
  }
  EXPECT_GT(found.size(), 20u);
}

}  // namespace
}  // namespace cupool::cuda
