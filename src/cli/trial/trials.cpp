// SPDX-License-Identifier: Apache-2.0
// Output and errors go to files: a pipe could block a program that writes much.
#include "cli/trial/trials.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "cli/page/story.h"
#include "cli/shell/exit_code.h"
#include "cli/shell/input.h"
#include "cli/shell/settings_arguments.h"
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

// Reads the reports of a folder and removes them.
std::vector<Report> take_reports(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Report> reports;
  for (const std::string& path : paths) {
    reports.push_back(read_report(path));
    std::filesystem::remove(path);
  }
  return reports;
}

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

}  // namespace

ScratchFolder::ScratchFolder() {
  const char* base = ::getenv("TMPDIR");
  std::string pattern =
      std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/cupool-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw UsageError("cannot create a folder " + pattern + ": " + std::strerror(errno) +
                     ". Set TMPDIR to a folder that can be written");
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Trial run_trial(const std::vector<std::string>& program, const Way& way,
                const std::vector<std::string>& files, const ScratchFolder& scratch,
                RunProgress* progress) {
  Trial trial;
  progress->begin();
  const std::string output = scratch.path() + "/output";
  const std::string errors = scratch.path() + "/errors";
  {
    const File to_output(output, kOpenForOutput);
    const File to_errors(errors, kOpenForOutput);
    const NoInput no_input;
    ChildStart start;
    start.argv = program;
    start.environment = way.environment;
    if (start.environment.get("CUPOOL_STATS_FILE") != nullptr) {
      start.environment.set("CUPOOL_STATS_FILE", scratch.path() + "/report-%h-%r-%p.json");
    }
    start.standard_output = to_output.descriptor();
    start.standard_error = to_errors.descriptor();
    // Without a terminal the command sleeps while the program runs.
    if (progress->is_shown()) start.each_second = [progress] { progress->tick(); };
    trial.end = run_child(start);
  }
  progress->end();
  trial.output = content_of(output);
  trial.errors = content_of(errors);
  for (const std::string& file : files) {
    FileState state;
    state.content = content_of(file, &state.exists);
    trial.files.push_back(std::move(state));
  }
  trial.reports = take_reports(scratch.path());
  return trial;
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
  const ScratchFolder scratch;
  std::vector<std::size_t> order;
  for (std::size_t run = 0; run < static_cast<std::size_t>(rounds) * ways.size(); ++run) {
    const std::size_t turn = run % ways.size();
    order.push_back(run / ways.size() % 2 == 0 ? turn : ways.size() - 1 - turn);
  }
  RunProgress progress(names_of(ways), order);
  for (const std::size_t way : order) {
    trials[way].push_back(run_trial(program, ways[way], files, scratch, &progress));
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
  environment.set("CUPOOL_STATS", "json");
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

std::uint64_t highest_held(const std::vector<Trial>& trials) {
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

bool served_other_kinds(const std::vector<Trial>& trials) {
  const auto served = [](const DeviceReport& device) {
    return device.counter(stats::Counter::host_served_total) != 0 ||
           device.counter(stats::Counter::own_async_served_total) != 0 ||
           device.gauge(stats::key_of(stats::Gauge::default_pool_idle_bytes)).peak > 0;
  };
  return std::any_of(trials.begin(), trials.end(), [&](const Trial& trial) {
    return std::any_of(trial.reports.begin(), trial.reports.end(), [&](const Report& report) {
      return std::any_of(report.devices.begin(), report.devices.end(), served);
    });
  });
}

}  // namespace cupool::cli
