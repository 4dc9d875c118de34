// SPDX-License-Identifier: Apache-2.0
// Messages: what a line looks like, where it goes, and that a fork or a bad file never hurts.
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "child_process.h"
#include "temporary_folder.h"

namespace cupool::log {
namespace {

using test::content_of;
using test::exit_code_of;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

std::string prefix(const char* level) {
  return "cupool[" + std::to_string(::getpid()) + "] " + level + ": ";
}

class Log : public testing::Test {
 protected:
  void SetUp() override { configure(Level::warn, nullptr); }
  void TearDown() override { configure(Level::warn, nullptr); }
  TemporaryFolder folder_;
};

TEST_F(Log, ALineNamesProcessAndLevel) {
  CaptureStderr();
  CUPOOL_LOG(warn, "pool of device %d: %s", 3, "full");
  CUPOOL_LOG(error, "no");
  EXPECT_EQ(GetCapturedStderr(),
            prefix("warning") + "pool of device 3: full\n" + prefix("error") + "no\n");
}

TEST_F(Log, BracesAndPercentInArgumentsAreText) {
  CaptureStderr();
  CUPOOL_LOG(warn, "%s", "{} {0} %d");
  EXPECT_EQ(GetCapturedStderr(), prefix("warning") + "{} {0} %d\n");
}

TEST_F(Log, ValuesFromOutsideCommandNoTerminal) {
  CaptureStderr();
  CUPOOL_LOG(warn, "cannot write %s", "a\x1b]0;title\x07\nforged: line");
  EXPECT_EQ(GetCapturedStderr(), prefix("warning") + "cannot write a?]0;title??forged: line\n");
}

TEST_F(Log, SaysNothingBeyondTheLevelAndDoesNotEvaluate) {
  int evaluated = 0;
  CaptureStderr();
  CUPOOL_LOG(info, "%d", ++evaluated);
  EXPECT_EQ(GetCapturedStderr(), "");
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Log, EachLevelIncludesTheMoreSevere) {
  const std::vector<Level> levels = {Level::error, Level::warn, Level::info, Level::debug,
                                     Level::trace};
  for (std::size_t i = 0; i < levels.size(); ++i) {
    configure(levels[i], nullptr);
    for (std::size_t j = 0; j < levels.size(); ++j) EXPECT_EQ(enabled(levels[j]), j <= i);
  }
  configure(Level::off, nullptr);
  EXPECT_FALSE(enabled(Level::error));
  EXPECT_FALSE(enabled(Level::off));
}

TEST_F(Log, AWarningOnceIsGivenOnceByEachPlace) {
  CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    CUPOOL_WARN_ONCE("first %d", i);
    CUPOOL_WARN_ONCE("second %d", i);
  }
  EXPECT_EQ(GetCapturedStderr(),
            prefix("warning") + "first 0\n" + prefix("warning") + "second 0\n");
}

TEST_F(Log, AWarningOnceThatNobodySawIsNotSpent) {
  const auto warn = [] { CUPOOL_WARN_ONCE("seen"); };
  configure(Level::off, nullptr);
  warn();
  configure(Level::warn, nullptr);
  CaptureStderr();
  warn();
  EXPECT_EQ(GetCapturedStderr(), prefix("warning") + "seen\n");
}

TEST_F(Log, KeepsErrno) {
  CaptureStderr();
  configure(Level::warn, "/nonexistent/folder/log");
  errno = EXDEV;
  CUPOOL_LOG(warn, "text");
  EXPECT_EQ(errno, EXDEV);
  GetCapturedStderr();
}

TEST_F(Log, ATooLongTextIsCut) {
  CaptureStderr();
  CUPOOL_LOG(warn, "%s", std::string(10000, 'x').c_str());
  EXPECT_EQ(GetCapturedStderr(), prefix("warning") + std::string(2000, 'x') + "\n");
}

TEST_F(Log, AFileTakesTheMessagesAndIsAppendedTo) {
  const std::string path = folder_.write("log", "before\n");
  configure(Level::info, path.c_str());
  CaptureStderr();
  CUPOOL_LOG(info, "one");
  CUPOOL_LOG(info, "two");
  EXPECT_EQ(GetCapturedStderr(), "");
  EXPECT_EQ(content_of(path), "before\n" + prefix("info") + "one\n" + prefix("info") + "two\n");
}

TEST_F(Log, NoFileIsMadeBeforeAMessage) {
  const std::string path = folder_.file("log");
  configure(Level::warn, path.c_str());
  CUPOOL_LOG(debug, "not written");
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST_F(Log, AFileThatCannotBeWrittenIsReportedOnceAndMessagesGoOn) {
  const std::string path = folder_.file("no/such/folder/log");
  configure(Level::warn, path.c_str());
  CaptureStderr();
  CUPOOL_LOG(warn, "one");
  CUPOOL_LOG(warn, "two");
  EXPECT_EQ(GetCapturedStderr(), prefix("warning") + "cannot write CUPOOL_LOG_FILE " + path +
                                     ": No such file or directory; using standard error\n" +
                                     prefix("warning") + "one\n" + prefix("warning") + "two\n");
}

TEST_F(Log, AClosedPipeOnStandardErrorDoesNotEndTheProgram) {
  const auto write = [] {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(2);
    ::close(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    CUPOOL_LOG(warn, "into a closed pipe");
  };
  EXPECT_EQ(exit_code_of(write), 0) << "ended by SIGPIPE";
}

// --- destinations that take nothing ---

// A pipe without room, whose ends belong to this process; non-blocking for whoever has them.
class FullPipe {
 public:
  explicit FullPipe(const std::string& path) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    end_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    const std::string page(4096, 'f');
    while (::write(end_, page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(errno, EAGAIN);
  }
  ~FullPipe() { ::close(end_); }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  int end() const { return end_; }
  std::string drain() const {
    std::string all(1 << 20, '\0');
    std::size_t size = 0;
    ssize_t got = 0;
    while ((got = ::read(end_, all.data() + size, all.size() - size)) > 0) {
      size += static_cast<std::size_t>(got);
    }
    all.resize(size);
    return all;
  }

 private:
  int end_ = -1;
};

double seconds_of(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// One wait is two seconds long.
TEST_F(Log, AFullFifoIsWaitedForOnceUntilItTakesALineAgain) {
  const FullPipe fifo(folder_.file("fifo"));
  configure(Level::warn, folder_.file("fifo").c_str());
  CaptureStderr();
  EXPECT_LT(seconds_of([] {
              for (int i = 0; i < 20; ++i) CUPOOL_LOG(warn, "line %d", i);
            }),
            3.0);
  const std::string instead = GetCapturedStderr();
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(instead, HasSubstr(prefix("warning") + "line " + std::to_string(i) + "\n"));
  }
  fifo.drain();
  CUPOOL_LOG(warn, "taken");
  EXPECT_EQ(fifo.drain(), prefix("warning") + "taken\n");

  // Once it has taken one, it is waited for again: a reader that is slow loses nothing.
  std::string page(4096, 'f');
  while (::write(fifo.end(), page.data(), page.size()) > 0) {
  }
  std::string drained;  // with the line, if that is there before the pipe is empty
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    drained = fifo.drain();
  });
  CUPOOL_LOG(warn, "patience");
  reader.join();
  EXPECT_THAT(drained + fifo.drain(), testing::EndsWith(prefix("warning") + "patience\n"));
}

TEST_F(Log, SeveralThreadsWaitForAFullFifoTogether) {
  const FullPipe fifo(folder_.file("fifo"));
  configure(Level::warn, folder_.file("fifo").c_str());
  CaptureStderr();
  EXPECT_LT(seconds_of([] {
              std::vector<std::thread> threads;
              for (int t = 0; t < 4; ++t) {
                threads.emplace_back([] {
                  for (int i = 0; i < 5; ++i) CUPOOL_LOG(warn, "line");
                });
              }
              for (std::thread& thread : threads) thread.join();
            }),
            3.0);
  GetCapturedStderr();
}

TEST_F(Log, AFullStandardErrorIsWaitedForOnce) {
  const FullPipe pipe(folder_.file("fifo"));
  const auto write = [&] {
    ::dup2(pipe.end(), STDERR_FILENO);
    const double seconds = seconds_of([] {
      for (int i = 0; i < 10; ++i) CUPOOL_LOG(warn, "line %d", i);
    });
    if (seconds >= 3.0) ::_exit(1);
  };
  EXPECT_EQ(exit_code_of(write), 0) << "waited for each line";
}

TEST_F(Log, NoStandardErrorIsNoTrouble) {
  const auto write = [] {
    ::close(STDERR_FILENO);
    CUPOOL_LOG(warn, "nowhere");
  };
  EXPECT_EQ(exit_code_of(write), 0);
}

TEST_F(Log, LinesOfSeveralThreadsDoNotMix) {
  const std::string path = folder_.file("log");
  configure(Level::warn, path.c_str());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) CUPOOL_LOG(warn, "%s", std::string(200, 'y').c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < 400; ++i) expected += prefix("warning") + std::string(200, 'y') + "\n";
  EXPECT_EQ(content_of(path), expected);
}

// Contract 11: fork. Other threads write all the time, so some forks fall into a locked logger.
TEST_F(Log, AForkedChildWritesWhileTheParentsThreadsWrite) {
  configure(Level::warn, folder_.file("log.%p").c_str());
  CUPOOL_LOG(warn, "first");  // the fork handler is registered with the first message
  std::atomic<bool> stop{false};
  std::atomic<int> writing{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      CUPOOL_LOG(warn, "parent");
      ++writing;
      while (!stop.load()) CUPOOL_LOG(warn, "parent");
    });
  }
  // The address sanitizer's heap, which a thread that starts uses, is not made ready for a fork.
  while (writing.load() != 2) std::this_thread::yield();
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // a child that hangs is ended, and counts as failed
      CUPOOL_LOG(warn, "child");
      ::_exit(0);
    }
    ASSERT_EQ(exit_code_of(child), 0) << "fork " << i;
    EXPECT_EQ(content_of(folder_.file("log." + std::to_string(child))),
              "cupool[" + std::to_string(child) + "] warning: child\n");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cupool::log
