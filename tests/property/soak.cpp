// SPDX-License-Identifier: Apache-2.0
// Every program leaves the process as it found it: its contexts end, with whatever it has left in
// them. So a figure that is larger late than early is a leak, of the library, of the simulated
// device or of this program.
#include "soak.h"

#include <cupool/cupool.h>
#include <cupool_sim.h>
#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "machine.h"

namespace cupool::property {
namespace {

using Clock = std::chrono::steady_clock;

/// A program takes 0.1 s at most, with a crowd 0.5 s.
constexpr unsigned kHangSeconds = 60;
constexpr std::size_t kMostSamples = 1000;
constexpr std::size_t kFifths = 5;
constexpr std::size_t kLeastInAFifth = 10;
constexpr std::uint64_t kProgramsBeforeAll = 20;

enum Figure : std::size_t {
  heap,
  resident,
  descriptors,
  threads,
  mappings,
  held,
  retired,
  kFigures
};

struct Row {
  const char* name;
  std::uint64_t allowed;  ///< growth from the second to the last fifth (README.md)
};
constexpr Row kFigureRows[kFigures] = {
    {"heap in use, KiB", 256}, {"anonymous resident memory, KiB", 4096},
    {"file descriptors", 0},   {"threads", 0},
    {"mappings", 16},          {"held by cupool, KiB", 0},
    {"retired, KiB", 0},
};

using Sample = std::array<std::uint64_t, kFigures>;

std::uint64_t of_status(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return std::strtoull(line.c_str() + std::strlen(key), nullptr, 10);
  }
  return 0;
}

std::uint64_t entries_of(const char* folder) {
  DIR* const opened = opendir(folder);
  if (opened == nullptr) return 0;
  std::uint64_t count = 0;
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

std::uint64_t lines_of(const char* path) {
  std::ifstream file(path);
  return static_cast<std::uint64_t>(
      std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
}

struct Bytes {
  std::uint64_t held = 0;
  std::uint64_t retired = 0;
};

Bytes bytes_of_cupool() {
  Bytes bytes;
  for (int device = 0; cupool_snapshot != nullptr && device < 2; ++device) {
    cupool_figures figures{};
    figures.size = sizeof figures;
    if (cupool_snapshot(device, &figures) != CUPOOL_OK) continue;
    bytes.held += figures.held_bytes + figures.passthrough_bytes;
    bytes.retired += figures.retired_bytes;
  }
  return bytes;
}

Sample look() {
  const struct mallinfo2 info = mallinfo2();
  Sample sample{};
  sample[heap] = (info.uordblks + info.hblkhd) >> 10;
  sample[resident] = of_status("RssAnon:");
  sample[descriptors] = entries_of("/proc/self/fd") - 3;  // ".", "..", and the folder itself
  sample[threads] = of_status("Threads:");
  sample[mappings] = lines_of("/proc/self/maps");
  const Bytes bytes = bytes_of_cupool();
  sample[held] = bytes.held >> 10;
  sample[retired] = bytes.retired >> 10;
  return sample;
}

void print(unsigned seconds, std::uint64_t programs, const Sample& sample) {
  std::printf("%6u s, %llu programs", seconds, static_cast<unsigned long long>(programs));
  for (std::size_t i = 0; i < kFigures; ++i) {
    std::printf("; %s %llu", kFigureRows[i].name, static_cast<unsigned long long>(sample[i]));
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::uint64_t median(const std::vector<Sample>& samples, std::size_t fifth, std::size_t figure) {
  const std::size_t size = samples.size() / kFifths;
  std::vector<std::uint64_t> values;
  for (std::size_t i = fifth * size; i < (fifth + 1) * size; ++i) {
    values.push_back(samples[i][figure]);
  }
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size / 2),
                   values.end());
  return values[size / 2];
}

// The first fifth warms up.
bool grew(const std::vector<Sample>& samples) {
  bool any = false;
  for (std::size_t i = 0; i < kFigures; ++i) {
    const std::uint64_t early = median(samples, 1, i);
    const std::uint64_t late = median(samples, kFifths - 1, i);
    const bool grows = late > early + kFigureRows[i].allowed;
    std::printf("%s: %llu, later %llu%s\n", kFigureRows[i].name,
                static_cast<unsigned long long>(early), static_cast<unsigned long long>(late),
                grows ? ": it grows" : "");
    any |= grows;
  }
  return any;
}

std::atomic<unsigned long long> running_seed{0};

// A hang ends the process.
void tell_hang(int) {
  char text[80];
  const int length =
      std::snprintf(text, sizeof text, "the program of seed %llu hangs\n", running_seed.load());
  if (write(STDOUT_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(3);
  _exit(1);
}

/// What a process keeps once it has it, and a rare program may ask for first at any time: the
/// files of its pools of small and of large blocks and the socket to another process, and tables,
/// which double when more blocks are live than ever before. So the process has all of it once, when
/// the pool has started. False: it could not.
bool have_everything_once(Machine& machine) {
  constexpr std::size_t kBlocks = 5000;
  constexpr std::size_t kSmall = 512;
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  CUcontext context = nullptr;
  bool done = true;
  // Each in a new life of the context: the device is small, and memory for two pools that grow is
  // not left beside blocks. (Not in a context of their own: with a second handle no page-locked
  // memory is cached any more.)
  const auto in_a_life = [&](const auto& part) {
    done = done && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
    part();
    done = done && cuCtxSetCurrent(nullptr) == CUDA_SUCCESS &&
           cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS &&
           cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS;
  };
  for (const std::size_t bytes : {kSmall, kLarge}) {
    in_a_life([&] {
      CUdeviceptr block = 0;
      done = done && cuMemAlloc(&block, bytes) == CUDA_SUCCESS && machine.lend_once(block) &&
             cuMemFree(block) == CUDA_SUCCESS;
    });
  }
  in_a_life([&] {
    std::vector<CUdeviceptr> blocks(kBlocks);
    for (CUdeviceptr& block : blocks) done = done && cuMemAlloc(&block, kSmall) == CUDA_SUCCESS;
    for (const CUdeviceptr block : blocks) done = done && cuMemFree(block) == CUDA_SUCCESS;
  });
  return done;
}

/// Which programs a process can run that goes on after them.
class Programs {
 public:
  Programs(const Soak& soak, Machinery machinery) : machinery_(machinery) {
    machinery_.one_context = soak.one_context;
  }

  Program of(std::uint64_t seed) const {
    // (A crowd and a reset beside threads take as long as a hundred ordinary programs.)
    constexpr const char* kThemes[] = {"default_captures", "joined_captures", "pool_memory",
                                       "host_targets",     "many_copies",     "process",
                                       "full_device"};
    Machinery machinery = machinery_;
    const std::uint64_t kind = seed % 16;
    machinery.host = kind >= 10 && kind < 13;
    machinery.wide = kind >= 13;
    if (machinery.wide) machinery.theme = kThemes[seed / 16 % std::size(kThemes)];
    if (seed % 800 == 15) machinery.theme = "crowd";
    if (seed % 800 == 31 && !machinery.one_context) machinery.theme = "primary_life";
    Program program = generate(seed, machinery);
    auto& operations = program.operations;
    const auto lasts = [](const Operation& op) {  // beyond the end of a program
      return op.kind == Kind::pool_settings && op.a == 2;
    };
    operations.erase(std::remove_if(operations.begin(), operations.end(), lasts), operations.end());
    return program;
  }

 private:
  Machinery machinery_;
};

}  // namespace

int run_soak(const Soak& soak, Machine& machine) {
  const Programs programs(soak, machine.machinery());
  // All of it at once: what this file keeps does not grow.
  std::vector<Sample> samples(std::max<std::size_t>(kMostSamples, kFifths * soak.in_rounds));
  std::size_t taken = 0;
  const auto began = Clock::now();
  const auto length = std::chrono::seconds(soak.seconds);
  const Clock::duration step = Clock::duration(length) / static_cast<int>(kMostSamples);
  auto next = began;
  auto next_line = began;
  std::uint64_t run = 0;
  const auto ends = [&] {
    if (soak.in_rounds != 0) return run == kFifths * soak.in_rounds;
    return Clock::now() >= began + length;
  };
  std::printf("programs from seed %llu on\n", static_cast<unsigned long long>(soak.first));
  signal(SIGALRM, tell_hang);
  while (!ends()) {
    const std::uint64_t seed = soak.first + (soak.in_rounds == 0 ? run : run % soak.in_rounds);
    running_seed = seed;
    alarm(kHangSeconds);
    const Program program = programs.of(seed);
    const std::string failure = machine.run(program);
    if (!failure.empty()) {
      std::printf("the program of seed %llu failed: %s\n%s", static_cast<unsigned long long>(seed),
                  failure.c_str(), readable(program).c_str());
      return 1;
    }
    ++run;
    if (run == kProgramsBeforeAll && !have_everything_once(machine)) {
      std::printf("the process could not have and lend blocks between two programs\n");
      return 2;
    }
    const auto now = Clock::now();
    if (now < next || taken == samples.size()) continue;
    samples[taken++] = look();
    next = soak.in_rounds != 0 ? now : std::max(next + step, now);
    if (now < next_line) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - began).count();
    print(static_cast<unsigned>(seconds), run, samples[taken - 1]);
    next_line += std::chrono::minutes(1);
  }
  alarm(0);
  samples.resize(taken);
  std::printf("%llu programs\n", static_cast<unsigned long long>(run));
  if (taken < kFifths * kLeastInAFifth) {
    std::printf("too few to tell whether anything grows\n");
    return 2;
  }
  return grew(samples) ? 1 : 0;
}

}  // namespace cupool::property
