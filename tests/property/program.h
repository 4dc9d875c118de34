// SPDX-License-Identifier: Apache-2.0
// A random program: its form, its generation from a seed, and its text. Operations name slots, not
// handles, and an operation on an empty slot has no effect. So any subset of a program is a
// program, and a failing one can be shrunk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::property {

constexpr unsigned kThreads = 4;
constexpr unsigned kBlocks = 12;
constexpr unsigned kContexts = 3;  ///< 0: primary, 1: created, 2: of the second device
constexpr unsigned kStreams = 7;   ///< 0: legacy, 1: the thread's own, the others are created
constexpr unsigned kFirstCreated = 2;
constexpr unsigned kEvents = 4;
constexpr unsigned kBuffers = 3;
constexpr unsigned kHostBlocks = 6;
constexpr unsigned kGraphs = 2;  ///< and of captures
constexpr unsigned kPoolBlocks = 6;
constexpr unsigned kLentBlocks = 3;

enum class Kind {
#define OPERATION(name, weight, text) name,
#include "operations.def"
};

struct Operation {
  Kind kind = Kind::memory_info;
  unsigned thread = 0;
  unsigned a = 0, b = 0, c = 0;
  std::uint64_t size = 0;
};

struct Program {
  std::uint64_t seed = 0;
  bool concurrent = false;  ///< each thread runs on its own, with its own slots
  std::string device_mode;  ///< of the simulated device: late or early
  unsigned polls = 3;       ///< queries until the late device completes work
  std::vector<Operation> operations;
};

/// Features of the simulated device.
struct Machinery {
  std::uint64_t device_bytes = 0;
  unsigned devices = 1;
  bool host = false;  ///< programs about page-locked memory
  bool wide = false;  ///< programs with a theme (generator.h)
  std::string theme;  ///< not empty: of this one only
  bool one_context = false;
};

/// The same seed gives the same program.
Program generate(std::uint64_t seed, const Machinery& machinery);

/// Text for people.
std::string readable(const Program& program);

/// Text for another process.
void save(const Program& program, const std::string& path);
Program load(const std::string& path);

}  // namespace cupool::property
