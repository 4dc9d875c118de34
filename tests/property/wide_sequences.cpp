// SPDX-License-Identifier: Apache-2.0
// What programs with a theme do: what programs did that once broke the engine (README.md).
#include <algorithm>
#include <iterator>

#include "generator.h"

namespace cupool::property {

// A theme has what it needs; what would hide its faults is left out.
void Generator::choose_theme(Program& program) {
  const auto themes = static_cast<unsigned>(std::size(kThemes));
  unsigned theme = below(themes);
  for (unsigned i = 0; i < themes; ++i) {
    if (only_ == kThemes[i]) theme = i;
  }
  theme_ = static_cast<Theme>(theme);
  const bool captures = theme_ == Theme::default_captures || theme_ == Theme::joined_captures;
  captures_ = captures;
  lives_ = shares_ = errands_ = traps_ = false;
  if (captures) program.concurrent = false;
  if (theme_ == Theme::full_device || theme_ == Theme::step_aside || theme_ == Theme::green) {
    program.concurrent = false;
  }
  contexts_ = captures || (!program.concurrent && chance(20));
  buffers_ = buffers_ || theme_ == Theme::host_targets || theme_ == Theme::many_copies;
  if (theme_ == Theme::host_targets) special_buffers_ = false;
  if (theme_ == Theme::primary_life) second_device_ = false;
  // Half of the device is to be had at any time.
  for (std::uint64_t& size : sizes_) size = std::min(size, device_bytes_ / 32);
}

void Generator::themed(std::vector<Operation>& operations) {
  const std::uint64_t size = sizes_[below(4)];
  const bool first = !done_;
  done_ = true;
  switch (theme_) {
    case Theme::default_captures:
      return default_captures(operations);
    case Theme::joined_captures:
      return joined_capture(operations);
    case Theme::pool_memory:
      return pool_churn(operations);
    case Theme::host_targets:
      return host_targets(operations);
    case Theme::many_copies:
      if (first) operations.push_back({Kind::many_copies, thread_, below(kBuffers), 0, 0, 400});
      return churn(operations);
    case Theme::step_aside:
      churn(operations);
      if (first) operations.push_back({Kind::step_aside, thread_, 0, 0, 0, 0});
      operations.push_back({Kind::fill_device, thread_, 0, 0, 0, 2u << 20});
      return;
    case Theme::green:
      return green_work(operations);
    case Theme::crowd:
      // Few threads may keep much each.
      if (first || chance(5)) {
        const unsigned threads = chance(50) ? 3 + below(12) : 40 + below(160);
        operations.push_back({Kind::crowd, thread_, threads, 0, 0, 0});
      }
      return churn(operations);
    case Theme::primary_life:
      if (first) operations.push_back({Kind::primary_life, thread_, 0, 0, 0, size});
      return churn(operations);
    case Theme::process:
      return lend_to_process(operations);
    case Theme::full_device:
      churn(operations);
      operations.push_back({Kind::fill_device, thread_, 0, 0, 0, (1ull + below(3)) << 21});
      return;
  }
}

unsigned Generator::other_context(unsigned context) {
  if (second_device_ && (context != 2 || !contexts_)) return context == 2 ? 0 : 2;
  return context == 0 ? 1 : 0;
}

// A default stream's handle means another stream in each context: the end of one capture is not
// that of the other, nor does the end of a context end the capture in another one.
void Generator::default_captures(std::vector<Operation>& operations) {
  const unsigned home = some_context();
  const unsigned other = other_context(home);
  const unsigned thread = chance(60) ? thread_ : below(threads_);
  const std::uint64_t size = sizes_[below(4)];
  const unsigned mode = chance(80) ? 2 : below(3);
  operations.push_back({Kind::context_create, thread_, 0, 0, 0, 0});
  for (unsigned i = 0; i < 4; ++i) {
    operations.push_back({Kind::allocate, thread_, i, 0, home, size});
    operations.push_back({Kind::stamp, thread_, i, below(kStreams), 0, 0});
  }
  operations.push_back({Kind::capture_default, thread_, 0, home, mode, 0});
  operations.push_back({Kind::capture_default, thread, 1, other, mode, 0});
  if (chance(50)) operations.push_back({Kind::release, thread_, 0, 0, home, 0});
  operations.push_back({Kind::capture_end, thread, 1, 0, 0, 0});
  if (chance(60)) {
    if (other == 1) operations.push_back({Kind::context_destroy, thread, 0, 0, 0, 0});
    if (other != 1) operations.push_back({Kind::primary_reset, thread, 0, 0, other, 0});
  }
  for (unsigned i = 0; i < 4; ++i) {
    operations.push_back({Kind::release, thread_, i, 0, home, 0});
    if (chance(50)) operations.push_back({Kind::allocate, thread_, i + 4, 0, home, size});
  }
  operations.push_back({Kind::capture_end, thread_, 0, 0, 0, 0});
}

// From the begin of a capture on, streams of any context may join it.
void Generator::joined_capture(std::vector<Operation>& operations) {
  const unsigned home = some_context();
  const unsigned other = other_context(home);
  const std::uint64_t size = sizes_[below(4)];
  const unsigned origin = kFirstCreated + below(kStreams - kFirstCreated);
  const unsigned joining = kFirstCreated + below(kStreams - kFirstCreated);
  operations.push_back({Kind::context_create, thread_, 0, 0, 0, 0});
  operations.push_back({Kind::stream_destroy, thread_, origin, 0, 0, 0});
  operations.push_back({Kind::stream_create, thread_, origin, below(2), home, 0});
  operations.push_back({Kind::stream_destroy, thread_, joining, 0, 0, 0});
  operations.push_back({Kind::stream_create, thread_, joining, below(2), other, 0});
  const unsigned busy = below(threads_);
  for (unsigned i = 0; i < 6; ++i) {
    operations.push_back({Kind::allocate, busy, i, 0, i % 2 == 0 ? other : home, size});
    operations.push_back({Kind::stamp, busy, i, 1, 0, 0});
    if (chance(40)) operations.push_back({Kind::release, busy, i, 0, other, 0});
  }
  // Idle memory of the joining context, which the device needs back during the capture.
  const unsigned large = kBlocks - 1;
  operations.push_back({Kind::allocate, busy, large, 0, other, device_bytes_ / 2});
  operations.push_back({Kind::stamp, busy, large, 1, 0, 0});
  operations.push_back({Kind::release, busy, large, 0, other, 0});
  operations.push_back({Kind::capture_begin, thread_, 0, origin, chance(70) ? 2 : below(3), 0});
  operations.push_back({Kind::stamp, thread_, 0, joining, 0, 0});
  operations.push_back({Kind::capture_join, thread_, 0, joining, 0, 0});
  operations.push_back({Kind::allocate, busy, large, 0, other, device_bytes_ / 8 * 5});
  for (unsigned i = 0; i < 6; ++i) {
    if (chance(50)) operations.push_back({Kind::release, busy, i, 0, other, 0});
    if (chance(50)) operations.push_back({Kind::stamp, thread_, i, joining, 0, 0});
    if (chance(30)) operations.push_back({Kind::allocate, busy, i, 0, other, size});
  }
  operations.push_back({Kind::capture_end, thread_, 0, 0, 0, 0});
}

// The program's own stream-ordered memory, beside that of cupool.
void Generator::pool_churn(std::vector<Operation>& operations) {
  const unsigned slot = below(kPoolBlocks);
  const std::uint64_t size = sizes_[below(4)];
  const unsigned stream = below(kStreams);
  const unsigned context = some_context();
  operations.push_back({Kind::pool_allocate, thread_, slot, stream, context, size});
  if (chance(50)) operations.push_back({Kind::pool_stamp, thread_, slot, below(kStreams), 0, 0});
  // Memory of cudaMalloc that is freed in a stream, beside it.
  if (chance(50)) {
    const unsigned block = below(kBlocks);
    operations.push_back({Kind::allocate, thread_, block, 0, context, size});
    operations.push_back({Kind::stamp, thread_, block, stream, 0, 0});
    operations.push_back({Kind::release_in_stream, thread_, block, stream, 0, 0});
  }
  if (chance(30)) {  // behind the free of another block
    const unsigned block = below(kBlocks);
    operations.push_back({Kind::allocate, thread_, block, 0, context, size});
    operations.push_back({Kind::release, thread_, block, 0, context, 0});
    const unsigned shared = below(kStreams);
    operations.push_back({Kind::pool_release, thread_, slot, shared, 2 + below(2), 0});
    // Another thread, which knows nothing of that free, may get the memory in the same stream.
    operations.push_back({Kind::pool_allocate, below(threads_), slot, shared, context, size});
  } else if (chance(60)) {
    operations.push_back({Kind::pool_release, thread_, slot, 0, chance(80) ? 0u : 1u, 0});
  }
  if (chance(30)) operations.push_back({Kind::pool_settings, thread_, 0, 0, 0, 0});
  if (chance(5)) operations.push_back({Kind::pool_settings, thread_, 1, 0, 0, size});
  if (chance(5)) operations.push_back({Kind::pool_settings, thread_, 2, 0, 0, size});
  if (chance(10)) operations.push_back({Kind::context_synchronize, thread_, context, 0, 0, 0});
  if (chance(15)) operations.push_back({Kind::fill_device, thread_, 0, 0, 0, 2u << 20});
}

// Host memory that work reaches by what looks like device memory.
void Generator::host_targets(std::vector<Operation>& operations) {
  const unsigned buffer = below(kBuffers);
  const unsigned block = 1 + below(kBlocks - 1);
  const std::uint64_t size = sizes_[below(4)];
  if (chance(60)) {
    const unsigned type = chance(40) ? 0 : 3;
    operations.push_back({Kind::buffer_destroy, thread_, buffer, 0, 0, 0});
    operations.push_back({Kind::buffer_create, thread_, buffer, 0, type, 0});
  }
  if (chance(40)) operations.push_back({Kind::buffer_mistake, thread_, buffer, 0, below(2), 0});
  operations.push_back({Kind::allocate, thread_, 0, 0, 0, size});
  operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
  const unsigned stream = below(kStreams);
  if (chance(50)) {
    operations.push_back({Kind::kernel_on_address, thread_, buffer, stream, 0, 0});
  } else {
    operations.push_back({Kind::fill_buffer, thread_, buffer, stream, below(2), 0});
  }
  if (chance(20)) operations.push_back({Kind::stream_synchronize, thread_, stream, 0, 0, 0});
  operations.push_back({Kind::release, thread_, block, 0, 0, 0});
  operations.push_back({Kind::host_touch, thread_, buffer, 0, 1, 0});
}

// Work of a green context, and of others beside it, on memory that comes and goes with either
// current. Most programs have memory and work before the first green one.
void Generator::green_work(std::vector<Operation>& operations) {
  const unsigned stream = kFirstCreated + below(kStreams - kFirstCreated);
  const std::uint64_t size = sizes_[below(4)];
  churn(operations);
  if (chance(30)) {
    operations.push_back({Kind::stream_destroy, thread_, stream, 0, 0, 0});
    operations.push_back({Kind::green_stream, thread_, stream, 0, 0, 0});
  }
  for (unsigned i = 0; i < 3; ++i) {
    const unsigned block = below(kBlocks);
    operations.push_back({Kind::green_memory, thread_, block, 0, 0, size});
    operations.push_back({Kind::stamp, thread_, block, stream, 0, 0});
    if (chance(50)) operations.push_back({Kind::stamp, thread_, block, below(kStreams), 0, 0});
    if (chance(20)) operations.push_back({Kind::check, thread_, block, below(kStreams), 0, 0});
    if (chance(50)) operations.push_back({Kind::release, thread_, block, 0, 0, 0});
    if (chance(30)) operations.push_back({Kind::green_synchronize, thread_, 0, 0, 0, 0});
    if (chance(30)) operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
  }
  if (chance(10)) operations.push_back({Kind::green_end, thread_, 0, 0, 0, 0});
}

// A block that another process works on, and that this one frees at any time.
void Generator::lend_to_process(std::vector<Operation>& operations) {
  const unsigned block = below(kBlocks);
  const unsigned lent = below(kLentBlocks);
  const std::uint64_t size = sizes_[below(4)];
  operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
  operations.push_back({Kind::lend, thread_, block, lent, 0, 0});
  operations.push_back({Kind::lent_stamp, thread_, 0, lent, 0, 0});
  if (chance(50)) operations.push_back({Kind::release, thread_, block, 0, 0, 0});
  if (chance(50)) operations.push_back({Kind::allocate, thread_, block, 0, 0, size});
  if (chance(30)) operations.push_back({Kind::lent_stamp, thread_, 0, below(kLentBlocks), 0, 0});
  if (chance(70)) operations.push_back({Kind::lent_close, thread_, 0, lent, 0, 0});
  operations.push_back({Kind::release, thread_, block, 0, 0, 0});
  for (unsigned i = 0; i < 3; ++i) {
    operations.push_back({Kind::allocate, thread_, (block + i) % kBlocks, 0, 0, size});
    operations.push_back({Kind::stamp, thread_, (block + i) % kBlocks, below(kStreams), 0, 0});
  }
}

}  // namespace cupool::property
