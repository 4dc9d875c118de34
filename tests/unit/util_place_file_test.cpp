// SPDX-License-Identifier: Apache-2.0
// Files that take the place of others: whole or not at all, wherever the name leads, and nobody
// else's.
#include "util/place_file.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "child_process.h"
#include "temporary_folder.h"

namespace cupool::util {
namespace {

using test::content_of;
using test::exit_code_of;

class PlaceFile : public testing::Test {
 protected:
  static constexpr std::uint64_t kAnyTime = 0;

  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.file("")),
                      std::filesystem::directory_iterator()));
  }
  static struct stat status_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status;
  }
  static void in_child(const std::function<void()>& body) { EXPECT_EQ(exit_code_of(body), 0); }

  // Placing a larger file fails as on a full disk.
  static void fail_for_lack_of_room(const std::string& path) {
    in_child([&] {
      const rlimit limit{100, 100};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      if (place_file(path, std::string(5000, 'x'), kAnyTime) != Placed::failed) ::_exit(1);
      if (errno != EFBIG) ::_exit(2);
    });
  }

  static void in_child_as(uid_t user, const std::function<void()>& body) {
    in_child([&] {
      if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0) ::_exit(100);
      if (::setresuid(user, user, user) != 0) ::_exit(101);
      body();
    });
  }

  // Whether this process may mount what no other sees: root may, others in a namespace of users.
  static bool has_mounts_of_its_own() {
    if (::unshare(CLONE_NEWNS) == 0) return true;
    const std::string user = "0 " + std::to_string(::getuid()) + " 1";
    const std::string group = "0 " + std::to_string(::getgid()) + " 1";
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
    return ::getuid() == 0;
  }

  static constexpr uid_t kUser = 54'321;  // nobody's numbers
  static constexpr uid_t kOther = 54'322;
  test::TemporaryFolder folder_;
};

TEST_F(PlaceFile, TakesTheNameOfAnOldOneThatStaysWhole) {
  const std::string path = folder_.write("a", "old");
  const int before = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written);
  char text[8] = {};
  EXPECT_EQ(::read(before, text, sizeof text), 3);
  EXPECT_STREQ(text, "old");
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(files(), 1u);
  ::close(before);
}

TEST_F(PlaceFile, KeepsTheModeOfAnOldOne) {
  const std::string path = folder_.write("a", "old");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  place_file(path, "new", UINT64_MAX);
  EXPECT_EQ(status_of(path).st_mode & 0777, 0640u);
}

// --- owners and other names ---

TEST_F(PlaceFile, KeepsTheOwnerOfAnOldOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const std::string path = folder_.write("a", "old");
  ASSERT_EQ(::chown(path.c_str(), kOther, kOther + 1), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const ino_t before = status_of(path).st_ino;
  EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written);
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(status_of(path).st_uid, kOther);
  EXPECT_EQ(status_of(path).st_gid, kOther + 1);
  EXPECT_EQ(status_of(path).st_mode & 0777, 0640u);
  EXPECT_NE(status_of(path).st_ino, before) << "replaced, not overwritten";
}

TEST_F(PlaceFile, AnOwnerThatCannotBeKeptStaysWithTheFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of others";
  const std::string path = folder_.write("a", "old and longer");
  ASSERT_EQ(::chown(path.c_str(), kOther, kOther), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(folder_.file("").c_str(), 0777), 0);
  const ino_t before = status_of(path).st_ino;
  in_child_as(kUser, [&] {
    if (place_file(path, "new", UINT64_MAX) != Placed::written) ::_exit(1);
  });
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(status_of(path).st_uid, kOther);
  EXPECT_EQ(status_of(path).st_ino, before);
  EXPECT_EQ(files(), 1u);
}

// What may not be written to but may be replaced: a report is worth more than its owner.
TEST_F(PlaceFile, AFileThatMayOnlyBeReplacedIsReplaced) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of others";
  const std::string path = folder_.write("a", "old");
  const std::string read_only = folder_.write("b", "old");
  ASSERT_EQ(::link(read_only.c_str(), folder_.file("c").c_str()), 0);
  ASSERT_EQ(::chown(path.c_str(), kOther, kOther), 0);
  ASSERT_EQ(::chown(read_only.c_str(), kUser, kUser), 0);
  ASSERT_EQ(::chmod(read_only.c_str(), 0444), 0);
  ASSERT_EQ(::chmod(folder_.file("").c_str(), 0777), 0);
  in_child_as(kUser, [&] {
    if (place_file(path, "new", UINT64_MAX) != Placed::written) ::_exit(1);
    if (place_file(read_only, "new", UINT64_MAX) != Placed::written) ::_exit(2);
  });
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(status_of(path).st_uid, kUser);
  EXPECT_EQ(content_of(read_only), "new");
  EXPECT_EQ(content_of(folder_.file("c")), "old");
  EXPECT_EQ(files(), 3u);
}

TEST_F(PlaceFile, AllNamesOfAFileShowTheNew) {
  const std::string path = folder_.write("a", "old");
  const std::string other = folder_.file("b");
  ASSERT_EQ(::link(path.c_str(), other.c_str()), 0);
  for (const std::string& content : {std::string(100'000, 'x'), std::string("short")}) {
    EXPECT_EQ(place_file(path, content, UINT64_MAX), Placed::written);
    EXPECT_EQ(content_of(path), content);
    EXPECT_EQ(content_of(other), content);
  }
  EXPECT_EQ(status_of(path).st_nlink, 2u);
  EXPECT_EQ(files(), 2u);
}

TEST_F(PlaceFile, TellsWhatAnotherProcessWroteToAFileWithSeveralNames) {
  const std::string path = folder_.file("a");
  EXPECT_EQ(place_file(path, "1", kAnyTime), Placed::written);
  ASSERT_EQ(::link(path.c_str(), folder_.file("b").c_str()), 0);
  EXPECT_EQ(place_file(path, "2", kAnyTime), Placed::written) << "it was our own";
  EXPECT_EQ(place_file(path, "3", kAnyTime), Placed::written) << "it was our own";
  in_child([&] { place_file(path, "other", kAnyTime); });
  EXPECT_EQ(place_file(path, "4", kAnyTime), Placed::replaced_others);
  EXPECT_EQ(content_of(folder_.file("b")), "4");
}

// A name in a folder like /tmp can be anybody's second name for a file of ours.
TEST_F(PlaceFile, InASharedFolderAnotherNameIsNotWrittenThrough) {
  const std::string victim = folder_.write("victim", "precious");
  ASSERT_EQ(::mkdir(folder_.file("shared").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder_.file("shared").c_str(), 01777), 0);
  const std::string path = folder_.file("shared/a");
  ASSERT_EQ(::link(victim.c_str(), path.c_str()), 0);
  EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written);
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(content_of(victim), "precious");
}

// As the kernel has it where fs.protected_symlinks is on; a name that was looked up by us is no
// link to it any more.
TEST_F(PlaceFile, InASharedFolderAStrangersLinkIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes links of others";
  const std::string victim = folder_.write("victim", "precious");
  const std::string own_file = folder_.write("own file", "old");
  const std::string shared = folder_.file("shared");
  ASSERT_EQ(::mkdir(shared.c_str(), 0700), 0);
  for (const std::string& path : {victim, own_file, folder_.file("")}) {
    ASSERT_EQ(::chown(path.c_str(), kUser, kUser), 0);
  }
  const std::string strangers = shared + "/strangers";
  const std::string own = shared + "/own";
  const std::string owners = shared + "/owners";
  std::filesystem::create_symlink(victim, strangers);
  std::filesystem::create_symlink(own_file, own);
  std::filesystem::create_symlink(own, owners);
  ASSERT_EQ(::lchown(strangers.c_str(), kOther, kOther), 0);
  ASSERT_EQ(::lchown(own.c_str(), kUser, kUser), 0);
  const auto write_to = [&](const std::string& path) {
    in_child_as(kUser, [&] {
      const Placed placed = place_file(path, "new", UINT64_MAX);
      if (placed == Placed::failed && errno != EACCES) ::_exit(1);
      if ((placed == Placed::failed) != (path == strangers)) ::_exit(2);
    });
  };
  ASSERT_EQ(::chmod(shared.c_str(), 01777), 0);
  write_to(strangers);
  EXPECT_EQ(content_of(victim), "precious");
  write_to(own);
  EXPECT_EQ(content_of(own_file), "new");
  ASSERT_TRUE(folder_.write("own file", "old") == own_file);
  write_to(owners);  // root's, whose folder it is
  EXPECT_EQ(content_of(own_file), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(strangers));
}

// --- no room ---

TEST_F(PlaceFile, AFullDiskDoesNotCostTheOldOneWithSeveralNames) {
  const std::string path = folder_.write("a", "old");
  ASSERT_EQ(::link(path.c_str(), folder_.file("b").c_str()), 0);
  fail_for_lack_of_room(path);
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(content_of(folder_.file("b")), "old");
}

// The disk itself: a small one, which only this process sees.
TEST_F(PlaceFile, ADiskThatIsReallyFullCostsNothingOld) {
  constexpr int kNoDisk = 77;
  const int code = exit_code_of([&] {
    const std::string disk = folder_.file("");
    if (!has_mounts_of_its_own()) ::_exit(kNoDisk);
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("none", disk.c_str(), "tmpfs", 0, "size=256k,mode=700") != 0) ::_exit(kNoDisk);
    const std::string old(100'000, 'o');
    const std::string alone = folder_.write("alone", old);
    const std::string named_twice = folder_.write("named twice", "old");
    if (::link(named_twice.c_str(), folder_.file("again").c_str()) != 0) ::_exit(1);
    if (place_file(alone, std::string(200'000, 'n'), kAnyTime) != Placed::failed) ::_exit(2);
    if (errno != ENOSPC || content_of(alone) != old) ::_exit(3);
    if (place_file(named_twice, std::string(200'000, 'n'), kAnyTime) != Placed::failed) ::_exit(4);
    if (errno != ENOSPC || content_of(named_twice) != "old") ::_exit(5);
    if (place_file(named_twice, std::string(100'000, 'n'), kAnyTime) == Placed::failed) ::_exit(6);
    if (content_of(folder_.file("again")) != std::string(100'000, 'n')) ::_exit(7);
    if (files() != 3) ::_exit(8);
  });
  if (code == kNoDisk) GTEST_SKIP() << "no mounts here";
  EXPECT_EQ(code, 0);
}

TEST_F(PlaceFile, AFullDiskDoesNotCostTheOldOne) {
  const std::string path = folder_.write("a", "old");
  fail_for_lack_of_room(path);
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(PlaceFile, ALinkStaysAndItsFileIsReplaced) {
  ASSERT_TRUE(std::filesystem::create_directory(folder_.file("d")));
  folder_.write("d/a", "old");
  std::filesystem::create_symlink("d/a", folder_.file("link"));
  std::filesystem::create_symlink(folder_.file("link"), folder_.file("link of link"));
  std::filesystem::create_symlink("d/none yet", folder_.file("dangling"));
  EXPECT_EQ(place_file(folder_.file("link of link"), "new", UINT64_MAX), Placed::written);
  EXPECT_EQ(place_file(folder_.file("dangling"), "made", UINT64_MAX), Placed::written);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("link of link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("dangling")));
  EXPECT_EQ(content_of(folder_.file("d/a")), "new");
  EXPECT_EQ(content_of(folder_.file("d/none yet")), "made");
}

// The new one's own name is shorter than any that could be too long.
TEST_F(PlaceFile, ANameMayBeAsLongAsTheFileSystemTakes) {
  for (const std::size_t length : {243u, 244u, 250u, 255u}) {
    const std::string path = folder_.file(std::string(length, 'n'));
    EXPECT_EQ(place_file(path, "made", UINT64_MAX), Placed::written) << length;
    EXPECT_EQ(content_of(path), "made");
    const ino_t before = status_of(path).st_ino;
    EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written) << length;
    EXPECT_EQ(content_of(path), "new");
    EXPECT_NE(status_of(path).st_ino, before) << "replaced, not overwritten";
  }
  EXPECT_EQ(place_file(folder_.file(std::string(256, 'n')), "text", kAnyTime), Placed::failed);
  EXPECT_EQ(errno, ENAMETOOLONG);
  EXPECT_EQ(files(), 4u);
}

// Nor does a path that is nearly too long leave room for another name in its folder.
TEST_F(PlaceFile, APathMayBeAsLongAsTheKernelTakes) {
  std::string folder = folder_.file("");
  folder.pop_back();
  while (folder.size() < PATH_MAX - 250u) {
    folder += "/" + std::string(200, 'f');
    ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0) << folder.size();
  }
  folder += "/" + std::string(PATH_MAX - 6 - folder.size(), 'f');
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0) << folder.size();
  const std::string path = folder + "/abc";
  ASSERT_EQ(path.size(), PATH_MAX - 1u);
  EXPECT_EQ(place_file(path, "made", UINT64_MAX), Placed::written);
  EXPECT_EQ(content_of(path), "made");
  EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written);
  EXPECT_EQ(content_of(path), "new");
}

// Its name can be known before: a link there must lead nowhere.
TEST_F(PlaceFile, TheNewOneIsMadeUnderANameThatNothingHad) {
  const std::string victim = folder_.write("victim", "precious");
  const std::string path = folder_.file("a");
  const std::string taken = folder_.file("cupool." + std::to_string(::getpid()) + ".tmp");
  std::filesystem::create_symlink(victim, taken);
  EXPECT_EQ(place_file(path, "new", UINT64_MAX), Placed::written);
  EXPECT_EQ(content_of(victim), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(taken));
  EXPECT_EQ(content_of(path), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
}

TEST_F(PlaceFile, WhatIsNoFileIsWrittenTo) {
  EXPECT_EQ(place_file("/dev/null", "text", kAnyTime), Placed::written);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const std::string fifo = folder_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(place_file(fifo, "text", kAnyTime), Placed::failed);
  EXPECT_EQ(errno, ENXIO) << "nobody reads it, and nobody waits";
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_EQ(place_file(folder_.file(""), "text", kAnyTime), Placed::failed);
}

// What the program has written to it is not lost, whatever stands behind.
TEST_F(PlaceFile, ANamedDescriptorIsWrittenTo) {
  const std::string path = folder_.file("out");
  std::filesystem::create_symlink("/dev/stdout", folder_.file("link"));
  in_child([&] {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, STDOUT_FILENO);
    if (::write(STDOUT_FILENO, "before ", 7) != 7) ::_exit(1);
    for (const std::string& name : {std::string("/dev/stdout"), std::string("/proc/self/fd/1"),
                                    "/dev/fd/" + std::to_string(file), folder_.file("link")}) {
      if (place_file(name, "text ", kAnyTime) != Placed::written) ::_exit(2);
    }
    if (::write(STDOUT_FILENO, "after", 5) != 5) ::_exit(3);
  });
  EXPECT_EQ(content_of(path), "before text text text text after");
}

TEST_F(PlaceFile, TellsWhatAnotherProcessWroteMeanwhile) {
  const std::string path = folder_.file("a");
  EXPECT_EQ(place_file(path, "1", kAnyTime), Placed::written) << "there was none";
  EXPECT_EQ(place_file(path, "2", kAnyTime), Placed::written) << "it was our own";
  in_child([&] { place_file(path, "other", kAnyTime); });
  EXPECT_EQ(place_file(path, "3", UINT64_MAX), Placed::written) << "it was there before";
  in_child([&] { place_file(path, "other", kAnyTime); });
  EXPECT_EQ(place_file(path, "4", kAnyTime), Placed::replaced_others);
  EXPECT_EQ(content_of(path), "4");
  EXPECT_EQ(files(), 1u);
}

// Two write at once: each reads whole files alone, and all but the first replace one.
TEST_F(PlaceFile, AtOnceNothingIsMixed) {
  const std::string path = folder_.file("a");
  constexpr int kRounds = 200;
  const auto write = [&](char letter) {
    const std::string content(static_cast<std::size_t>(20'000 + letter * 100), letter);
    for (int i = 0; i < kRounds; ++i) {
      if (place_file(path, content, kAnyTime) == Placed::failed) ::_exit(1);
      const std::string got = content_of(path);
      if (got.empty() ||
          got != std::string(static_cast<std::size_t>(20'000 + got[0] * 100), got[0]))
        ::_exit(2);
    }
  };
  const pid_t other = ::fork();
  if (other == 0) {
    write('b');
    ::_exit(0);
  }
  in_child([&] { write('a'); });
  int status = 0;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace cupool::util
