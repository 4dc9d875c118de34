// SPDX-License-Identifier: Apache-2.0
// One process per batch of seeds. The batch determines its settings, so that a seed is enough to
// reproduce it.
#include "supervisor.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

extern char** environ;

namespace cupool::property {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBatch = 100;
constexpr auto kHang = std::chrono::seconds(60);  // without a new program
constexpr auto kReplayLimit = std::chrono::seconds(20);
constexpr auto kShrinkLimit = std::chrono::seconds(60);

bool one_each(const Options& options) {
  return options.lane || options.host || options.wide;
}

struct Outcome {
  bool failed = false;
  std::uint64_t seed = 0;  ///< the program that was running
  std::string reason;
};

std::string temporary_file(const char* what) {
  static std::atomic<unsigned> files{0};
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/cupool-property-" +
         std::to_string(getpid()) + "-" + std::to_string(files++) + "." + what;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> environment_of(const Options& options, std::uint64_t seed) {
  std::vector<std::string> variables = surroundings_of(options, seed).variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "CUPOOL_", 7) != 0 && std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) {
      variables.emplace_back(*entry);
    }
  }
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t spawn(const Options& options, std::uint64_t seed, std::vector<std::string> arguments,
            const std::string& output) {
  std::vector<std::string> variables = environment_of(options, seed);
  arguments.insert(arguments.begin(), "/proc/self/exe");
  if (!options.forgets.empty()) {
    arguments.push_back("--forgets");
    arguments.push_back(options.forgets);
  }
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = -1;
  posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

// The failure, or "". `still_alive` tells whether a silent process may continue.
template <typename MayGoOn>
std::string await(pid_t pid, const MayGoOn& may_go_on) {
  if (pid < 0) return "the process could not be started";
  int status = 0;
  for (unsigned naps = 0; waitpid(pid, &status, WNOHANG) == 0; ++naps) {
    usleep(naps < 50 ? 200 : 2000);
    if (naps % 64 != 63 || may_go_on()) continue;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return "it hangs: nothing has happened for long, and no circle of waits was proven";
  }
  if (WIFSIGNALED(status)) return "it died of signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return "";
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// The last line with a seed, "at SEED", and the reason, if the process wrote one. After a
// sanitizer's report the process continues to its end: the seed at the report counts.
Outcome read_output(const std::string& output, const std::string& how) {
  Outcome outcome;
  std::istringstream lines(contents(output));
  std::string rest;
  bool complained = false;
  for (std::string line; std::getline(lines, line);) {
    complained = complained || has(line, "WARNING: ThreadSanitizer");
    if (line.rfind("at ", 0) == 0) {
      if (complained) continue;
      outcome.seed = std::strtoull(line.c_str() + 3, nullptr, 10);
      rest.clear();
    } else if (line.rfind("failed: ", 0) == 0) {
      outcome.reason = line.substr(8);
    } else if (rest.size() < 6000) {
      rest += line + "\n";
    }
  }
  outcome.failed = !how.empty();
  if (outcome.failed && outcome.reason.empty()) outcome.reason = how + "\n" + rest;
  return outcome;
}

// Ended early once `stop`: its outcome does not matter any more.
Outcome run_batch(const Options& options, std::uint64_t first, std::uint64_t count,
                  const std::atomic<bool>& stop) {
  const std::string output = temporary_file("log");
  const pid_t pid =
      spawn(options, first, {"--work", std::to_string(first), std::to_string(count)}, output);
  off_t size = -1;
  Clock::time_point grown = Clock::now();
  const std::string how = await(pid, [&] {
    std::ifstream file(output, std::ios::ate);
    const off_t now = file.tellg();
    if (now != size) {
      size = now;
      grown = Clock::now();
    }
    return !stop && Clock::now() - grown < kHang;
  });
  const Outcome outcome = read_output(output, how);
  unlink(output.c_str());
  return outcome;
}

std::string run_alone(const Options& options, const Program& program) {
  const std::string path = temporary_file("program");
  const std::string output = temporary_file("log");
  save(program, path);
  const pid_t pid = spawn(options, program.seed, {"--replay", path}, output);
  const Clock::time_point end = Clock::now() + kReplayLimit;
  const std::string how = await(pid, [&] { return Clock::now() < end; });
  const Outcome outcome = read_output(output, how);
  unlink(path.c_str());
  unlink(output.c_str());
  return outcome.failed ? outcome.reason : "";
}

// Delta debugging: omits ever smaller parts while the rest still fails.
void shrink(const Options& options, Program program, const std::string& first_reason) {
  const Clock::time_point end = Clock::now() + kShrinkLimit;
  // Concurrent threads may need several attempts.
  const unsigned tries = program.concurrent ? 5 : 1;
  std::string reason = first_reason;
  const auto fails = [&](const Program& candidate) {
    for (unsigned i = 0; i < tries; ++i) {
      const std::string found = run_alone(options, candidate);
      if (found.empty()) continue;
      reason = found;
      return true;
    }
    return false;
  };
  if (!fails(program)) {
    std::printf("alone it does not fail again; all of it:\n%s", readable(program).c_str());
    return;
  }
  std::size_t part = (program.operations.size() + 1) / 2;
  while (part != 0 && Clock::now() < end) {
    bool smaller = false;
    for (std::size_t at = 0; at < program.operations.size() && Clock::now() < end;) {
      Program candidate = program;
      const auto begin = candidate.operations.begin() + static_cast<std::ptrdiff_t>(at);
      const std::size_t length = std::min(part, candidate.operations.size() - at);
      candidate.operations.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (fails(candidate)) {
        program = candidate;
        smaller = true;
      } else {
        at += part;
      }
    }
    if (!smaller || part > program.operations.size()) part /= 2;
  }
  std::printf("shrunk to %zu operations: %s\n%s", program.operations.size(), reason.c_str(),
              readable(program).c_str());
}

Machinery machinery_of(const Surroundings& surroundings) {
  Machinery machinery;
  for (const std::string& variable : surroundings.variables) {
    if (variable.rfind("CUPOOL_SIM_MEMORY=", 0) == 0) {
      machinery.device_bytes = std::strtoull(variable.c_str() + 18, nullptr, 10) << 20;
    }
    if (variable == "CUPOOL_SIM_DEVICES=2") machinery.devices = 2;
    if (variable == "CUPOOL_TEST_HOST=1") machinery.host = true;
    if (variable.rfind("CUPOOL_TEST_WIDE=", 0) == 0) {
      machinery.wide = true;
      machinery.theme = variable.substr(17);
    }
  }
  return machinery;
}

}  // namespace

std::uint64_t end_of_batch(const Options& options, std::uint64_t seed) {
  if (one_each(options)) return seed + 1;
  return (seed / kBatch + 1) * kBatch;
}

Surroundings surroundings_of(const Options& options, std::uint64_t seed) {
  // Mixed, so that every combination occurs, and near batches differ.
  std::uint64_t dice = (one_each(options) ? seed : seed / kBatch + 1) * 0x9e3779b97f4a7c15u;
  dice ^= dice >> 29;
  const auto pick = [&](std::initializer_list<const char*> values) {
    const std::size_t index = (dice >> 8) % values.size();
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return std::string(values.begin()[index]);
  };
  Surroundings result;
  const auto set = [&](const std::string& name, const std::string& value) {
    if (value.empty()) return;
    result.variables.push_back(name + "=" + value);
    result.words += " " + name + "=" + value;
  };
  const auto set_for_all = [&] {
    set("CUPOOL_TEST_MUTATION", options.mutation);
    std::string preload = options.sanitizer_runtime;
    if (!options.library.empty()) preload += (preload.empty() ? "" : ":") + options.library;
    if (!preload.empty()) result.variables.push_back("LD_PRELOAD=" + preload);
    result.variables.push_back("CUPOOL_SIM_JUDGE=report");
    result.variables.push_back("CUPOOL_SIM_DEADLOCK_MS=2000");
  };
  if (options.library.empty()) result.variables.push_back("CUPOOL_TEST_ALONE=1");
  if (options.soaks()) {  // as users run it, with all that takes note of calls
    set("CUPOOL_FREE_MODE", options.free_mode);
    set("CUPOOL_ASYNC", options.async);
    set("CUPOOL_SIM_MEMORY", "128M");
    set("CUPOOL_SIM_DEVICES", options.host ? "1" : "2");
    set("CUPOOL_STATS", "json");
    set("CUPOOL_STATS_FILE", "/dev/null");
    set("CUPOOL_DECAY_MS", "20");
    set_for_all();
    return result;
  }
  const std::string mode = pick({"auto", "auto", "ordered", "sync"});
  set("CUPOOL_FREE_MODE", options.free_mode.empty() ? mode : options.free_mode);
  set("CUPOOL_ASYNC", options.async);
  set("CUPOOL_SIM_MEMORY", pick({"64M", "128M", "256M"}));
  set("CUPOOL_MAX_PENDING", pick({"", "64K", "2M", "16M", "100%"}));
  set("CUPOOL_BACKEND", pick({"", "", "", "", "malloc"}));
  set("CUPOOL_POOL", pick({"", "", "", "default"}));
  set("CUPOOL_MAX_CACHED", pick({"", "", "", "1M"}));
  const std::string devices = pick({"", "", "2"});
  set("CUPOOL_SIM_DEVICES", options.wide ? "2" : devices);
  // A driver that has the function but refuses it: contexts are synchronised instead of fences.
  const std::string refusal = "cuCtxRecordEvent:*=801";
  const bool refused = pick({"", "", "", "", "", "refused"}) == "refused";
  if (options.mutation.empty() && options.forgets.empty()) {
    if (refused) set("CUPOOL_SIM_FAIL", refusal);
    set("CUPOOL_DECAY_MS", pick({"", "", "1", "4"}));
    set("CUPOOL_POOL_START", pick({"first", "first", "first", "background"}));
    if (!options.lane) set("CUPOOL_LANE", pick({"", "0"}));
  } else {
    set("CUPOOL_POOL_START", "first");  // to find faults soon
    if (!options.lane) set("CUPOOL_LANE", "0");
  }
  if (options.mutation == "synchronises-into-capture") {
    set("CUPOOL_SIM_FAIL", refusal);
  }
  if (options.lane) result.variables.push_back("CUPOOL_TEST_LANE=1");
  if (options.host) {
    result.variables.push_back("CUPOOL_TEST_HOST=1");
    set("CUPOOL_HOST_MAX_CACHED", pick({"", "", "1M", "100%"}));
  }
  if (options.wide) result.variables.push_back("CUPOOL_TEST_WIDE=" + options.theme);
  result.variables.push_back("CUPOOL_STATS=off");
  set_for_all();
  return result;
}

int start_soak(const Options& options) {
  std::vector<std::string> arguments = {"property_programs",
                                        "--soak-here",
                                        "--first",
                                        std::to_string(options.soak.first),
                                        "--soak",
                                        std::to_string(options.soak.seconds),
                                        "--soak-rounds",
                                        std::to_string(options.soak.in_rounds)};
  if (options.host) arguments.emplace_back("--host");
  std::vector<std::string> variables = environment_of(options, options.first);
  execve("/proc/self/exe", pointers_to(arguments).data(), pointers_to(variables).data());
  std::perror("execve");
  return 2;
}

int supervise(const Options& options) {
  const Clock::time_point began = Clock::now();
  std::printf("programs %llu to %llu\n", static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(options.first + options.count - 1));
  std::mutex mutex;
  std::uint64_t next = options.first;
  std::uint64_t done = 0;
  std::vector<Outcome> failures;
  const std::uint64_t end = options.first + options.count;
  const auto enough = [&] { return failures.size() >= (options.expect_fault.empty() ? 3u : 1u); };
  std::atomic<bool> noticed{false};  // the fault that was to be
  const auto work = [&] {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      if (next >= end || enough()) return;
      const std::uint64_t first = next;
      next = std::min(end, end_of_batch(options, first));
      const std::uint64_t count = next - first;
      lock.unlock();
      const Outcome outcome = run_batch(options, first, count, noticed);
      lock.lock();
      if (noticed) return;
      done += outcome.failed && outcome.seed >= first ? outcome.seed - first + 1 : count;
      const bool passed_over =
          outcome.failed && !has(outcome.reason, options.expect_fault) &&
          std::any_of(options.pass_over.begin(), options.pass_over.end(),
                      [&](const std::string& words) { return has(outcome.reason, words); });
      if (outcome.failed && !passed_over) failures.push_back(outcome);
      noticed = !options.expect_fault.empty() && !failures.empty();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.jobs; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& failure : failures) {
    const Surroundings surroundings = surroundings_of(options, failure.seed);
    std::printf("seed %llu failed with%s\n%s\n", static_cast<unsigned long long>(failure.seed),
                surroundings.words.c_str(), failure.reason.c_str());
    if (options.shrink) {
      shrink(options, generate(failure.seed, machinery_of(surroundings)), failure.reason);
    }
    if (!options.expect_fault.empty()) break;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("%llu programs, %zu failed, %.1f s\n", static_cast<unsigned long long>(done),
              failures.size(), seconds);
  if (options.expect_fault.empty()) return failures.empty() ? 0 : 1;
  if (failures.empty()) {
    std::printf("the fault was not noticed\n");
    return 1;
  }
  if (!has(failures.front().reason, options.expect_fault)) {
    std::printf("this is not the fault that was to be noticed\n");
    return 1;
  }
  std::printf("noticed after %llu programs\n", static_cast<unsigned long long>(done));
  return 0;
}

}  // namespace cupool::property
