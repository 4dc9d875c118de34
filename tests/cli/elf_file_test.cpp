// SPDX-License-Identifier: Apache-2.0
// The ELF reader: right about files that it knows, and unharmed by any other.
#include "cli/doctor/elf_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <sstream>

#include "cli/doctor/cuda_use.h"
#include "cli/doctor/dependencies.h"
#include "cli/doctor/diagnosis.h"
#include "cli/doctor/program_file.h"
#include "harness.h"
#include "patched_file.h"

namespace cupool::cli {
namespace {

using ::cli::copy_changed;
using ::cli::header_of;

const std::string kProbe = preload::probe_path("probe_driver_linked");

TEST(ElfFile, ReadsAProgram) {
  ElfFile elf;
  std::string reason;
  ASSERT_EQ(read_elf(kProbe, &elf, &reason), ElfStatus::read) << reason;
  EXPECT_EQ(elf.bits, 64);
  EXPECT_NE(elf.interpreter.find("/ld-linux"), std::string::npos);
  EXPECT_TRUE(elf.dynamic);
  EXPECT_EQ(elf.soname, "");
  EXPECT_NE(std::find(elf.needed.begin(), elf.needed.end(), "libcuda.so.1"), elf.needed.end());
  EXPECT_TRUE(elf.uses("cuMemAlloc_v2"));
  EXPECT_FALSE(elf.defines("cuMemAlloc_v2"));
}

TEST(ElfFile, ReadsALibrary) {
  ElfFile elf;
  std::string reason;
  const std::string path = std::string(CUPOOL_TEST_SIM_FOLDER) + "/libcudart.so.13";
  ASSERT_EQ(read_elf(path, &elf, &reason), ElfStatus::read) << reason;
  EXPECT_EQ(elf.interpreter, "");
  EXPECT_EQ(elf.soname, "libcudart.so.13");
  EXPECT_TRUE(elf.defines("cudaMalloc"));
}

TEST(ElfFile, SaysWhatIsNoElf) {
  ElfFile elf;
  std::string reason;
  EXPECT_EQ(read_elf("/no/such/file", &elf, &reason), ElfStatus::unreadable);
  EXPECT_EQ(reason, "No such file or directory");
  EXPECT_EQ(read_elf("/tmp", &elf, &reason), ElfStatus::unreadable);
  EXPECT_EQ(read_elf("/dev/null", &elf, &reason), ElfStatus::unreadable);
  const preload::ScratchFolder folder;
  ::cli::write_script(folder.path() + "/script", "#!/bin/sh\n");
  EXPECT_EQ(read_elf(folder.path() + "/script", &elf, &reason), ElfStatus::not_elf);
  ::cli::write_script(folder.path() + "/short",
                      "\x7f"
                      "ELF");
  EXPECT_EQ(read_elf(folder.path() + "/short", &elf, &reason), ElfStatus::broken);
}

TEST(ElfFile, FindsTextsInConstantsAndAcrossPieces) {
  EXPECT_EQ(find_texts(kProbe, {"libcuda.so.1", "no such text in there"}),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(find_texts("/no/such/file", {"a"}), std::vector<bool>{false});
}

// A file that was cut anywhere is read without a step beyond its end (the sanitizers watch).
TEST(ElfFile, SurvivesEveryCut) {
  const preload::ScratchFolder folder;
  const std::string path = folder.path() + "/cut";
  const std::string whole = preload::read_file(kProbe);
  std::size_t broken = 0;
  for (std::size_t length = 4; length < whole.size(); length += whole.size() / 100 + 1) {
    copy_changed(kProbe, path, [length](std::string* bytes) { bytes->resize(length); });
    ElfFile elf;
    std::string reason;
    broken += read_elf(path, &elf, &reason) == ElfStatus::broken ? 1 : 0;
    find_texts(path, {"libcuda.so.1"});
    gpu_compiler_release(path);
  }
  // The table of sections stands at the end, so every cut takes some of it.
  EXPECT_GE(broken, 95u);
}

TEST(ElfFile, SurvivesWrongBytes) {
  const preload::ScratchFolder folder;
  const std::string path = folder.path() + "/wrong";
  const std::string whole = preload::read_file(kProbe);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    copy_changed(kProbe, path, [&](std::string* bytes) {
      const Elf64_Ehdr header = *header_of(bytes);
      // Mostly where offsets and lengths stand: the headers and the table of sections.
      const std::size_t places[] = {0, sizeof header, header.e_shoff, bytes->size() / 2};
      for (int i = 0; i < 8; ++i) {
        const std::size_t at = places[random() % 4] + random() % 900;
        if (at >= 4 && at < bytes->size()) (*bytes)[at] = static_cast<char>(random());
      }
    });
    ElfFile elf;
    std::string reason;
    read_elf(path, &elf, &reason);
    find_texts(path, {"libcuda.so.1"});
    gpu_compiler_release(path);
  }
}

// A cache of ld.so with these entries, the last field a variant's processor.
std::string cache_of(const std::vector<std::array<std::string, 3>>& entries) {
  const auto put = [](std::string* to, std::uint64_t value, std::size_t bytes) {
    to->append(reinterpret_cast<const char*>(&value), bytes);
  };
  std::string cache = "glibc-ld.so.cache1.1";
  put(&cache, entries.size(), 4);
  cache.append(24, '\0');
  std::string texts;
  const std::size_t texts_at = 48 + entries.size() * 24;
  for (const auto& [name, path, variant] : entries) {
    put(&cache, 0x0303, 4);
    put(&cache, texts_at + texts.size(), 4);
    texts += name + '\0';
    put(&cache, texts_at + texts.size(), 4);
    texts += path + '\0';
    put(&cache, 0, 4);
    put(&cache, variant.empty() ? 0 : 1, 8);
  }
  return cache + texts;
}

TEST(Dependencies, ReadsTheLoadersCache) {
  const std::string bytes =
      cache_of({{"liba.so", "/v3/liba.so", "v3"}, {"liba.so", "/lib/liba.so", ""}});
  const std::vector<Dependency> list = parse_loader_cache("older table" + bytes);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].name, "liba.so");
  EXPECT_EQ(list[0].path, "/lib/liba.so");
  EXPECT_TRUE(parse_loader_cache("").empty());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    parse_loader_cache(bytes.substr(0, length));
  }
  std::string many = bytes;
  many[20] = many[21] = many[22] = many[23] = '\xff';
  EXPECT_TRUE(parse_loader_cache(many).empty());
}

// What the system's loader lists for files that can be trusted is what reading them finds.
TEST(Dependencies, FindsWhatTheLoaderFinds) {
  for (const char* name : {"probe_driver_linked", "probe_runtime_shared", "probe_runtime_static"}) {
    SCOPED_TRACE(name);
    const std::string path = preload::probe_path(name);
    ElfFile elf;
    std::string reason;
    ASSERT_EQ(read_elf_dynamic(path, &elf, &reason), ElfStatus::read) << reason;
    ASSERT_TRUE(is_system_loader(elf.interpreter));
    ChildStart start;
    start.argv = {elf.interpreter, "--list", path};
    start.environment = Environment::inherited();
    start.environment.set("LD_LIBRARY_PATH", CUPOOL_TEST_SIM_FOLDER);
    start.environment.unset("LD_PRELOAD");
    std::set<std::string> listed;
    std::istringstream lines(run_captured(start).standard_output);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t arrow = line.find(" => ");
      if (arrow == std::string::npos) continue;
      listed.insert(line.substr(arrow + 4, line.rfind(" (0x") - arrow - 4));
    }
    std::set<std::string> found;
    for (const Dependency& library : find_dependencies(path, elf, start.environment)) {
      if (library.name.compare(0, 2, "ld") != 0) found.insert(library.path);
    }
    EXPECT_EQ(found, listed);
  }
}

TEST(Dependencies, OnlyTheSystemsOwnLoaderIsTrusted) {
  EXPECT_TRUE(only_root_can_change("/bin/sh"));
  EXPECT_FALSE(is_system_loader("/bin/sh"));
  EXPECT_FALSE(only_root_can_change("/bin"));
  EXPECT_FALSE(only_root_can_change("/no/such/file"));
  const preload::ScratchFolder folder;
  const std::string loader = folder.path() + "/ld-linux-x86-64.so.2";
  ::cli::write_script(loader, "#!/bin/sh\n");
  EXPECT_TRUE(is_glibc_loader(loader));
  EXPECT_FALSE(is_system_loader(loader));
  EXPECT_FALSE(only_root_can_change(loader));  // below /tmp, where anybody may put files
}

TEST(ElfFile, NamesWithoutAnEndAreCut) {
  const preload::ScratchFolder folder;
  const std::string path = folder.path() + "/program";
  copy_changed(kProbe, path, [](std::string* bytes) {
    const std::size_t at = bytes->find("libcuda.so.1");
    ASSERT_NE(at, std::string::npos);
    std::replace(bytes->begin() + static_cast<std::ptrdiff_t>(at), bytes->end(), '\0', 'x');
  });
  ElfFile elf;
  std::string reason;
  read_elf_dynamic(path, &elf, &reason);
  for (const std::string& name : elf.needed) EXPECT_LE(name.size(), 4096u);
}

TEST(CudaUse, ReadsVersionsFromFileNames) {
  EXPECT_EQ(library_version("libcudart.so.13.0.96"), "13.0.96");
  EXPECT_EQ(library_version("libcudart.so.11"), "11");
  EXPECT_EQ(library_version("libcudart.so"), "");
}

TEST(ProgramFile, ReadsFirstLines) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(interpreter_of("#!/bin/sh\nexit"), Words{"/bin/sh"});
  EXPECT_EQ(interpreter_of("#! /usr/bin/env  python3 -u \nx"),
            (Words{"/usr/bin/env", "python3 -u"}));
  EXPECT_EQ(interpreter_of("#!/bin/sh"), Words{"/bin/sh"});
  EXPECT_EQ(interpreter_of("#!\n/bin/sh"), Words{});
  EXPECT_EQ(interpreter_of("#!   "), Words{});
  EXPECT_EQ(interpreter_of("#"), Words{});
  EXPECT_EQ(interpreter_of(""), Words{});
}

TEST(SecureExecution, FollowsTheKernel) {
  constexpr uid_t user = 1000;
  constexpr gid_t group = 1000;
  const auto reason = [](const FileRights& rights, uid_t uid = 1000) {
    return secure_execution_reason(rights, uid, group);
  };
  EXPECT_EQ(reason({0755, 0, 0, false, false}), "");
  EXPECT_EQ(reason({04755, 0, 0, false, false}), "the file is setuid");
  EXPECT_EQ(reason({04755, user, 0, false, false}), "");
  EXPECT_EQ(reason({02755, 0, 0, false, false}), "the file is setgid");
  EXPECT_EQ(reason({02745, 0, 0, false, false}), "");  // no right to execute for the group
  EXPECT_EQ(reason({02755, 0, group, false, false}), "");
  EXPECT_EQ(reason({0755, 0, 0, true, false}), "the file carries capabilities");
  EXPECT_EQ(reason({0755, 0, 0, true, false}, 0), "");
  EXPECT_EQ(reason({06755, 0, 0, true, true}), "");  // mounted nosuid
}

}  // namespace
}  // namespace cupool::cli
