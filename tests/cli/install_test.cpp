// SPDX-License-Identifier: Apache-2.0
// What CMake installs works from wherever it is moved to, and is all that it installs.
#include <filesystem>
#include <set>

#include "command.h"

namespace cli {
namespace {

using preload::ProcessResult;
using preload::ScratchFolder;
namespace fs = std::filesystem;

ProcessResult run_of(const std::vector<std::string>& argv) {
  preload::Command command;
  command.argv = argv;
  command.environment = environment();
  return preload::run(command);
}

TEST(Install, WorksAfterTheFolderWasMoved) {
  const ScratchFolder folder;
  const std::string first = folder.path() + "/first";
  const ProcessResult installed =
      run_of({CUPOOL_TEST_CMAKE, "--install", CUPOOL_TEST_BINARY_FOLDER, "--prefix", first});
  ASSERT_EQ(installed.exit_code, 0) << installed.describe();
  const std::string moved = folder.path() + "/moved";
  fs::rename(first, moved);
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(moved)) {
    if (!entry.is_directory()) files.insert(fs::relative(entry.path(), moved).string());
  }
  const std::string library = moved + "/" CUPOOL_TEST_INSTALLED_LIBRARY;
  EXPECT_EQ(files.count("bin/cupool"), 1u);
  EXPECT_EQ(files.count(CUPOOL_TEST_INSTALLED_LIBRARY), 1u);
  EXPECT_EQ(files.count("share/cupool/LICENSE"), 1u);
  EXPECT_EQ(files.count("share/cupool/profiles/mpi.env"), 1u);
  EXPECT_EQ(files.count("share/cupool/profiles/realtime.env"), 1u);
  const std::set<std::string> reference = {
      "share/man/man1/cupool.1", "share/bash-completion/completions/cupool",
      "share/zsh/site-functions/_cupool", "share/fish/vendor_completions.d/cupool.fish"};
  for (const std::string& file : reference) {
    EXPECT_EQ(files.count(file), 1u) << file;
    EXPECT_GT(fs::file_size(moved + "/" + file), 1000u) << file;
  }
  for (const std::string& file : files) {
    EXPECT_TRUE(reference.count(file) == 1 || file == "bin/cupool" ||
                file == CUPOOL_TEST_INSTALLED_LIBRARY ||
                file.compare(0, 13, "share/cupool/") == 0 || file.compare(0, 8, "include/") == 0)
        << file;
  }
  // The sanitizer's runtime, if any, stands in front of the library.
  const ProcessResult printed =
      run_of({moved + "/bin/cupool", "run", "--print", "--profile", "mpi", "true"});
  EXPECT_NE(printed.out.find(fs::canonical(library).string() + " CUPOOL_PROFILE=" +
                             fs::canonical(moved).string() + "/share/cupool/profiles/mpi.env true"),
            std::string::npos)
      << printed.describe();
  // By way of a link, as in ~/bin.
  fs::create_symlink(moved + "/bin/cupool", folder.path() + "/link");
  const ProcessResult linked = run_of({folder.path() + "/link", "run", "--stats", "off",
                                       preload::probe_path("probe_runtime_shared")});
  EXPECT_EQ(linked.exit_code, 0) << linked.describe();
  EXPECT_NE(linked.out.find("wrong_bytes=0"), std::string::npos) << linked.describe();
}

#ifndef CUPOOL_TEST_SANITIZED_BUILD
TEST(Install, TheCommandNeedsOnlyTheCLibrary) {
  const ProcessResult result = run_of({"readelf", "-d", tested_command()});
  ASSERT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.out.find("libstdc++"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("libgcc_s"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("libcuda"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("RUNPATH"), std::string::npos) << result.out;
}
#endif

}  // namespace
}  // namespace cli
