// SPDX-License-Identifier: Apache-2.0
// Biased generation: a few sizes per program, so that blocks are reused; runs of operations on one
// thread; often the sequence that a faulty engine would fail, work, free, allocate, work.
#pragma once

#include <random>
#include <string>

#include "program.h"

namespace cupool::property {

struct Row {
  const char* name;
  unsigned weight;
  const char* text;
};
inline constexpr Row kRows[] = {
#define OPERATION(name, weight, text) {#name, weight, text},
#include "operations.def"
};
inline constexpr std::size_t kKinds = sizeof(kRows) / sizeof(kRows[0]);

/// What a wide program has besides the ordinary operations. One to a program: else each would be
/// rare.
enum class Theme {
  default_captures,
  joined_captures,
  pool_memory,
  host_targets,
  many_copies,
  step_aside,
  green,
  crowd,
  primary_life,
  process,
  full_device,
};
inline constexpr const char* kThemes[] = {
    "default_captures", "joined_captures", "pool_memory", "host_targets",
    "many_copies",      "step_aside",      "green",       "crowd",
    "primary_life",     "process",         "full_device"};

class Generator {
 public:
  Generator(std::uint64_t seed, const Machinery& machinery)
      : random_(seed * 0x9e3779b97f4a7c15u + 1),
        device_bytes_(machinery.device_bytes),
        devices_(machinery.devices),
        host_(machinery.host),
        wide_(machinery.wide),
        one_context_(machinery.one_context),
        only_(machinery.theme) {}

  Program make(std::uint64_t seed) {
    Program program;
    program.seed = seed;
    program.concurrent = chance(20);
    program.device_mode = chance(70) ? "late" : "early";
    constexpr unsigned kPolls[] = {0, 1, 3, 40};
    program.polls = kPolls[below(4)];
    threads_ = program.concurrent ? 2 + below(3) : 1 + below(kThreads);
    for (std::uint64_t& size : sizes_) size = some_size();
    // Most programs omit most rare operations: else every program would contain all of them.
    captures_ = chance(40);
    contexts_ = !program.concurrent && chance(15);
    lives_ = !captures_ && chance(program.concurrent ? 25 : 4);
    buffers_ = chance(50);
    special_buffers_ = chance(10);
    second_device_ = devices_ > 1 && chance(60);
    shares_ = chance(10);
    errands_ = chance(8);
    traps_ = !lives_ && chance(6);
    if (host_) {
      for (std::uint64_t& size : host_sizes_) size = some_host_size();
      contexts_ = !program.concurrent && chance(40);
    }
    if (wide_) choose_theme(program);
    if (one_context_) contexts_ = lives_ = second_device_ = false;
    if (second_device_) program.operations.push_back({Kind::device_open, 0, 0, 0, 0, 0});
    for (unsigned i = kFirstCreated; i < kStreams; ++i) {
      program.operations.push_back(
          {Kind::stream_create, i % threads_, i, below(2), some_context(), 0});
    }
    for (unsigned i = 0; buffers_ && i < kBuffers; ++i) {
      const unsigned type = special_buffers_ ? below(3) : 0;
      program.operations.push_back({Kind::buffer_create, i % threads_, i, 0, type, 0});
    }
    const unsigned length = chance(10) ? 150 : 15 + below(60);
    while (program.operations.size() < length) next(program.operations);
    return program;
  }

 private:
  unsigned below(unsigned end) { return static_cast<unsigned>(random_() % end); }
  bool chance(unsigned percent) { return below(100) < percent; }

  std::uint64_t some_size() {
    const unsigned kind = below(100);
    if (kind < 40) return 1 + below(4096);
    if (kind < 60) return 1 + below(1u << 20);
    if (kind < 85) return (1ull << 20) + below(6u << 20);
    if (kind < 95) return device_bytes_ / 16 + random_() % (device_bytes_ / 8);
    return device_bytes_ / 4 + random_() % (device_bytes_ / 2);
  }

  std::uint64_t some_host_size() {
    const unsigned kind = below(100);
    if (kind < 50) return 1 + below(16384);
    return 1 + (kind < 80 ? below(1u << 20) : below(3u << 20));
  }

  // Page-locked memory that is used, freed, and allocated again at once.
  void host_churn(std::vector<Operation>& operations) {
    const unsigned slot = below(kHostBlocks);
    const std::uint64_t size = host_sizes_[below(2)];
    for (unsigned i = 0, count = 1 + below(4); i < count; ++i) {
      const unsigned flags = chance(80) ? 0 : below(3);
      const unsigned context = some_context();
      operations.push_back({Kind::host_allocate, thread_, slot, flags, context, size});
      if (chance(20)) operations.push_back({Kind::context_synchronize, thread_, 0, 0, 0, 0});
      const unsigned use = below(100);
      if (use < 70) {
        const Kind kind = use < 55 ? Kind::host_stamp : Kind::host_callback;
        operations.push_back({kind, thread_, slot, below(kStreams), some_context(), 0});
      } else {
        operations.push_back({Kind::host_copy, thread_, slot, below(kStreams), below(kBlocks), 0});
      }
      // What a free is leaned on for besides memory (contract 2).
      const unsigned block = below(kBlocks);
      const unsigned buffer = below(kBuffers);
      const bool copies = buffers_ && chance(30);
      const bool stamps = !copies && chance(40);
      if (copies || stamps) {
        operations.push_back({Kind::allocate, thread_, block, 0, 0, sizes_[below(4)]});
        operations.push_back(
            {copies ? Kind::copy_out : Kind::stamp, thread_, block, below(kStreams), buffer, 0});
      }
      operations.push_back({Kind::host_release, thread_, slot, 0, some_context(), 0});
      if (copies) operations.push_back({Kind::host_touch, thread_, buffer, 0, 1, 0});
      if (stamps) operations.push_back({Kind::check, thread_, block, below(kStreams), 0, 0});
    }
  }

  unsigned some_context() {
    if (second_device_ && chance(40)) return 2;
    return contexts_ ? below(2) : 0;
  }

  Kind some_kind() {
    static const unsigned total = [] {
      unsigned sum = 0;
      for (const Row& row : kRows) sum += row.weight;
      return sum;
    }();
    unsigned left = below(total);
    for (std::size_t i = 0; i < kKinds; ++i) {
      if (left < kRows[i].weight) return static_cast<Kind>(i);
      left -= kRows[i].weight;
    }
    return Kind::memory_info;
  }

  bool wanted(Kind kind) const {
    switch (kind) {
      case Kind::copy_in:
      case Kind::copy_out:
      case Kind::kernel_on_buffer:
      case Kind::host_touch:
      case Kind::buffer_create:
      case Kind::buffer_destroy:
      case Kind::batch_copy:
        return buffers_;
      case Kind::capture_begin:
      case Kind::capture_into:
      case Kind::capture_fork:
      case Kind::capture_end:
      case Kind::graph_launch:
      case Kind::graph_destroy:
      case Kind::thread_mode:
        return captures_;
      case Kind::context_create:
      case Kind::context_destroy:
      case Kind::primary_reset:
        return contexts_;
      case Kind::context_life:
        return lives_;
      case Kind::peer_access:
        return second_device_;
      case Kind::stamp_abroad:
      case Kind::copy_abroad:
        return second_device_ || contexts_;
      case Kind::share_block:
        return shares_;
      case Kind::errand:
        return errands_;
      case Kind::trap:
        return traps_;
      default:
        return true;
    }
  }

  void next(std::vector<Operation>& operations) {
    if (!chance(70)) thread_ = below(threads_);
    if (host_ && chance(50)) return host_churn(operations);
    if (wide_ && chance(40)) return themed(operations);
    if (chance(25)) return churn(operations);
    if (shares_ && chance(8)) return share(operations);
    if ((second_device_ || contexts_) && chance(8)) return lend(operations);
    Kind kind = some_kind();
    while (!wanted(kind)) kind = some_kind();
    operations.push_back(some_operation(kind));
    if (kind == Kind::trap) recover_after(operations);
  }

  // The error's effect on some operations, and the end of the failed context.
  void recover_after(std::vector<Operation>& operations) {
    const unsigned context = operations.back().c;
    traps_ = chance(30);
    for (unsigned left = below(12); left > 0; --left) next(operations);
    if (chance(30)) return;
    const Kind end = context == 1 ? Kind::context_destroy : Kind::primary_reset;
    operations.push_back({end, thread_, 0, 0, context, 0});
  }

  Operation some_operation(Kind kind) {
    Operation op;
    op.kind = kind;
    op.thread = thread_;
    op.a = below(slots(kind));
    op.b = below(kStreams);
    switch (kind) {
      case Kind::allocate:
        op.size = sizes_[below(4)];
        op.c = some_context();
        break;
      case Kind::release:
      case Kind::stamp_abroad:
      case Kind::peer_access:
      case Kind::primary_reset:
      case Kind::trap:
        op.c = some_context();
        break;
      case Kind::share_block:
        op.c = below(2);
        break;
      case Kind::errand:
      case Kind::context_life:
        op.size = sizes_[below(4)];
        break;
      case Kind::batch_copy:
        op.c = below(kBuffers);
        op.size = below(27);
        break;
      case Kind::copy_blocks:
      case Kind::copy_abroad:
        op.c = below(kBlocks);
        break;
      case Kind::copy_in:
      case Kind::copy_out:
        op.c = below(kBuffers);
        break;
      case Kind::host_touch:
        op.c = below(2);
        break;
      case Kind::buffer_create:
        op.c = special_buffers_ ? below(3) : 0;
        break;
      case Kind::stream_create:
        op.a = kFirstCreated + below(kStreams - kFirstCreated);
        op.b = below(2);
        op.c = some_context();
        break;
      case Kind::stream_destroy:
        op.a = kFirstCreated + below(kStreams - kFirstCreated);
        op.c = chance(4) ? 1 : 0;
        break;
      case Kind::context_synchronize:
        op.b = below(2);
        op.c = chance(3) ? 1 : 0;
        break;
      case Kind::stream_synchronize:
      case Kind::event_query:
      case Kind::event_synchronize:
        op.c = chance(3) ? 1 : 0;
        break;
      case Kind::capture_begin:
        op.c = below(3);
        break;
      case Kind::capture_into:
        op.c = below(3);
        op.size = below(3);
        break;
      case Kind::capture_end:
        op.c = chance(8) ? 1 : 0;
        break;
      default:
        break;
    }
    return op;
  }

  static unsigned slots(Kind kind) {
    switch (kind) {
      case Kind::kernel_on_buffer:
      case Kind::host_touch:
      case Kind::buffer_create:
      case Kind::buffer_destroy:
        return kBuffers;
      case Kind::stream_synchronize:
        return kStreams;
      case Kind::context_synchronize:
        return kContexts;
      case Kind::event_record:
      case Kind::event_wait:
      case Kind::event_query:
      case Kind::event_synchronize:
        return kEvents;
      case Kind::capture_begin:
      case Kind::capture_into:
      case Kind::capture_fork:
      case Kind::capture_end:
      case Kind::graph_launch:
      case Kind::graph_destroy:
        return kGraphs;
      case Kind::thread_mode:
        return 3;
      default:
        return kBlocks;
    }
  }

  // Blocks used, freed and requested again at once: the main use case.
  void churn(std::vector<Operation>& operations) {
    const unsigned block = below(kBlocks);
    const std::uint64_t size = sizes_[below(4)];
    if (threads_ > 1 && chance(4)) {  // while another thread synchronises
      const unsigned other = (thread_ + 1) % threads_;
      operations.push_back({Kind::slow_synchronize, other, 0, below(kStreams), 0, 0});
    }
    for (unsigned i = 0, count = 1 + below(4); i < count; ++i) {
      const unsigned stream = below(kStreams);
      operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
      operations.push_back({Kind::stamp, thread_, block, stream, (block + i) % 2, 0});
      if (buffers_ && chance(30)) {
        const unsigned buffer = below(kBuffers);
        operations.push_back(
            {chance(50) ? Kind::copy_in : Kind::copy_out, thread_, block, stream, buffer, 0});
        operations.push_back({Kind::release, thread_, block, 0, 0, 0});
        operations.push_back({Kind::host_touch, thread_, buffer, 0, below(2), 0});
      } else if (chance(15)) {
        const unsigned doomed = kFirstCreated + below(kStreams - kFirstCreated);
        operations.push_back({Kind::stamp, thread_, block, doomed, 0, 0});
        operations.push_back({Kind::stream_destroy, thread_, doomed, 0, 0, 0});
        operations.push_back({Kind::release, thread_, block, 0, 0, 0});
      } else {
        operations.push_back({Kind::release, thread_, block, 0, 0, 0});
      }
    }
  }

  // Frees a block known to other agents, and requests its size again.
  void share(std::vector<Operation>& operations) {
    const unsigned block = below(kBlocks);
    const std::uint64_t size = sizes_[below(4)];
    operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
    operations.push_back({Kind::share_block, thread_, block, 0, below(2), 0});
    operations.push_back({Kind::stamp, thread_, block, below(kStreams), 0, 0});
    operations.push_back({Kind::release, thread_, block, 0, 0, 0});
    if (chance(50)) operations.push_back({Kind::context_synchronize, thread_, 0, 0, 0, 0});
    operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
  }

  // A stream of another context uses and frees a block; its own context requests the size again.
  void lend(std::vector<Operation>& operations) {
    const unsigned block = below(kBlocks);
    const unsigned home = some_context();
    const std::uint64_t size = sizes_[below(4)];
    operations.push_back({Kind::release, thread_, block, 0, home, 0});
    operations.push_back({Kind::allocate, thread_, block, 0, home, size});
    operations.push_back({Kind::stamp_abroad, thread_, block, below(kStreams), some_context(), 0});
    operations.push_back({Kind::release_in_stream, thread_, block, 0, 0, 0});
    if (chance(50)) operations.push_back({Kind::context_synchronize, thread_, home, 0, 0, 0});
    operations.push_back({Kind::allocate, thread_, block, 0, home, size});
    operations.push_back({Kind::stamp, thread_, block, below(kStreams), 0, 0});
  }

  // wide_sequences.cpp
  void choose_theme(Program& program);
  void themed(std::vector<Operation>& operations);
  void default_captures(std::vector<Operation>& operations);
  void joined_capture(std::vector<Operation>& operations);
  void pool_churn(std::vector<Operation>& operations);
  void green_work(std::vector<Operation>& operations);
  void host_targets(std::vector<Operation>& operations);
  void lend_to_process(std::vector<Operation>& operations);
  unsigned other_context(unsigned context);

  std::mt19937_64 random_;
  const std::uint64_t device_bytes_;
  const unsigned devices_;
  const bool host_;
  const bool wide_;
  const bool one_context_;
  const std::string only_;
  Theme theme_ = Theme::default_captures;
  bool done_ = false;  ///< what a program of this theme does once
  std::uint64_t sizes_[4] = {};
  std::uint64_t host_sizes_[2] = {};
  unsigned threads_ = 1;
  unsigned thread_ = 0;
  bool captures_ = false;
  bool contexts_ = false;
  bool lives_ = false;
  bool buffers_ = false;
  bool special_buffers_ = false;
  bool second_device_ = false;
  bool shares_ = false;
  bool errands_ = false;
  bool traps_ = false;
};

}  // namespace cupool::property
