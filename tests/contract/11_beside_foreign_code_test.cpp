// SPDX-License-Identifier: Apache-2.0
// Beside things that are not ours and that no sanitizer stands (contract 11): an audit library,
// other preloaded libraries, Python's multiprocessing.
#include <fstream>

#include "harness.h"

namespace preload {
namespace {

const char* const kProbesOfAllRoutes[] = {"probe_runtime_shared", "probe_runtime_static",
                                          "probe_driver_linked",  "probe_dlsym",
                                          "probe_getproc",        "probe_plugin"};

TEST(Audit, ChangesNothing) {
  const std::string audit = probe_path("liblife_audit.so");
  for (const char* probe : kProbesOfAllRoutes) {
    expect_counts(expect_same(probe, 0, 1, {{"LD_AUDIT", audit}}));
  }
}

class AnotherPreload : public testing::TestWithParam<bool> {
 protected:
  static std::string beside_us(const std::string& other) {
    const std::string library = probe_path("lib" + other + ".so");
    return GetParam() ? library + ":" + library_path() : library_path() + ":" + library;
  }
  static void expect_all_routes_with(const std::string& preload) {
    for (const char* probe : kProbesOfAllRoutes) {
      SCOPED_TRACE(preload + " " + probe);
      const PreloadedRun result = run_preloaded(probe, {{"LD_PRELOAD", preload}});
      EXPECT_EQ(result.process.exit_code, 0) << result.describe();
      EXPECT_EQ(result.process.out, run_plain(probe).out);
      EXPECT_EQ(result.process.err, "");
      expect_counts(result);
    }
  }
};

TEST_P(AnotherPreload, WorksAndLeavesUsAtWork) {
  const std::string preload = beside_us("life_wrapper");
  expect_all_routes_with(preload);
  const PreloadedRun wrapped =
      run_preloaded("probe_life_load mode=wrapped", {{"LD_PRELOAD", preload}});
  EXPECT_EQ(wrapped.process.out, "seen\n") << wrapped.describe();
}

// Its own look-ups come back to us: handing them on to it would never end.
TEST_P(AnotherPreload, MayLookUpFromTheStart) {
  expect_all_routes_with(beside_us("life_wrapper_from_start"));
}

INSTANTIATE_TEST_SUITE_P(All, AnotherPreload, testing::Bool(), [](const auto& row) {
  return std::string(row.param ? "before" : "behind");
});

// --- another copy of ourselves ---

TEST(SecondCopy, StepsAsideAndTheFirstSaysSo) {
  const ScratchFolder folder;
  const std::string copy = folder.path() + "/copy.so";
  ASSERT_EQ(
      run({{"cp", library_path(), copy}, base_environment(), std::chrono::seconds(60)}).exit_code,
      0);
  for (const bool copy_first : {false, true}) {
    const std::string preload =
        copy_first ? copy + ":" + library_path() : library_path() + ":" + copy;
    for (const char* probe : kProbesOfAllRoutes) {
      SCOPED_TRACE(preload + " " + probe);
      Command command;
      command.argv = {probe_path(probe)};
      command.environment = with(base_environment(), {{"LD_PRELOAD", preload}});
      const ProcessResult result = run(command);
      EXPECT_EQ(result.exit_code, 0) << result.describe();
      const auto count = [&](const std::string& text) {
        size_t times = 0;
        for (const std::string& line : lines_of(result.err)) times += contains(line, text) ? 1 : 0;
        return times;
      };
      EXPECT_EQ(count("  Time    "), 1u) << "two engines\n" << result.describe();
      EXPECT_EQ(count("second copy of cupool, " + (copy_first ? library_path() : copy)), 1u)
          << result.describe();
      expect_counts(run_preloaded(probe, {{"LD_PRELOAD", preload}}));
    }
  }
}

// --- Python ---

// Multiprocessing as PyTorch's data loaders use it: children by fork (before and after the parent
// used CUDA) and by spawn, which leave by os._exit.
const char* const kPython = R"(
import ctypes, multiprocessing, sys
def use(times):
    cudart = ctypes.CDLL('libcudart.so.13')
    code = 0
    for i in range(times):
        p = ctypes.c_void_p()
        code = code or cudart.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(4096 << i % 4))
        code = code or cudart.cudaFree(p)
    return code
def run(kind, number):
    context = multiprocessing.get_context(kind)
    with context.Pool(number) as pool:
        print(kind, pool.map(use, [5] * number, 1))
        pool.close()
        pool.join()
if __name__ == '__main__':
    run('fork', 2)
    print('parent', use(3))
    run('fork', 2)
    run('spawn', 2)
    sys.exit(7)
)";

TEST(Multiprocessing, ByForkAndSpawn) {
  const ScratchFolder folder;
  const std::string script = folder.path() + "/pool.py";
  std::ofstream(script) << kPython;
  Command command;
  command.argv = {"python3", script};
  command.environment = base_environment();
  const ProcessResult plain = run(command);
  const ScratchFolder reports;
  command.environment["CUPOOL_STATS"] = "json";
  command.environment["CUPOOL_STATS_FILE"] = reports.path() + "/%p.json";
  add_preload(&command.environment);
  const ProcessResult preloaded = run(command);
  EXPECT_EQ(plain.exit_code, 7) << plain.describe();
  EXPECT_EQ(preloaded.exit_code, 7) << preloaded.describe();
  EXPECT_EQ(preloaded.out, plain.out);
  EXPECT_EQ(preloaded.err, plain.err);
  // Which of a pool's two workers takes a task is theirs to say: from each pool one or two. The
  // workers forked after the parent's use of CUDA were refused.
  const size_t written = reports.files().size();
  EXPECT_GE(written, 3u);
  EXPECT_LE(written, 5u);
}

}  // namespace
}  // namespace preload
