// What the toolkit's cuda.h declares and cupool has to know of: a release with more than that fails
// here, not in a program.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

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

}  // namespace
}  // namespace cupool::cuda
