// SPDX-License-Identifier: Apache-2.0
// What the library is to the dynamic linker (docs/design.md, Routes): it needs nothing but libc,
// and exports exactly the hooks of the table and nothing of its insides.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "harness.h"

namespace preload {
namespace {

std::string output_of(const std::vector<std::string>& argv) {
  Command command;
  command.argv = argv;
  command.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"LC_ALL", "C"}};
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  return result.out;
}

std::set<std::string> exported_symbols() {
  std::set<std::string> symbols;
  std::istringstream lines(output_of({"nm", "-D", "--defined-only", library_path()}));
  std::string address, type, name;
  while (lines >> address >> type >> name) {
    if (type == "A") continue;  // the name of a version node, if there is a version script
    symbols.insert(name.substr(0, name.find('@')));
  }
  return symbols;
}

std::set<std::string> hook_table() {
  std::istringstream lines(read_file(tested_build().folder + "/src/exports.txt"));
  std::set<std::string> symbols;
  for (std::string name; lines >> name;) symbols.insert(name);
  return symbols;
}

// Contract 13.
TEST(Elf, NeedsOnlyTheCLibrary) {
  const std::string dynamic = output_of({"readelf", "-d", library_path()});
  const std::regex needed("\\(NEEDED\\)[^\\[]*\\[([^\\]]+)\\]");
  const std::regex allowed("(libc|libm|libdl|libpthread|librt)\\.so\\.\\d+|ld-linux.*\\.so\\.\\d+");
  size_t count = 0;
  for (std::sregex_iterator it(dynamic.begin(), dynamic.end(), needed), end; it != end; ++it) {
    ++count;
    EXPECT_TRUE(std::regex_match((*it)[1].str(), allowed)) << (*it)[1].str();
  }
  EXPECT_GE(count, 1u) << dynamic;
}

TEST(Elf, HasNoSearchPathAndNoExecutableStack) {
  const std::string dynamic = output_of({"readelf", "-d", library_path()});
  EXPECT_EQ(dynamic.find("RPATH"), std::string::npos);
  EXPECT_EQ(dynamic.find("RUNPATH"), std::string::npos);
  EXPECT_EQ(dynamic.find("TEXTREL"), std::string::npos);
  // Assembly files easily forget the note that says so.
  const std::string segments = output_of({"readelf", "-lW", library_path()});
  EXPECT_TRUE(std::regex_search(segments, std::regex("GNU_STACK[^\\n]* RW "))) << segments;
}

// A program that opens the library and closes it leaves its threads and handlers their code.
TEST(Elf, StaysOnceItIsLoaded) {
  const std::string dynamic = output_of({"readelf", "-dW", library_path()});
  EXPECT_TRUE(std::regex_search(dynamic, std::regex("\\(FLAGS_1\\)[^\\n]*\\bNODELETE\\b")))
      << dynamic;
}

TEST(Elf, ExportsExactlyTheHookTable) {
  const std::set<std::string> exported = exported_symbols();
  const std::set<std::string> table = hook_table();
  std::vector<std::string> extra, missing;
  std::set_difference(exported.begin(), exported.end(), table.begin(), table.end(),
                      std::back_inserter(extra));
  std::set_difference(table.begin(), table.end(), exported.begin(), exported.end(),
                      std::back_inserter(missing));
  EXPECT_EQ(extra, std::vector<std::string>{}) << "exported, but not in the table";
  EXPECT_EQ(missing, std::vector<std::string>{}) << "in the table, but not exported";
}

TEST(Elf, TheTableHoldsTheFourRoutes) {
  const std::set<std::string> table = hook_table();
  for (const char* name :
       {"dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemAlloc_v2", "cuMemFree_v2",
        "cuMemAllocPitch_v2", "cudaMalloc", "cudaFree", "cudaMallocPitch", "cudaMalloc3D",
        "cudaDeviceSynchronize", "cudaMallocHost", "cudaHostAlloc", "cudaFreeHost",
        "cudaMallocAsync", "cudaFreeAsync"}) {
    EXPECT_EQ(table.count(name), 1u) << name;
  }
}

// Contract 13. A program may bring another C++ runtime than ours was built with.
TEST(Elf, NeedsNoSymbolOfTheCppRuntime) {
  const std::string versions = output_of({"readelf", "-VW", library_path()});
  for (const char* unwanted : {"GLIBCXX_", "CXXABI_", "GCC_"}) {
    EXPECT_EQ(versions.find(unwanted), std::string::npos) << unwanted;
  }
}

}  // namespace
}  // namespace preload
