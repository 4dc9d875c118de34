// A random program: what it is, how a seed makes one, and how it is written down. Operations name
// slots, not handles, and one whose slot is empty does nothing: any subset of a program is a
// program, so that a failing one can be shrunk.
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
constexpr unsigned kGraphs = 2;  ///< and as many captures

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
  bool concurrent = false;  ///< every thread for itself, on slots of its own
  std::string device_mode;  ///< of the simulated device: late or early
  unsigned polls = 3;       ///< queries until the late device gives in
  std::vector<Operation> operations;
};

/// What the simulated device has.
struct Machinery {
  std::uint64_t device_bytes = 0;
  unsigned devices = 1;
};

/// The same seed gives the same program.
Program generate(std::uint64_t seed, const Machinery& machinery);

/// Lines for people.
std::string readable(const Program& program);

/// For another process.
void save(const Program& program, const std::string& path);
Program load(const std::string& path);

}  // namespace cupool::property
