// SPDX-License-Identifier: Apache-2.0
// Output and errors go to files: a pipe could block a program that writes much.
#include "cli/trial/trials.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/page/story.h"
#include "cli/shell/exit_code.h"
#include "cli/shell/input.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/shell/simulated_device.h"
#include "config/settings.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// Closes its descriptor at the end of its scope.
class File {
 public:
  File(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags, 0600)) {
    if (descriptor_ < 0) throw UsageError("cannot open " + path + ": " + std::strerror(errno));
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string content_of(const std::string& path, bool* exists = nullptr) {
  std::string content;
  std::string reason;
  // Any size is valid: the program wrote it. A pipe is not a result.
  const bool read = read_regular_file(path, INT64_MAX, &content, &reason);
  if (exists != nullptr) *exists = read;
  return content;
}

// Reads the reports of a folder whose names begin so, and removes all.
std::vector<Report> take_reports(const std::string& folder, const std::string& begin) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Report> reports;
  for (const std::string& path : paths) {
    if (path.compare(0, begin.size(), begin) == 0) reports.push_back(read_report(path));
    std::filesystem::remove(path);
  }
  return reports;
}

// What shows that a file was written: its inode, size and the time of its last change, which no
// program sets back (as `cp -p` does that of its content).
struct Stamp {
  struct stat status {};  // before what fills it
  bool exists = false;

  explicit Stamp(const std::string& file) : exists(::stat(file.c_str(), &status) == 0) {}
  bool equals(const Stamp& other) const {
    return exists == other.exists && status.st_dev == other.status.st_dev &&
           status.st_ino == other.status.st_ino && status.st_size == other.status.st_size &&
           status.st_ctim.tv_sec == other.status.st_ctim.tv_sec &&
           status.st_ctim.tv_nsec == other.status.st_ctim.tv_nsec;
  }
  // Whether a write now could get the time that the file has.
  bool is_of_now() const {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return exists &&
           (status.st_ctim.tv_sec > now.tv_sec ||
            (status.st_ctim.tv_sec == now.tv_sec && status.st_ctim.tv_nsec >= now.tv_nsec));
  }
};

// The kernel's time of files advances by some milliseconds at once.
std::vector<Stamp> stamps_of(const std::vector<std::string>& files) {
  std::vector<Stamp> stamps;
  for (const std::string& file : files) {
    stamps.emplace_back(file);
    for (int i = 0; i < 20 && stamps.back().is_of_now(); ++i) ::usleep(1000);
  }
  return stamps;
}

bool are_equal(const Text& a, const Text& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

// Output may be large, and is mostly the same in all runs: one copy of it is kept.
void share_texts(const Trial& earlier, Trial* trial) {
  if (are_equal(earlier.output, trial->output)) trial->output = earlier.output;
  for (std::size_t i = 0; i < trial->files.size(); ++i) {
    const Text& content = earlier.files[i].content;
    if (are_equal(content, trial->files[i].content)) trial->files[i].content = content;
  }
}

constexpr std::size_t kLongestErrors = std::size_t{1} << 20;

constexpr int kOpenForOutput = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;

// Empties our own standard input for its scope: all runs need the same input, and interactive input
// cannot be repeated.
class NoInput {
 public:
  NoInput() : saved_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) {
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0) return;
    ::dup2(nothing, STDIN_FILENO);
    ::close(nothing);
  }
  ~NoInput() {
    if (saved_ < 0) return;
    ::dup2(saved_, STDIN_FILENO);
    ::close(saved_);
  }
  NoInput(const NoInput&) = delete;
  NoInput& operator=(const NoInput&) = delete;

 private:
  int saved_;
};

bool is_interrupted(const ChildEnd& end) {
  return end.start_code != 0 || end.signal == SIGINT || end.signal == SIGTERM ||
         end.signal == SIGHUP;
}

// A handler, since a program inherits signals that are ignored, but no handlers.
void go_on(int /*signal*/) {}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::fflush(stdout);
  const char* base = ::getenv("TMPDIR");
  std::string pattern =
      std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/cupool-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw UsageError("cannot create a folder " + pattern + ": " + std::strerror(errno) +
                     ". Set TMPDIR to a folder that can be written");
  }
  path_ = pattern;
  struct sigaction action {};
  action.sa_handler = go_on;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, nullptr, &before_);
  if (before_.sa_handler == SIG_DFL) ::sigaction(SIGPIPE, &action, nullptr);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  ::sigaction(SIGPIPE, &before_, nullptr);
}

Trial run_trial(const std::vector<std::string>& program, const Way& way,
                const std::vector<std::string>& files, const ScratchFolder& scratch,
                RunProgress* progress) {
  static int runs = 0;
  const std::string number = std::to_string(++runs);
  Trial trial;
  const std::vector<Stamp> before = stamps_of(files);
  progress->begin();
  // Of their own for each run: a process that was left behind may still write.
  const std::string output = scratch.path() + "/output-" + number;
  const std::string errors = scratch.path() + "/errors-" + number;
  const std::string reports = scratch.path() + "/report-" + number + "-";
  {
    const File to_output(output, kOpenForOutput);
    const File to_errors(errors, kOpenForOutput);
    const NoInput no_input;
    ChildStart start;
    start.argv = program;
    start.environment = way.environment;
    if (start.environment.get("CUPOOL_STATS_FILE") != nullptr) {
      start.environment.set("CUPOOL_STATS_FILE", reports + "%h-%r-%p.json");
    }
    start.standard_output = to_output.descriptor();
    start.standard_error = to_errors.descriptor();
    start.sees_orphans = true;
    // Without a terminal the command sleeps while the program runs.
    if (progress->is_shown()) start.each_second = [progress] { progress->tick(); };
    trial.end = run_child(start);
  }
  progress->end();
  trial.output = std::make_shared<const std::string>(content_of(output));
  trial.errors = content_of(errors);
  if (trial.errors.size() > kLongestErrors) {
    trial.errors.erase(0, trial.errors.size() - kLongestErrors);
  }
  ::unlink(output.c_str());
  ::unlink(errors.c_str());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Stamp after(files[i]);
    FileState state;
    state.exists = after.exists;
    if (state.exists && !after.equals(before[i])) {
      bool read = false;
      std::string content = content_of(files[i], &read);
      if (read) state.content = std::make_shared<const std::string>(std::move(content));
    }
    trial.files.push_back(std::move(state));
  }
  trial.reports = take_reports(scratch.path(), reports);
  return trial;
}

void require_regular(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const Stamp now(file);
    if (!now.exists || S_ISREG(now.status.st_mode)) continue;
    throw UsageError("--file " + file +
                     ": not a regular file. Name a file that the program writes");
  }
}

std::vector<std::string> names_of(const std::vector<Way>& ways) {
  std::vector<std::string> names;
  for (const Way& way : ways) names.push_back(way.name);
  return names;
}

std::vector<std::vector<Trial>> alternate(const std::vector<std::string>& program,
                                          const std::vector<Way>& ways, int rounds,
                                          const std::vector<std::string>& files) {
  std::vector<std::vector<Trial>> trials(ways.size());
  require_regular(files);
  const ScratchFolder scratch;
  std::vector<std::size_t> order;
  for (std::size_t run = 0; run < static_cast<std::size_t>(rounds) * ways.size(); ++run) {
    const std::size_t turn = run % ways.size();
    order.push_back(run / ways.size() % 2 == 0 ? turn : ways.size() - 1 - turn);
  }
  RunProgress progress(names_of(ways), order);
  for (const std::size_t way : order) {
    trials[way].push_back(run_trial(program, ways[way], files, scratch, &progress));
    for (const std::vector<Trial>& of_way : trials) {
      if (!of_way.empty()) share_texts(of_way.front(), &trials[way].back());
    }
    if (is_interrupted(trials[way].back().end)) break;
  }
  return trials;
}

const ChildEnd* interrupted_end(const std::vector<std::vector<Trial>>& trials) {
  for (const std::vector<Trial>& of_way : trials) {
    for (const Trial& trial : of_way) {
      if (is_interrupted(trial.end)) return &trial.end;
    }
  }
  return nullptr;
}

int hand_on_interrupted(const ChildEnd& end) {
  if (end.signal != 0) {
    std::fprintf(stderr, "cupool: signal %d ended the program, and with it these runs\n",
                 end.signal);
  }
  return hand_on(end);
}

Environment environment_without() {
  Environment environment = Environment::inherited();
  environment.unset("CUPOOL_MODE");
  const char* preload = environment.get("LD_PRELOAD");
  if (preload == nullptr) return environment;
  std::string kept;
  std::string text = preload;
  std::replace(text.begin(), text.end(), ' ', ':');
  for (const std::string_view part : util::split(text, ':')) {
    const std::string_view name = part.substr(part.rfind('/') + 1);
    if (part.empty() || name.substr(0, 12) == "libcupool.so") continue;
    kept += (kept.empty() ? "" : ":") + std::string(part);
  }
  if (kept.empty()) {
    environment.unset("LD_PRELOAD");
  } else {
    environment.set("LD_PRELOAD", kept);
  }
  return environment;
}

Environment environment_with(const std::vector<std::pair<std::string, std::string>>& variables) {
  Environment environment = preloaded_environment(variables);
  for (const std::string& name : report_settings()) environment.unset(name);
  environment.set("CUPOOL_STATS", "json");
  // Those of the arguments are right: these are the environment's, told here since the program's
  // standard error is not shown.
  std::vector<std::string> warnings;
  config::parse(std::as_const(environment).pointers().data(), &warnings, nullptr);
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "cupool: %s\n", util::printable(warning).c_str());
  }
  environment.set("CUPOOL_TRIAL", "1");
  environment.set("CUPOOL_STATS_FILE", "to be replaced by run_trial");
  return environment;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

Spread wall_time(const std::vector<Trial>& trials) {
  std::vector<double> times;
  times.reserve(trials.size());
  for (const Trial& trial : trials) times.push_back(static_cast<double>(trial.end.wall_ns));
  return spread_of(times);
}

std::string spread_text(const Spread& nanoseconds) {
  const auto text = [](double value) {
    return util::format_duration_ns(static_cast<std::uint64_t>(value));
  };
  return text(nanoseconds.median) + " (" + text(nanoseconds.lowest) + " to " +
         text(nanoseconds.highest) + ")";
}

std::uint64_t highest_gauge(const std::vector<Trial>& trials, const std::string& gauge) {
  std::uint64_t highest = 0;
  for (const Trial& trial : trials) {
    for (const Report& report : trial.reports) {
      for (const DeviceReport& device : report.devices) {
        highest = std::max(highest, bytes_of(device.gauge(gauge).peak));
      }
    }
  }
  return highest;
}

std::uint64_t highest_memory(const std::vector<Trial>& trials) {
  std::uint64_t highest = 0;
  for (const Trial& trial : trials) {
    for (const Report& report : trial.reports) {
      for (const DeviceReport& device : report.devices) {
        highest = std::max(highest, peak_memory(device));
      }
    }
  }
  return highest;
}

namespace {

template <typename Test>
bool any_report(const std::vector<Trial>& trials, const Test& test) {
  return std::any_of(trials.begin(), trials.end(), [&](const Trial& trial) {
    return std::any_of(trial.reports.begin(), trial.reports.end(), test);
  });
}

}  // namespace

bool held_memory(const std::vector<Trial>& trials) {
  return any_report(trials, [](const Report& report) {
    return std::any_of(report.devices.begin(), report.devices.end(),
                       [](const DeviceReport& device) {
                         return device.gauge(stats::Gauge::held_bytes).peak > 0 ||
                                (device.pool && device.pool->reserved_high > 0);
                       });
  });
}

bool served_other_kinds(const std::vector<Trial>& trials) {
  return any_report(trials, [](const Report& report) {
    return report.counter(stats::Counter::host_served_total) != 0 ||
           report.counter(stats::Counter::own_async_served_total) != 0;
  });
}

bool kept_default_pool(const std::vector<Trial>& trials) {
  return any_report(trials, [](const Report& report) {
    const bool off = std::any_of(report.settings.begin(), report.settings.end(),
                                 [](const SettingReport& setting) {
                                   return setting.name == "CUPOOL_ASYNC" && setting.value == "off";
                                 });
    return !off && report.counter(stats::Counter::own_async_malloc_calls_total) != 0;
  });
}

void tell_simulated(const std::vector<Trial>& trials) {
  const bool simulated = std::any_of(
      trials.begin(), trials.end(), [](const Trial& trial) { return is_simulated(trial.reports); });
  if (simulated) std::puts(kSimulatedTimes);
}

std::string no_report_in_words(const ChildEnd& end, const std::vector<std::string>& program) {
  const std::string none = "No report of cupool: ";
  if (end.signal != 0) return none + "a process that a signal ends writes no report.";
  if (end.leaves_processes) {
    return none +
           "processes that the program started still ran at its end, and report at theirs. Have it "
           "wait for them.";
  }
  return none +
         "no process allocated GPU memory under it and came to its end. One that becomes another "
         "program (exec), or that a signal ends, writes none. To see whether cupool reaches the "
         "program: cupool doctor " +
         shell_words(program);
}

}  // namespace cupool::cli
