// The ELF reader: right about files that it knows, and unharmed by any other.
#include "cli/elf_file.h"

#include <gtest/gtest.h>

#include <random>

#include "cli/cuda_use.h"
#include "cli/dependencies.h"
#include "cli/diagnosis.h"
#include "cli/program_file.h"
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

TEST(Dependencies, ReadsTheLoadersList) {
  const std::vector<Dependency> list = parse_dependencies(
      "\tlinux-vdso.so.1 (0x00007ffd)\n"
      "\tlibcudart.so.13 => /a folder/libcudart.so.13 (0x00007f15)\n"
      "\tlibnone.so => not found\n"
      "\t/lib64/ld-linux-x86-64.so.2 (0x00007f15)\n"
      "\tstatically linked\n");
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].name, "libcudart.so.13");
  EXPECT_EQ(list[0].path, "/a folder/libcudart.so.13");
  EXPECT_EQ(list[1].name, "libnone.so");
  EXPECT_EQ(list[1].path, "");
  EXPECT_EQ(list[2].path, "/lib64/ld-linux-x86-64.so.2");
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
