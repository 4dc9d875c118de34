// SPDX-License-Identifier: Apache-2.0
// The open epoch (engine/reclaim/epochs). Its number and its bytes are one word, so that a thread
// joins by one atomic addition and never waits for another thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/block/size_class.h"
#include "engine/reclaim/epoch_number.h"

namespace cupool::engine {

/// Joining and reading are thread-safe. close() is for one thread at a time.
class OpenEpoch {
 public:
  /// The contents of a closed epoch.
  struct Closed {
    EpochNumber number;
    std::uint64_t bytes;
    std::size_t frees;  ///< approximate: a batch joining meanwhile may count in the next epoch
  };

  /// Adds a batch of `frees` blocks with `bytes` in all, a multiple of kAlignment. Returns the
  /// epoch's number. The caller's earlier steps are ordered before the later steps of the thread
  /// that closes the epoch.
  EpochNumber join(std::uint64_t bytes, std::size_t frees) {
    frees_.fetch_add(frees, std::memory_order_relaxed);
    return number_in(word_.fetch_add(bytes / kAlignment, std::memory_order_acq_rel));
  }

  EpochNumber number() const { return number_in(word_.load(std::memory_order_acquire)); }
  std::uint64_t bytes() const { return bytes_in(word_.load(std::memory_order_relaxed)); }
  bool empty() const { return bytes() == 0; }
  /// Whether the epoch has frees: some have no bytes.
  bool has_frees() const { return !empty() || frees_.load(std::memory_order_relaxed) != 0; }

  /// Closes the epoch and opens the next one.
  Closed close() {
    const EpochNumber number = newest_.load(std::memory_order_relaxed);
    newest_.store(next(number), std::memory_order_relaxed);
    const std::uint64_t word =
        word_.exchange(value_of(next(number)) << kBytesBits, std::memory_order_acq_rel);
    return {number, bytes_in(word), frees_.exchange(0, std::memory_order_relaxed)};
  }

 private:
  // The word: the lowest 24 bits of the number, then the bytes in units of kAlignment, up to 512
  // TiB.
  static constexpr unsigned kBytesBits = 40;
  static constexpr std::uint64_t kBytesMask = (std::uint64_t{1} << kBytesBits) - 1;

  static std::uint64_t bytes_in(std::uint64_t word) { return (word & kBytesMask) * kAlignment; }
  // The word may be stale by less than eight million epochs.
  EpochNumber number_in(std::uint64_t word) const {
    const std::uint64_t newest = value_of(newest_.load(std::memory_order_relaxed));
    const auto ahead = static_cast<std::int64_t>((word & ~kBytesMask) - (newest << kBytesBits));
    return EpochNumber{newest + static_cast<std::uint64_t>(ahead >> kBytesBits)};
  }

  std::atomic<std::uint64_t> word_{std::uint64_t{1} << kBytesBits};
  std::atomic<std::size_t> frees_{0};
  std::atomic<EpochNumber> newest_{EpochNumber{1}};
};

}  // namespace cupool::engine
