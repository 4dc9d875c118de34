// SPDX-License-Identifier: Apache-2.0
// The arguments of pairs.cu and pairs_rmm.cu, and the sizes that a thread asks for.
#pragma once

#include <cmath>
#include <random>
#include <string>

#include "common/gpu_test.h"

namespace pairs {

inline std::string text(int argc, char** argv, const char* name, const char* otherwise) {
  const size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
      return argv[i] + length + 1;
    }
  }
  return otherwise;
}

struct Options {
  std::string allocator;  // runtime, driver, async, cub, none; pairs_rmm: rmm-pool, rmm-arena
  std::string mode;       // pairs, producer, libcudart
  int threads;
  bool mixed;    // sizes=mixed: log-uniform from 256 B to 64 KiB
  size_t bytes;  // else size=N
  int blocks;    // live per thread; in producer mode the places of a queue
  int streams;   // kept busy meanwhile
  int kernel_us;
  int depth;      // kernels in flight on each of them
  long limit_ms;  // of the throughput pass; warm-up takes half of it, the latency pass no more than
                  // it
  bool lane;      // all of the process's work goes to the legacy stream, from the start
  bool curve;     // print the latencies' tail point by point
  long samples;   // of each kind of call, each thread
};

inline Options parse(int argc, char** argv) {
  using gpu_test::number;
  const auto integer = [&](const char* name, long otherwise) {
    return static_cast<int>(std::max(0L, number(argc, argv, name, otherwise)));
  };
  Options options{};
  options.allocator = text(argc, argv, "allocator", "runtime");
  options.mode = text(argc, argv, "mode", "pairs");
  options.mixed = text(argc, argv, "sizes", "fixed") == "mixed";
  const bool producer = options.mode == "producer";
  options.threads = std::max(producer ? 2 : 1, integer("threads", 1));
  options.bytes = static_cast<size_t>(std::max(1L, number(argc, argv, "size", 65536)));
  options.blocks = std::max(1, integer("blocks", producer ? 64 : 1));
  options.streams = integer("streams", 0);
  options.kernel_us = std::max(1, integer("kernel_us", 200));
  options.depth = std::max(1, integer("depth", 4));
  options.limit_ms = std::max(1, integer("limit_ms", 500));
  options.lane = number(argc, argv, "lane", 0) != 0;
  options.curve = number(argc, argv, "curve", 0) != 0;
  options.samples = integer("samples", 200000);
  return options;
}

// Drawn beforehand, so that a size costs the measured loop one load, the same for fixed sizes.
class Sizes {
 public:
  Sizes(const Options& options, int thread) : bytes_(kCount, options.bytes) {
    if (!options.mixed) return;
    std::mt19937_64 random(20240917 + static_cast<uint64_t>(thread));
    for (size_t& bytes : bytes_) {
      const double share = static_cast<double>(random() >> 11) / 9007199254740992.0;  // 2^53
      bytes = static_cast<size_t>(std::exp2(8.0 + 8.0 * share));
    }
  }
  size_t operator[](uint64_t i) const { return bytes_[i & (kCount - 1)]; }

 private:
  static constexpr size_t kCount = 4096;
  std::vector<size_t> bytes_;
};

}  // namespace pairs
