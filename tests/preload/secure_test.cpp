// SPDX-License-Identifier: Apache-2.0
// Programs with rights that their user has not: whoever starts one may not lead it by cupool's
// variables, nor have it write to files of his choice.
#include <unistd.h>

#include "harness.h"

namespace preload {
namespace {

// Everything that writes a file is asked for.
ProcessResult run_asking_for_files(const std::string& folder,
                                   const std::vector<std::string>& argv) {
  Command command;
  command.argv = argv;
  command.environment = with(base_environment(), {{"CUPOOL_STATS_FILE", folder + "/report"},
                                                  {"CUPOOL_TRACE", folder + "/trace.csv"},
                                                  {"CUPOOL_LOG_FILE", folder + "/log"},
                                                  {"CUPOOL_LOG_LEVEL", "trace"},
                                                  {"CUPOOL_NO_SUCH_OPTION", "1"}});
  return run(command);
}

TEST(Secure, ReadsNoVariableAndWritesNoFile) {
  const ScratchFolder folder;
  const std::string probe = probe_path("probe_secure");
  const ProcessResult secure = run_asking_for_files(folder.path(), {probe, "secure=1"});
  EXPECT_EQ(secure.out, "secure 1\nrunning 0\n") << secure.describe();
  EXPECT_EQ(secure.err, "");
  EXPECT_EQ(folder.files().size(), 0u);
  const ProcessResult plain = run_asking_for_files(folder.path(), {probe});
  EXPECT_EQ(plain.out, "secure 0\nrunning 1\n") << plain.describe();
  EXPECT_EQ(folder.files().size(), 3u) << "so they would have been written";
}

// The same as the kernel makes it: owned by root, with the bit, run by nobody.
TEST(Secure, IsWhatTheKernelCallsSo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a set-user-id program of another user";
  const ScratchFolder folder;
  const std::string program = folder.path() + "/program";
  const std::string files = folder.path() + "/files";
  const std::string script = "chmod 755 " + folder.path() + " && cp " + probe_path("probe_secure") +
                             " " + program + " && chmod 4755 " + program + " && mkdir -m 777 " +
                             files;
  ASSERT_EQ(run({{"sh", "-c", script}, base_environment(), std::chrono::seconds(60)}).exit_code, 0);
  const ProcessResult result = run_asking_for_files(
      files, {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program});
  if (result.exit_code != 0 || contains(result.out, "secure 0")) {
    GTEST_SKIP() << "set-user-id programs do not work here, or not these: " << result.describe();
  }
  EXPECT_EQ(result.out, "secure 1\nrunning 0\n") << result.describe();
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(run({{"ls", files}, base_environment(), std::chrono::seconds(60)}).out, "");
}

}  // namespace
}  // namespace preload
