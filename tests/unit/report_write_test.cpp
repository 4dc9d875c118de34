// SPDX-License-Identifier: Apache-2.0
// Where reports go, and what happens if that place does not take them.
#include "report/write.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "child_process.h"
#include "fixed_snapshot.h"
#include "report/csv.h"
#include "report/json.h"
#include "report/prometheus.h"
#include "report/text.h"
#include "temporary_folder.h"

namespace cupool::report {
namespace {

using test::content_of;
using test::exit_code_of;  // a warning is given once in a process
using test::fixed_snapshot;
using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

class WriteReports : public testing::Test {
 protected:
  std::string to_stderr(const Destinations& destinations) {
    CaptureStderr();
    write_reports(snapshot_, destinations);
    return GetCapturedStderr();
  }

  // Of a child: this process then has its warnings before it.
  std::string to_childs_stderr(const Destinations& destinations) {
    const std::string out = folder_.file("stderr");
    EXPECT_EQ(exit_code_of([&] {
                const int fd = ::open(out.c_str(), O_WRONLY | O_CREAT, 0600);
                ::dup2(fd, STDERR_FILENO);
                write_reports(snapshot_, destinations);
              }),
              0);
    return content_of(out);
  }

  // Of before the process began.
  void write_older(const std::string& name, const std::string& content) const {
    const std::filesystem::file_time_type::duration year = std::chrono::hours(24 * 365);
    const std::string path = folder_.write(name, content);
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) - 10 * year);
  }

  const stats::Snapshot snapshot_ = fixed_snapshot();
  const std::string text_ = text_summary(snapshot_);
  const std::string json_ = json_report(snapshot_);
  test::TemporaryFolder folder_;
};

TEST_F(WriteReports, WithoutAFileGoToStandardError) {
  EXPECT_EQ(to_stderr({true, false, ""}), text_);
  EXPECT_EQ(to_stderr({false, true, ""}), json_);
  EXPECT_EQ(to_stderr({true, true, ""}), text_ + json_);
  EXPECT_EQ(to_stderr({false, false, ""}), "");
}

// docs/statistics.md, Ranks. The fixed snapshot is of rank 3.
TEST_F(WriteReports, ARankBesideTheFirstHasOneLineOnStandardError) {
  Destinations destinations;
  destinations.one_line_of_ranks = true;
  const std::string line = text_line(snapshot_);
  EXPECT_EQ(line,
            "cupool: rank 3, process 4242 on node17: 1,000,000 allocations (99.5 % from caches), "
            "1,000,010 frees (250 waited), at most 3.00 GiB held; the whole with "
            "CUPOOL_STATS_RANKS=all\n");
  EXPECT_EQ(to_stderr(destinations), line);
  destinations.json = true;
  EXPECT_EQ(to_stderr(destinations), line + json_) << "for programs, it is whole";
  destinations.json = false;
  stats::Snapshot running = snapshot_;
  running.number = 1;
  CaptureStderr();
  write_reports(running, destinations);
  EXPECT_EQ(GetCapturedStderr(), text_summary(running)) << "somebody has asked for it";
  for (const char* rank : {"", "0"}) {
    stats::Snapshot first = snapshot_;
    first.process.rank = rank;
    CaptureStderr();
    write_reports(first, destinations);
    EXPECT_EQ(GetCapturedStderr(), text_summary(first)) << rank;
  }
  destinations.file_pattern = "/nonexistent/folder/%r.txt";
  EXPECT_THAT(to_childs_stderr(destinations), HasSubstr(text_)) << "nothing is lost";
}

TEST_F(WriteReports, OneFormatHasTheFileAsNamed) {
  EXPECT_EQ(to_stderr({true, false, folder_.file("a")}), "");
  EXPECT_EQ(content_of(folder_.file("a")), text_);
  EXPECT_EQ(to_stderr({false, true, folder_.file("b")}), "");
  EXPECT_EQ(content_of(folder_.file("b")), json_);
}

TEST_F(WriteReports, BothFormatsNeverShareAFile) {
  write_reports(snapshot_, {true, true, folder_.file("run.log")});
  EXPECT_EQ(content_of(folder_.file("run.log")), text_);
  EXPECT_EQ(content_of(folder_.file("run.log.json")), json_);
  write_reports(snapshot_, {true, true, folder_.file("run.json")});
  EXPECT_EQ(content_of(folder_.file("run.json")), json_);
  EXPECT_EQ(content_of(folder_.file("run.txt")), text_);
}

TEST_F(WriteReports, SeveralFormatsHaveAFileEach) {
  const std::string csv = csv_report(snapshot_);
  const std::string prometheus = prometheus_report(snapshot_);
  write_reports(snapshot_, {true, true, folder_.file("run.log"), true, true});
  EXPECT_EQ(content_of(folder_.file("run.log")), text_);
  EXPECT_EQ(content_of(folder_.file("run.log.json")), json_);
  EXPECT_EQ(content_of(folder_.file("run.log.csv")), csv);
  EXPECT_EQ(content_of(folder_.file("run.log.prom")), prometheus);
  write_reports(snapshot_, {true, true, folder_.file("one.csv"), true, true});
  EXPECT_EQ(content_of(folder_.file("one.csv")), csv);
  EXPECT_EQ(content_of(folder_.file("one.txt")), text_);
  EXPECT_EQ(content_of(folder_.file("one.json")), json_);
  EXPECT_EQ(content_of(folder_.file("one.prom")), prometheus);
  write_reports(snapshot_, {false, true, folder_.file("two.log"), false, true});
  EXPECT_EQ(content_of(folder_.file("two.log.json")), json_);
  EXPECT_EQ(content_of(folder_.file("two.log.prom")), prometheus);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("two.log"))) << "nobody's without text";
}

// The textfile collector reads at any time: it must never see half of a file.
TEST_F(WriteReports, PrometheusFileIsReplacedByRenaming) {
  const std::string path = folder_.file("a.prom");
  write_older("a.prom", "old\n");
  const int before = ::open(path.c_str(), O_RDONLY);
  ASSERT_GE(before, 0);
  write_reports(snapshot_, {false, false, path, false, true});
  char text[16] = {};
  EXPECT_EQ(::read(before, text, sizeof text - 1), 4) << "who has the old one open keeps it";
  EXPECT_STREQ(text, "old\n");
  ::close(before);
  EXPECT_EQ(content_of(path), prometheus_report(snapshot_));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.file("")),
                          std::filesystem::directory_iterator()),
            1)
      << "nothing is left beside it";
}

TEST_F(WriteReports, PrometheusKeepsOneFileForAllSnapshots) {
  stats::Snapshot snapshot = snapshot_;
  snapshot.number = 2;
  write_reports(snapshot, {false, true, folder_.file("a.json"), false, true});
  EXPECT_EQ(content_of(folder_.file("a.prom")), prometheus_report(snapshot));
  EXPECT_EQ(content_of(folder_.file("a.2.json")), json_report(snapshot));
}

TEST_F(WriteReports, PrometheusDoesNotReplaceADevice) {
  const std::string fifo = folder_.file("fifo.prom");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_reports(snapshot_, {false, false, fifo, false, true});
  std::string got(65536, '\0');
  const ssize_t size = ::read(reader, got.data(), got.size());
  ::close(reader);
  ASSERT_GT(size, 0);
  EXPECT_EQ(got.substr(0, static_cast<std::size_t>(size)), prometheus_report(snapshot_));
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
}

TEST_F(WriteReports, TheFilesNameIsExpanded) {
  write_reports(snapshot_, {true, false, folder_.file("%p.txt")});
  EXPECT_EQ(content_of(folder_.file(std::to_string(::getpid()) + ".txt")), text_);
}

// A file that is written anew has one name for the life of the process.
TEST_F(WriteReports, TheTimeInTheNameIsThatOfTheProcessStart) {
  const test::ScopedVariable zone("TZ", "UTC");
  ::tzset();
  stats::Snapshot snapshot = snapshot_;
  write_reports(snapshot, {false, true, folder_.file("%t.prom"), false, true});
  snapshot.end_wall_ns += 60'000'000'000;
  snapshot.number = 1;
  write_reports(snapshot, {false, true, folder_.file("%t.prom"), false, true});
  EXPECT_EQ(content_of(folder_.file("20251120T155207.prom")), prometheus_report(snapshot));
  EXPECT_EQ(content_of(folder_.file("20251120T155207.json")), json_report(snapshot_));
  EXPECT_EQ(content_of(folder_.file("20251120T155207.1.json")), json_report(snapshot));
}

TEST_F(WriteReports, ASnapshotOfTheRunningProcessHasItsNumberInTheName) {
  stats::Snapshot snapshot = snapshot_;
  snapshot.number = 2;
  const std::string text = text_summary(snapshot);
  write_reports(snapshot, {true, true, folder_.file("run.log")});
  EXPECT_EQ(content_of(folder_.file("run.2.log")), text);
  EXPECT_EQ(content_of(folder_.file("run.2.log.json")), json_report(snapshot));
  write_reports(snapshot, {true, true, folder_.file("run.json")});
  EXPECT_EQ(content_of(folder_.file("run.2.json")), json_report(snapshot));
  EXPECT_EQ(content_of(folder_.file("run.2.txt")), text);
  ASSERT_TRUE(std::filesystem::create_directory(folder_.file("a.d")));
  write_reports(snapshot, {true, false, folder_.file("a.d/report")});
  EXPECT_EQ(content_of(folder_.file("a.d/report.2")), text);
  EXPECT_EQ(to_stderr({true, false, ""}), text_) << "the report at exit is not numbered";
}

TEST_F(WriteReports, AnOlderFileIsReplaced) {
  write_older("a", std::string(100'000, 'x'));
  write_reports(snapshot_, {true, false, folder_.file("a")});
  EXPECT_EQ(content_of(folder_.file("a")), text_);
}

TEST_F(WriteReports, AFileThatCannotBeWrittenIsWarnedOfOnceAndStandardErrorTakesAll) {
  const std::string bad = folder_.file("no/such/folder/report");
  const std::string got = to_childs_stderr({true, true, bad});
  const std::size_t first_line = got.find('\n') + 1;
  EXPECT_THAT(got.substr(0, first_line),
              testing::AllOf(HasSubstr("warning: cannot write CUPOOL_STATS_FILE " + bad),
                             HasSubstr("No such file or directory"), HasSubstr("standard error")));
  EXPECT_EQ(got.substr(first_line), text_ + json_);
}

TEST_F(WriteReports, WhatAnotherProcessReportedMeanwhileIsReplacedWithAWarning) {
  const std::string out = folder_.file("stderr");
  const std::string path = folder_.write("a", "of another process");
  EXPECT_EQ(exit_code_of([&] {
              const int fd = ::open(out.c_str(), O_WRONLY | O_CREAT, 0600);
              ::dup2(fd, STDERR_FILENO);
              write_reports(snapshot_, {false, true, path});
              write_reports(snapshot_, {false, true, path});
            }),
            0);
  EXPECT_EQ(content_of(path), json_);
  EXPECT_THAT(content_of(out),
              testing::AllOf(HasSubstr("CUPOOL_STATS_FILE " + path), HasSubstr("%p in the name")));
}

TEST_F(WriteReports, AFullDiskIsLikeABadFile) {
  EXPECT_THAT(to_childs_stderr({true, false, "/dev/full"}),
              testing::AllOf(HasSubstr("No space left"), HasSubstr(text_)));
}

TEST_F(WriteReports, AFifoWithoutReaderDoesNotHoldTheProgramBack) {
  const std::string fifo = folder_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(exit_code_of([&] {
              const int fd = ::open("/dev/null", O_WRONLY);
              ::dup2(fd, STDERR_FILENO);
              write_reports(snapshot_, {true, false, fifo});
            }),
            0);
}

TEST_F(WriteReports, AClosedPipeDoesNotEndTheProgram) {
  EXPECT_EQ(exit_code_of([&] {
              int ends[2];
              if (::pipe(ends) != 0) ::_exit(2);
              ::close(ends[0]);
              ::dup2(ends[1], STDERR_FILENO);
              write_reports(snapshot_, {true, true, ""});
            }),
            0)
      << "ended by SIGPIPE";
}

TEST_F(WriteReports, ALimitOnFilesDoesNotEndTheProgram) {
  const std::string path = folder_.file("a.prom");
  EXPECT_EQ(exit_code_of([&] {
              const rlimit limit{100, 100};
              const int fd = ::open("/dev/null", O_WRONLY);
              ::dup2(fd, STDERR_FILENO);
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
              write_reports(snapshot_, {false, false, path, false, true});
              sigset_t signals;
              if (::sigpending(&signals) != 0 || sigismember(&signals, SIGXFSZ) != 0) ::_exit(3);
              ::pthread_sigmask(SIG_BLOCK, nullptr, &signals);
              if (sigismember(&signals, SIGXFSZ) != 0) ::_exit(4);
            }),
            0)
      << "ended by SIGXFSZ, or it is left pending (3) or blocked (4)";
  EXPECT_FALSE(std::filesystem::exists(path)) << "half a file for the collector";
}

TEST_F(WriteReports, KeepErrno) {
  errno = EXDEV;
  write_reports(snapshot_, {true, true, folder_.file("a")});
  EXPECT_EQ(errno, EXDEV);
}

TEST_F(WriteReports, LeaveNoDescriptorOpen) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = open_descriptors();
  write_reports(snapshot_, {true, true, folder_.file("a")});
  EXPECT_EQ(open_descriptors(), before);
}

// Ranks share one standard error: each report must be one write, so that they do not mix.
TEST_F(WriteReports, StandardErrorGetsAReportInOneWrite) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_DIRECT), 0) << "packet mode: each write is read by itself";
  ASSERT_LT(text_.size(), 4096u) << "a packet holds a page at most";
  EXPECT_EQ(exit_code_of([&] {
              ::dup2(ends[1], STDERR_FILENO);
              write_reports(snapshot_, {true, false, ""});
            }),
            0);
  ::close(ends[1]);
  std::string packet(65536, '\0');
  const ssize_t got = ::read(ends[0], packet.data(), packet.size());
  ASSERT_GT(got, 0);
  EXPECT_EQ(packet.substr(0, static_cast<std::size_t>(got)), text_);
  ::close(ends[0]);
}

}  // namespace
}  // namespace cupool::report
