// SPDX-License-Identifier: Apache-2.0
// property_programs: random programs against the engine on the simulated device. Without --work and
// --replay it is the supervisor, and starts itself with the library preloaded.
#include <cupool_sim.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "machine.h"
#include "peer.h"
#include "soak.h"
#include "supervisor.h"

namespace cupool::property {
namespace {

bool aligns_large() {
  const char* pool = std::getenv("CUPOOL_POOL");
  return pool == nullptr || std::strcmp(pool, "default") != 0;
}

FreeMode free_mode() {
  const char* text = std::getenv("CUPOOL_FREE_MODE");
  if (text == nullptr || std::strcmp(text, "auto") == 0) return FreeMode::automatic;
  return std::strcmp(text, "sync") == 0 ? FreeMode::sync : FreeMode::ordered;
}

bool ran_well(Machine& machine, const Program& program) {
  // Written at once: shows the place of a crash.
  std::printf("at %llu\n", static_cast<unsigned long long>(program.seed));
  std::fflush(stdout);
  const std::string failure = machine.run(program);
  if (!failure.empty()) std::printf("failed: %s\n", failure.c_str());
  std::fflush(stdout);
  return failure.empty();
}

int usage() {
  std::fprintf(
      stderr,
      "property_programs [--library FILE] [--sanitizer-runtime FILE] [--first SEED|random]\n"
      "  [--count N] [--jobs N] [--free-mode auto|ordered|sync] [--async MODE] [--mutation NAME]\n"
      "  [--forgets non_blocking|per_thread|destroyed] [--expect-fault WORDS]\n"
      "  [--pass-over WORDS]... [--no-shrink] [--lane] [--host] [--wide] [--theme NAME]\n"
      "  [--soak SECONDS] [--soak-rounds COUNT]\n");
  return 2;
}

}  // namespace

namespace {

void look_closely(const std::string& forgets) {
  cupoolSimSet("context_event_forgets", forgets.c_str());
  cupoolSimSet("deadlock_watch", "1");
}

}  // namespace

int work_through(std::uint64_t first, std::uint64_t count, const std::string& forgets) {
  Machine machine(free_mode(), aligns_large());
  look_closely(forgets);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    if (!ran_well(machine, generate(seed, machine.machinery()))) return 1;
  }
  return 0;
}

int replay(const std::string& path, const std::string& forgets) {
  const Program program = load(path);
  Machine machine(free_mode(), aligns_large());
  look_closely(forgets);
  return ran_well(machine, program) ? 0 : 1;
}

int soak(const Soak& soak) {
  Machine machine(free_mode(), aligns_large());
  look_closely("");
  return run_soak(soak, machine);
}

int run(int argc, char** argv) {
  Options options;
  std::string program;
  std::uint64_t work_first = 0;
  std::uint64_t work_count = 0;
  bool is_soak = false;
  const auto number = [](const char* text) { return std::strtoull(text, nullptr, 10); };
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--no-shrink" || name == "--lane") {
      (name == "--lane" ? options.lane : options.shrink) = name == "--lane";
      continue;
    }
    if (name == "--host") {
      options.host = true;
      continue;
    }
    if (name == "--wide") {
      options.wide = true;
      continue;
    }
    if (name == "--soak-here") {
      is_soak = true;
      continue;
    }
    if (name == "--peer") return be_peer(std::atoi(value));
    ++i;
    if (name == "--library")
      options.library = value;
    else if (name == "--sanitizer-runtime")
      options.sanitizer_runtime = value;
    else if (name == "--count")
      options.count = number(value);
    else if (name == "--jobs")
      options.jobs = static_cast<unsigned>(number(value));
    else if (name == "--async")
      options.async = value;
    else if (name == "--free-mode")
      options.free_mode = value;
    else if (name == "--mutation")
      options.mutation = value;
    else if (name == "--soak")
      options.soak.seconds = static_cast<unsigned>(number(value));
    else if (name == "--soak-rounds")
      options.soak.in_rounds = number(value);
    else if (name == "--forgets")
      options.forgets = value;
    else if (name == "--expect-fault")
      options.expect_fault = value;
    else if (name == "--pass-over")
      options.pass_over.push_back(value);
    else if (name == "--theme") {
      options.wide = true;
      options.theme = value;
    } else if (name == "--replay")
      program = value;
    else if (name == "--first") {
      const bool random = std::strcmp(value, "random") == 0;
      options.first = random ? std::random_device{}() : number(value);
    } else if (name == "--work" && i + 1 < argc) {
      work_first = number(value);
      work_count = number(argv[++i]);
    } else {
      return usage();
    }
  }
  if (!program.empty()) return replay(program, options.forgets);
  if (work_count != 0) return work_through(work_first, work_count, options.forgets);
  options.soak.first = options.first;
  options.soak.one_context = options.host;
  if (is_soak) return soak(options.soak);
  if (options.soaks()) return start_soak(options);
  return supervise(options);
}

}  // namespace cupool::property

int main(int argc, char** argv) {
  return cupool::property::run(argc, argv);
}
