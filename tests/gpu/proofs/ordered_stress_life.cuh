// SPDX-License-Identifier: Apache-2.0
// The steps of one thread of ordered_stress.cu: batches of blocks, captures, streams replaced,
// blocks held or handed to other threads. Legal for legacy CUDA throughout; only the wait in
// cudaFree, which nothing else replaces here, keeps the blocks apart.
#pragma once

namespace ordered_stress {

// Tags are unique in the process: four bits thread, the rest counts on from life to life.
inline std::atomic<uint32_t> next_tag[kMostThreads];

inline void Life::run() {
  shared_->gate.enter();
  for (Stream& stream : streams_) stream = create_stream(&stream);
  shared_->gate.leave();
  const uint64_t steps = random_.between(300, 3000);
  for (uint64_t i = 0; i < steps && !shared_->finished(); ++i) {
    if (i % 200 == 0) new_mood();
    step();
  }
  shared_->gate.enter();
  while (!held_.empty()) release_held();
  // With all their work pending, and the thread ends with blocks in its cache.
  for (Stream& stream : streams_) {
    if (stream.kind >= blocking) CHECKED(cudaStreamDestroy(stream.handle));
  }
  shared_->gate.leave();
}

inline void Life::new_mood() {
  static constexpr double kLarge[] = {0.0, 0.05, 0.1, 0.3};
  static constexpr double kSpin[] = {0.0, 0.1, 0.3, 0.6};
  most_blocks_ = random_.chance(0.2) ? 1 : random_.between(4, 8);
  large_ = kLarge[random_.below(4)];
  spin_ = kSpin[random_.below(4)];
  cross_ = random_.unit() * 0.5;
  hold_ = random_.unit() * 0.1;
}

inline void Life::step() {
  const double what = random_.unit();
  const bool stops = what < 0.0005 || (what < 0.003 && shared_->captures >= 1);
  if (stops) {
    shared_->gate.stop_others();
    if (what < 0.0005) {
      CHECKED(cudaDeviceSynchronize());
    } else {
      static constexpr cudaStreamCaptureMode kModes[] = {cudaStreamCaptureModeGlobal,
                                                         cudaStreamCaptureModeThreadLocal,
                                                         cudaStreamCaptureModeRelaxed};
      capture(kModes[random_.below(3)], true);
    }
    shared_->gate.let_others();
    return;
  }
  shared_->gate.enter();
  if (what < 0.013) {
    replace_stream();
  } else if (what < 0.018) {
    // The host runs far ahead of this stream.
    spin_ns<<<1, 1, 0, pick()->handle>>>(random_.between(1000000, 6000000));
  } else if (what < 0.023) {
    CHECKED(cudaStreamSynchronize(pick()->handle));
  } else if (what > 1 - shared_->legacy_waits) {
    CHECKED(cudaStreamSynchronize(cudaStreamLegacy));
  } else if (what < 0.035 && shared_->captures >= 2) {
    capture(random_.chance(0.5) ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeRelaxed,
            false);
  } else if (what < 0.1) {
    release_held();
  } else {
    batch();
  }
  shared_->gate.leave();
}

inline void Life::batch() {
  std::vector<Block> blocks;
  Batch all;
  cudaStream_t stream = pick()->handle;
  uint64_t words_left = uint64_t{24} << 20;  // 96 MiB
  if (random_.chance(0.1)) {                 // the shortest life
    std::vector<Block> unused{allocate(random_words())};
    free_all(&unused);
  }
  const uint64_t wanted = random_.between(1, most_blocks_);
  for (uint64_t i = 0; i < wanted && words_left != 0; ++i) {
    blocks.push_back(allocate(std::min(words_left, random_words())));
    words_left -= blocks.back().count;
    all.add(blocks.back());
  }
  maybe_spin(stream, spin_);
  all.stamp(stream, 0);
  maybe_spin(stream, spin_);
  if (random_.chance(0.3)) {
    Block copy = allocate(blocks[0].count);
    copy.tag = blocks[0].tag;
    if (random_.chance(0.5)) {
      copy_u32<<<64, 256, 0, stream>>>(copy.words, blocks[0].words, copy.count);
    } else {
      CHECKED(cudaMemcpyAsync(copy.words, blocks[0].words, copy.count * sizeof(uint32_t),
                              cudaMemcpyDeviceToDevice, stream));
    }
    blocks.push_back(copy);
    all.add(copy);
  }
  if (random_.chance(cross_)) {
    cudaStream_t other = pick()->handle;
    order(other, stream);
    stream = other;
  }
  all.check(stream, shared_->verdict);

  // What is held lives on, with its words unchanged whatever others do.
  std::vector<Block> freed;
  Batch late;
  for (Block& block : blocks) {
    if (held_.size() < kMostHeld && block.count <= (1u << 20) && random_.chance(hold_)) {
      block.ready = event_on(stream);
      held_.push_back(block);
    } else {
      freed.push_back(block);
      late.add(block);
    }
  }
  if (freed.empty()) return;
  // A copy to the host that the program reads after the free: legacy waited for it (contract 2).
  const bool sampled = !in_capture_ && random_.chance(0.005);
  const uint32_t due = freed[0].tag;
  if (sampled) {
    *sample_ = ~due;
    CHECKED(cudaMemcpyAsync(const_cast<uint32_t*>(sample_), freed[0].words, sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, stream));
  }
  maybe_spin(stream, spin_);
  if (random_.chance(0.7)) {
    late.stamp(stream, kLate);
  } else {
    for (const Block& block : freed) {
      CHECKED(cudaMemsetAsync(block.words, 0xFF, block.count * sizeof(uint32_t), stream));
    }
  }
  free_all(&freed);
  if (sampled) {
    ++shared_->samples_read;
    if (*sample_ != due) ++shared_->samples_wrong;
    // Where the wait is not kept, the copy must at least not land in the next sample.
    if (*sample_ != due) CHECKED(cudaStreamSynchronize(stream));
  }
}

// Blocks are allocated before, used inside, freed with the graph's work pending. `alone`: every
// other thread is stopped, so that the global mode and blocking streams are legal.
inline void Life::capture(cudaStreamCaptureMode mode, bool alone) {
  batch();
  std::vector<Block> blocks;
  Batch captured;
  const uint64_t wanted = random_.between(1, 4);
  for (uint64_t i = 0; i < wanted; ++i) {
    blocks.push_back(allocate(std::min<uint64_t>(1 << 18, random_words())));
    captured.add(blocks.back());
  }
  Stream* origin = pick(!alone);
  while (origin->kind == legacy) origin = pick(true);
  const cudaEvent_t fork = event_on(origin->handle);
  const cudaEvent_t join = event_on(origin->handle);
  CHECKED(cudaStreamBeginCapture(origin->handle, mode));
  origin->capturing = true;
  capture_body(origin, captured, fork, join);
  // Only the relaxed mode lets a thread allocate and free while it captures; beside a captured
  // blocking stream the legacy stream must not be touched.
  if (mode == cudaStreamCaptureModeRelaxed && origin->kind == non_blocking) {
    in_capture_ = true;
    for (uint64_t i = random_.below(3); i != 0; --i) batch();
    in_capture_ = false;
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(origin->handle, &graph);
  for (Stream& stream : streams_) stream.capturing = false;
  CHECKED(cudaEventDestroy(fork));
  CHECKED(cudaEventDestroy(join));
  if (ended != cudaSuccess || graph == nullptr) {
    std::fprintf(stderr, "a capture was lost: %d\n", static_cast<int>(ended));
    cudaGetLastError();
    ++shared_->captures_lost;
    free_all(&blocks);
    return;
  }
  ++shared_->graphs;
  finish_graph(graph, blocks);
}

inline void Life::capture_body(Stream* origin, const Batch& captured, cudaEvent_t fork,
                               cudaEvent_t join) {
  const cudaStream_t stream = origin->handle;
  captured.stamp(stream, 0);
  maybe_spin(stream, 0.5);
  Stream* joined = random_.chance(0.5) ? pick(true) : nullptr;
  if (joined != nullptr) {
    joined->capturing = true;
    CHECKED(cudaEventRecord(fork, stream));
    CHECKED(cudaStreamWaitEvent(joined->handle, fork, 0));
    captured.check(joined->handle, shared_->verdict);
    maybe_spin(joined->handle, 0.5);
    CHECKED(cudaEventRecord(join, joined->handle));
    CHECKED(cudaStreamWaitEvent(stream, join, 0));
  } else {
    captured.check(stream, shared_->verdict);
  }
  maybe_spin(stream, 0.5);
  captured.stamp(stream, kLate);
}

inline void Life::finish_graph(cudaGraph_t graph, const std::vector<Block>& blocks) {
  cudaGraphExec_t executable = nullptr;
  CHECKED(cudaGraphInstantiate(&executable, graph, 0));
  const cudaStream_t stream = pick()->handle;
  for (uint64_t i = random_.between(1, 3); i != 0; --i) {
    CHECKED(cudaGraphLaunch(executable, stream));
    if (random_.chance(0.5)) batch();
  }
  std::vector<Block> freed = blocks;
  free_all(&freed);
  CHECKED(cudaGraphExecDestroy(executable));
  CHECKED(cudaGraphDestroy(graph));
}

// Frees a held block, perhaps one that another thread made.
inline void Life::release_held() {
  if (held_.empty()) return;
  std::swap(held_[random_.below(held_.size())], held_.back());
  Block block = held_.back();
  held_.pop_back();
  if (random_.chance(0.3)) {
    const std::lock_guard<std::mutex> lock(shared_->mailbox_mutex);
    shared_->mailbox.push_back(block);
    if (shared_->mailbox.size() < 16) return;
    std::swap(shared_->mailbox[random_.below(16)], shared_->mailbox.back());
    block = shared_->mailbox.back();
    shared_->mailbox.pop_back();
    ++shared_->handed_over;
  }
  Batch batch;
  batch.add(block);
  const cudaStream_t stream = pick()->handle;
  CHECKED(cudaStreamWaitEvent(stream, block.ready, 0));
  CHECKED(cudaEventDestroy(block.ready));
  batch.check(stream, shared_->verdict);
  maybe_spin(stream, spin_);
  batch.stamp(stream, kLate);
  std::vector<Block> freed{block};
  free_all(&freed);
}

inline void Life::replace_stream() {
  Stream* stream = pick();
  if (stream->kind < blocking) return;
  CHECKED(cudaStreamDestroy(stream->handle));
  ++shared_->streams_destroyed;
  *stream = create_stream(stream);
}

// The first two streams stay non-blocking: captures that run beside other threads need them. Or
// there is none in the whole program.
inline Life::Stream Life::create_stream(const Stream* place) {
  Stream stream;
  stream.kind = shared_->only_blocking ? static_cast<Kind>(random_.below(non_blocking))
                : place < streams_ + 2 ? non_blocking
                                       : static_cast<Kind>(random_.below(4));
  switch (stream.kind) {
    case legacy:
      stream.handle = cudaStreamLegacy;
      break;
    case per_thread:
      stream.handle = cudaStreamPerThread;
      break;
    case blocking:
      CHECKED(cudaStreamCreate(&stream.handle));
      break;
    case non_blocking:
      CHECKED(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
      break;
  }
  return stream;
}

inline Life::Stream* Life::pick(bool only_non_blocking) {
  while (true) {
    Stream* stream = &streams_[random_.below(kStreams)];
    if (stream->capturing || (only_non_blocking && stream->kind != non_blocking)) continue;
    return stream;
  }
}

inline Block Life::allocate(uint64_t count) {
  Block block;
  block.count = count;
  block.tag = (static_cast<uint32_t>(index_) << 27) | (++next_tag[index_] & ((1u << 27) - 1));
  void* words = nullptr;
  CHECKED(cudaMalloc(&words, block.count * sizeof(uint32_t)));
  block.words = static_cast<uint32_t*>(words);
  return block;
}

// 4 bytes to 64 MiB: mostly small, as in real programs, and evenly over the orders of magnitude.
inline uint64_t Life::random_words() {
  double low = 0;
  double high = 10;  // up to 4 KiB
  if (random_.chance(large_)) {
    low = random_.chance(0.2) ? 20 : 16;
    high = low == 20 ? 24 : 20;
  } else if (random_.chance(0.25)) {
    low = 10;
    high = 16;
  }
  return static_cast<uint64_t>(std::exp2(low + random_.unit() * (high - low)));
}

inline void Life::maybe_spin(cudaStream_t stream, double probability) {
  if (!random_.chance(probability)) return;
  spin_ns<<<1, 1, 0, stream>>>(random_.between(2000, 80000));
  CHECKED(cudaGetLastError());
}

inline void Life::free_all(std::vector<Block>* blocks) {
  for (size_t left = blocks->size(); left != 0; --left) {
    std::swap((*blocks)[random_.below(left)], (*blocks)[left - 1]);
    CHECKED(cudaFree((*blocks)[left - 1].words));
  }
  shared_->pairs += blocks->size();
  blocks->clear();
}

inline cudaEvent_t Life::event_on(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  CHECKED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECKED(cudaEventRecord(event, stream));
  return event;
}

inline void Life::order(cudaStream_t later, cudaStream_t earlier) {
  const cudaEvent_t event = event_on(earlier);
  CHECKED(cudaStreamWaitEvent(later, event, 0));
  CHECKED(cudaEventDestroy(event));
}

}  // namespace ordered_stress
