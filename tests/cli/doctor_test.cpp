// SPDX-License-Identifier: Apache-2.0
// `cupool doctor`: how programs reach CUDA, and everything that can stand in the way, on real files
// and real child processes under the simulated driver.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "cli/doctor/elf_file.h"
#include "command.h"
#include "patched_file.h"

namespace cli {
namespace {

using preload::Environment;
using preload::ProcessResult;
using preload::ScratchFolder;

struct Diagnosis {
  ProcessResult process;
  nlohmann::json json;

  std::set<std::string> ids(const char* severity) const {
    std::set<std::string> ids;
    for (const nlohmann::json& finding : json.at("findings")) {
      if (finding.at("severity") == severity) ids.insert(finding.at("id").get<std::string>());
    }
    return ids;
  }
  std::string all() const { return json.dump(1); }
};

Diagnosis doctor(const std::vector<std::string>& program, const Environment& extra = {}) {
  std::vector<std::string> arguments = {"doctor", "--json", "--"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  Diagnosis diagnosis;
  diagnosis.process = cupool(arguments, extra);
  diagnosis.json = nlohmann::json::parse(diagnosis.process.out, nullptr, false);
  EXPECT_TRUE(diagnosis.json.is_object()) << diagnosis.process.describe();
  if (!diagnosis.json.is_object()) throw std::runtime_error("no diagnosis");
  EXPECT_EQ(diagnosis.json.at("schema_version"), 1);
  EXPECT_EQ(diagnosis.json.at("works"), diagnosis.process.exit_code == 0);
  return diagnosis;
}

using Ids = std::set<std::string>;

// A copy of a probe with other bytes, in a folder of its own.
class ChangedProgram {
 public:
  explicit ChangedProgram(const std::function<void(std::string*)>& change,
                          const char* probe = "probe_runtime_shared") {
    copy_changed(preload::probe_path(probe), path(), change);
  }
  std::string path() const { return folder_.path() + "/program"; }

 private:
  ScratchFolder folder_;
};

TEST(Doctor, FindsTheRoutesOfEachProbe) {
  const struct {
    const char* probe;
    std::set<int> routes;
    const char* linkage;  // of the only runtime; "" if there is none
  } cases[] = {{"probe_runtime_shared", {3, 4}, "shared"},
               {"probe_runtime_static", {3}, "static"},
               {"probe_driver_linked", {1}, ""},
               {"probe_dlsym", {2}, ""},
               {"probe_getproc", {2, 3}, ""}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.probe);
    const Diagnosis diagnosis = doctor({preload::probe_path(one.probe)});
    EXPECT_EQ(diagnosis.process.exit_code, 0) << diagnosis.process.describe();
    EXPECT_EQ(diagnosis.json.at("cuda").at("routes"), one.routes) << diagnosis.all();
    const nlohmann::json& runtimes = diagnosis.json.at("cuda").at("runtimes");
    ASSERT_EQ(runtimes.size(), *one.linkage == '\0' ? 0u : 1u) << diagnosis.all();
    if (!runtimes.empty()) {
      EXPECT_EQ(runtimes.at(0).at("linkage"), one.linkage);
    }
    EXPECT_EQ(diagnosis.ids("obstacle"), Ids{});
    EXPECT_EQ(diagnosis.ids("warning"), Ids{});
  }
}

TEST(Doctor, FindsAStaticRuntimeByItsTextsWhereSymbolsAreStripped) {
  const Diagnosis diagnosis = doctor({program("cli_stripped_program")});
  const nlohmann::json& runtimes = diagnosis.json.at("cuda").at("runtimes");
  ASSERT_EQ(runtimes.size(), 1u) << diagnosis.all();
  EXPECT_EQ(runtimes.at(0).at("linkage"), "static");
  EXPECT_EQ(diagnosis.json.at("cuda").at("routes"), std::set<int>{3});
}

// What nvcc makes cannot start there.
TEST(Doctor, SaysThatTheSimulatedDeviceTakesNoProgramOfNvcc) {
  for (const char* name : {"cli_nvcc_shared_runtime_program", "cli_nvcc_static_runtime_program",
                           "cli_nvcc_gpu_code_program"}) {
    SCOPED_TRACE(name);
    const Diagnosis diagnosis = doctor({program(name)});
    EXPECT_EQ(diagnosis.process.exit_code, 1) << diagnosis.process.describe();
    EXPECT_EQ(diagnosis.ids("obstacle"), Ids{"simulated-device"}) << diagnosis.all();
    EXPECT_TRUE(preload::contains(diagnosis.all(), "-L${LD_LIBRARY_PATH%%:*} -lcudart -o program"))
        << diagnosis.all();
  }
}

TEST(Doctor, SaysTheVersionOfASharedRuntime) {
  const Diagnosis diagnosis = doctor({preload::probe_path("probe_runtime_shared")});
  const nlohmann::json& runtime = diagnosis.json.at("cuda").at("runtimes").at(0);
  EXPECT_EQ(runtime.at("version"), "13");
  EXPECT_EQ(runtime.at("file"), std::string(CUPOOL_TEST_SIM_FOLDER) + "/libcudart.so.13");
}

TEST(Doctor, ShowsDriverAndDevices) {
  const Diagnosis diagnosis = doctor({preload::probe_path("probe_dlsym")},
                                     {{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_POOL_IPC", "0"}});
  const nlohmann::json& driver = diagnosis.json.at("driver");
  EXPECT_EQ(driver.at("state"), "answered");
  EXPECT_EQ(driver.at("cuda_version"), "13.0");
  EXPECT_EQ(driver.at("context_events"), true);
  ASSERT_EQ(driver.at("devices").size(), 2u);
  EXPECT_EQ(driver.at("devices").at(1).at("memory_bytes"), 4294967296u);
  EXPECT_EQ(driver.at("devices").at(1).at("pools"), true);
  EXPECT_EQ(driver.at("devices").at(1).at("pools_shareable"), false);
  EXPECT_EQ(diagnosis.ids("note"), Ids{"no-pool-ipc"}) << diagnosis.all();
}

TEST(Doctor, ADriverWithoutPoolsOrContextEventsIsAWarning) {
  const std::string root = CUPOOL_TEST_SIM_ROOT;
  const std::string probe = preload::probe_path("probe_runtime_static");
  const Diagnosis old = doctor({probe}, {{"LD_LIBRARY_PATH", root + "/lib-no-pools"}});
  EXPECT_EQ(old.process.exit_code, 0);
  EXPECT_EQ(old.ids("warning"), (Ids{"no-context-events", "no-pools"})) << old.all();
  EXPECT_EQ(old.json.at("driver").at("cuda_version"), "11.1");
  const Diagnosis newer = doctor({probe}, {{"LD_LIBRARY_PATH", root + "/lib-no-ctx-event"}});
  EXPECT_EQ(newer.ids("warning"), Ids{"no-context-events"}) << newer.all();
  const Diagnosis device = doctor({probe}, {{"CUPOOL_SIM_POOLS", "0"}});
  EXPECT_EQ(device.ids("warning"), Ids{"no-pools"}) << device.all();
}

TEST(Doctor, ADriverThatIsNewerThanWhatIsKnownIsANote) {
  const std::string probe = preload::probe_path("probe_runtime_static");
  const Diagnosis known = doctor({probe}, {{"CUPOOL_SIM_DRIVER_VERSION", "13050"}});
  EXPECT_EQ(known.ids("note"), Ids{}) << known.all();
  const Diagnosis newer = doctor({probe}, {{"CUPOOL_SIM_DRIVER_VERSION", "13060"}});
  EXPECT_EQ(newer.process.exit_code, 0);
  EXPECT_EQ(newer.ids("note"), Ids{"newer-driver"}) << newer.all();
}

TEST(Doctor, ADriverThatIsMissingRefusesCrashesIsAnObstacle) {
  const std::string probe = preload::probe_path("probe_runtime_static");
  const Diagnosis none = doctor({probe}, {{"LD_LIBRARY_PATH", "/nonexistent"}});
  EXPECT_EQ(none.process.exit_code, 1);
  EXPECT_EQ(none.ids("obstacle"), Ids{"no-driver"}) << none.all();
  const Diagnosis refused =
      doctor({probe}, {{"CUPOOL_SIM_DEVICES", "0"}, {"CUDA_VISIBLE_DEVICES", "7"}});
  EXPECT_EQ(refused.process.exit_code, 1);
  EXPECT_EQ(refused.ids("obstacle"), Ids{"driver-refused"}) << refused.all();
  EXPECT_EQ(refused.json.at("driver").at("error"), 100);
  EXPECT_NE(refused.all().find("correct or unset CUDA_VISIBLE_DEVICES=7"), std::string::npos);
  const Diagnosis crashed = doctor({probe}, {{"CUPOOL_SIM_MODE", "nonsense"}});
  EXPECT_EQ(crashed.process.exit_code, 1);
  EXPECT_EQ(crashed.ids("obstacle"), Ids{"driver-broken"}) << crashed.all();
  EXPECT_EQ(crashed.json.at("driver").at("state"), "crashed");
}

TEST(Doctor, ADriverThatHangsIsGivenUp) {
  preload::Command command;
  command.argv = {program("cli_driver_probe_program"), "1"};
  command.environment = environment({{"LD_LIBRARY_PATH", program("hanging")}});
  command.limit = std::chrono::seconds(20);
  const ProcessResult result = preload::run(command);
  EXPECT_EQ(result.out, "no answer in 1 s\n") << result.describe();
}

TEST(Doctor, AProgramWithoutALoaderIsAnObstacle) {
  const ChangedProgram changed(drop_interpreter);
  const Diagnosis diagnosis = doctor({changed.path()});
  EXPECT_EQ(diagnosis.process.exit_code, 1);
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{"static"}) << diagnosis.all();
}

TEST(Doctor, AProgramForAnotherMachineIsAnObstacle) {
  const ChangedProgram machine([](std::string* bytes) { header_of(bytes)->e_machine = EM_RISCV; });
  EXPECT_EQ(doctor({machine.path()}).ids("obstacle"), Ids{"architecture"});
  const ChangedProgram narrow(
      [](std::string* bytes) { header_of(bytes)->e_ident[EI_CLASS] = ELFCLASS32; });
  const Diagnosis diagnosis = doctor({narrow.path()});
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{"architecture"});
  EXPECT_NE(diagnosis.all().find("32 bits; cupool for"), std::string::npos);
}

TEST(Doctor, MuslIsAnObstacle) {
  const ChangedProgram changed([](std::string* bytes) {
    const std::size_t at = bytes->find("/ld-linux");
    ASSERT_NE(at, std::string::npos);
    bytes->replace(at, 9, "/ld-musl-");
  });
  EXPECT_EQ(doctor({changed.path()}).ids("obstacle"), Ids{"musl"});
}

TEST(Doctor, AMissingLibraryIsAnObstacle) {
  const ChangedProgram changed(
      [](std::string* bytes) { replace_bytes(bytes, "libcuda.so.1", "libnone.so.7"); },
      "probe_driver_linked");
  const Diagnosis diagnosis = doctor({changed.path()});
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{"missing-library"}) << diagnosis.all();
  EXPECT_NE(diagnosis.all().find("libnone.so.7 is not found"), std::string::npos);
}

TEST(Doctor, AnAgentLibraryIsNoted) {
  const ChangedProgram changed(
      [](std::string* bytes) { replace_bytes(bytes, "libcuda.so.1", "libmpi.so.40"); },
      "probe_driver_linked");
  const Diagnosis diagnosis =
      doctor({changed.path()}, {{"LD_LIBRARY_PATH", std::string(CUPOOL_TEST_SIM_FOLDER) + ":" +
                                                        CUPOOL_TEST_PROBE_FOLDER + "/agents"}});
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{}) << diagnosis.all();
  EXPECT_EQ(diagnosis.ids("note").count("agent"), 1u) << diagnosis.all();
  EXPECT_EQ(diagnosis.json.at("cuda").at("agents"), std::vector<std::string>{"libmpi.so.40"});
  const nlohmann::json& modes = diagnosis.json.at("modes");
  EXPECT_EQ(modes.at("requested").at("free_mode"), "auto");
  EXPECT_EQ(modes.at("free_mode"), "auto");
  EXPECT_EQ(modes.at("backend"), "malloc");
  EXPECT_EQ(modes.at("reason"), "libmpi.so.40 is linked");
}

TEST(Doctor, ASetuidProgramOfAnotherUserIsAnObstacle) {
  const ChangedProgram changed([](std::string*) {});
  const bool root = getuid() == 0;  // only root can make a file somebody else's
  if (root) {
    ASSERT_EQ(chown(changed.path().c_str(), 1, 1), 0);
  }
  ASSERT_EQ(chmod(changed.path().c_str(), 04755), 0);
  const Diagnosis diagnosis = doctor({changed.path()});
  EXPECT_EQ(diagnosis.ids("obstacle"), root ? Ids{"secure-execution"} : Ids{}) << diagnosis.all();
}

TEST(Doctor, OtherPreloadsAreNamed) {
  const std::string probe = preload::probe_path("probe_runtime_static");
  const std::string before = environment()["LD_PRELOAD"];
  const std::string prefix = before.empty() ? "" : before + ":";
  const std::string cudart = std::string(CUPOOL_TEST_SIM_FOLDER) + "/libcudart.so.13";
  const Diagnosis hooking = doctor({probe}, {{"LD_PRELOAD", prefix + cudart}});
  EXPECT_EQ(hooking.ids("warning"), Ids{"preload-intercepts"}) << hooking.all();
  const Diagnosis absent = doctor({probe}, {{"LD_PRELOAD", prefix + "/no/such/library.so"}});
  EXPECT_EQ(absent.ids("warning"), Ids{"preload-unreadable"}) << absent.all();
  EXPECT_NE(absent.all().find("cannot be read: No such file or directory"), std::string::npos)
      << absent.all();
  const std::string harmless = std::string(CUPOOL_TEST_PROBE_FOLDER) + "/agents/libmpi.so.40";
  const Diagnosis other = doctor({probe}, {{"LD_PRELOAD", prefix + harmless}});
  EXPECT_EQ(other.ids("note"), Ids{"preload-other"}) << other.all();
  // cupool itself is no other.
  const Diagnosis own = doctor({probe}, {{"LD_PRELOAD", prefix + tested_library()}});
  EXPECT_EQ(own.json.at("findings").size(), 0u) << own.all();
}

TEST(Doctor, ALibraryThatTheLoaderRefusesIsAnObstacle) {
  const ScratchFolder folder;
  const std::string copy = folder.path() + "/libcupool.so";
  // As if made for a newer libc: it needs a library that is not there.
  copy_changed(tested_library(), copy,
               [](std::string* bytes) { replace_bytes(bytes, "libc.so.6", "libc.so.9"); });
  const Diagnosis diagnosis =
      doctor({preload::probe_path("probe_runtime_static")}, {{"CUPOOL_LIBRARY", copy}});
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{"preload-refused"}) << diagnosis.all();
}

TEST(Doctor, SettingsInTheEnvironmentAreJudged) {
  const std::string probe = preload::probe_path("probe_runtime_static");
  const Diagnosis off = doctor({probe}, {{"CUPOOL_ENABLE", "0"}});
  EXPECT_EQ(off.ids("obstacle"), Ids{"disabled"}) << off.all();
  for (const char* mode : {"off", "observe"}) {
    const Diagnosis unserved = doctor({probe}, {{"CUPOOL_MODE", mode}});
    EXPECT_EQ(unserved.ids("obstacle"), Ids{"disabled"}) << unserved.all();
    EXPECT_NE(unserved.all().find(std::string("CUPOOL_MODE=") + mode), std::string::npos);
  }
  const Diagnosis wrong = doctor({probe}, {{"CUPOOL_FREE_MOD", "sync"}});
  EXPECT_EQ(wrong.ids("warning"), Ids{"setting"}) << wrong.all();
  EXPECT_NE(wrong.all().find("Did you mean CUPOOL_FREE_MODE?"), std::string::npos);
}

TEST(Doctor, FollowsScriptsToTheirInterpreter) {
  const ScratchFolder folder;
  std::filesystem::copy_file(preload::probe_path("probe_dlsym"), folder.path() + "/python9.9");
  std::filesystem::create_symlink("python9.9", folder.path() + "/python9");
  const Environment path = {{"PATH", folder.path() + ":/usr/bin:/bin"}};
  const std::string script = folder.path() + "/train";
  for (const char* first : {"#!/usr/bin/env python9", "#!/usr/bin/env -S python9 -u",
                            "#! /usr/bin/env  -S A=b python9"}) {
    SCOPED_TRACE(first);
    write_script(script, std::string(first) + "\nprint()\n");
    const Diagnosis diagnosis = doctor({"train", "--epochs", "3"}, path);
    EXPECT_EQ(diagnosis.json.at("program").at("chain"),
              (std::vector<std::string>{script, folder.path() + "/python9.9"}));
    EXPECT_EQ(diagnosis.ids("note"), Ids{"python"}) << diagnosis.all();
  }
  const Diagnosis interpreter = doctor({"python9", "train"}, path);
  EXPECT_EQ(interpreter.ids("note"), Ids{"python"}) << interpreter.all();
  write_script(script, "#!/usr/bin/env -S -i python9\n");
  EXPECT_EQ(doctor({"train"}, path).ids("obstacle"), Ids{"empty-environment"});
  write_script(script, "#!/bin/sh\n");
  EXPECT_EQ(doctor({"train"}, path).ids("note"), Ids{"script"});
  write_script(script, "#!/no/such/interpreter\n");
  EXPECT_EQ(cupool({"doctor", script}).exit_code, 2);
  write_script(script, "#!" + script + "\n");
  EXPECT_EQ(cupool({"doctor", script}).exit_code, 2);
}

TEST(Doctor, AProgramThatIsNotThereIsBadUsage) {
  const ProcessResult absent = cupool({"doctor", "no-such-program"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_EQ(absent.err, "cupool: no-such-program: not found in PATH\n");
  EXPECT_EQ(cupool({"doctor"}).exit_code, 2);
  EXPECT_EQ(cupool({"doctor", "/tmp"}).exit_code, 2);
}

TEST(Doctor, PrintsAPageWithCures) {
  const std::string probe = preload::probe_path("probe_runtime_shared");
  const ProcessResult good = cupool({"doctor", probe});
  EXPECT_EQ(good.exit_code, 0) << good.describe();
  EXPECT_NE(good.out.find("route      4, "), std::string::npos) << good.out;
  EXPECT_NE(good.out.find("cupool will serve this program: cupool run " + probe + "\n"),
            std::string::npos)
      << good.out;
  const ProcessResult bad = cupool({"doctor", probe}, {{"CUPOOL_ENABLE", "0"}});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.out.find("obstacle: CUPOOL_ENABLE=0 turns cupool off\n"
                         "  -> unset CUPOOL_ENABLE\n"),
            std::string::npos)
      << bad.out;
  EXPECT_NE(bad.out.find("cupool will not serve this program.\n"), std::string::npos) << bad.out;
}

TEST(Doctor, RunsNothingOfTheProgram) {
  const ScratchFolder folder;
  const std::string script = folder.path() + "/script";
  write_script(script, "#!/bin/sh\ntouch " + folder.path() + "/ran\n");
  doctor({script});
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/ran"));
}

// The interpreter that a file names is executed by the kernel, and by who trusts its name.
TEST(Doctor, RunsNoLoaderThatTheFileNames) {
  const ScratchFolder folder;
  const std::string mark = folder.path() + "/ran";
  write_script(program("other_loader/ld-linux-x86-64.so.2"), "#!/bin/sh\ntouch " + mark + "\n");
  const Diagnosis diagnosis = doctor({program("cli_other_loader_program")});
  EXPECT_FALSE(std::filesystem::exists(mark)) << diagnosis.all();
  EXPECT_EQ(diagnosis.ids("warning"), Ids{"loader"}) << diagnosis.all();
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{}) << diagnosis.all();
  EXPECT_EQ(diagnosis.json.at("cuda").at("runtimes").size(), 1u) << diagnosis.all();
}

// The system's own loader runs what DT_AUDIT names, when it only lists too.
TEST(Doctor, RunsNoAuditorThatTheFileNames) {
  const ScratchFolder folder;
  const std::string mark = folder.path() + "/ran";
  const Diagnosis diagnosis =
      doctor({program("cli_audited_program")}, {{"CLI_AUDITOR_MARK", mark}});
  EXPECT_EQ(diagnosis.ids("obstacle"), Ids{}) << diagnosis.all();
  EXPECT_FALSE(std::filesystem::exists(mark)) << diagnosis.all();
}

TEST(Doctor, AFifoDoesNotHangIt) {
  const ScratchFolder folder;
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0755), 0);
  const ProcessResult named = cupool({"doctor", fifo});
  EXPECT_EQ(named.exit_code, 2) << named.describe();
  EXPECT_NE(named.err.find("not a regular file"), std::string::npos) << named.err;
  const std::string script = folder.path() + "/script";
  write_script(script, "#!" + fifo + "\n");
  EXPECT_EQ(cupool({"doctor", script}).exit_code, 2);
  EXPECT_EQ(cupool({"run", fifo}).exit_code, 126);
  // As a library that the program needs.
  std::filesystem::rename(fifo, folder.path() + "/libnone.so.7");
  const ChangedProgram needs(
      [](std::string* bytes) { replace_bytes(bytes, "libcuda.so.1", "libnone.so.7"); },
      "probe_driver_linked");
  const std::string paths = folder.path() + ":" + CUPOOL_TEST_SIM_FOLDER;
  EXPECT_EQ(doctor({needs.path()}, {{"LD_LIBRARY_PATH", paths}}).ids("obstacle"),
            Ids{"missing-library"});
}

}  // namespace
}  // namespace cli
