// The epoch that frees join (core/ordering): its number and the bytes that have joined it are one
// word, so that a thread joins by one atomic addition, which never waits for another thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/size_class.h"

namespace cupool::core {

/// Number of an epoch of one context; later ones are greater.
using EpochNumber = std::uint64_t;

/// Joining and reading are thread-safe; close() is for one thread at a time.
class OpenEpoch {
 public:
  /// What a closed epoch was.
  struct Closed {
    EpochNumber number;
    std::uint64_t bytes;
    std::size_t frees;  ///< about: those of a batch that joins meanwhile may be the next one's
  };

  /// Adds a batch of `frees` blocks, `bytes` in all, a multiple of kAlignment, and says of which
  /// epoch it is. What the caller did before comes before what the thread does that closes it.
  EpochNumber join(std::uint64_t bytes, std::size_t frees) {
    frees_.fetch_add(frees, std::memory_order_relaxed);
    return number_in(word_.fetch_add(bytes / kAlignment, std::memory_order_acq_rel));
  }

  EpochNumber number() const { return number_in(word_.load(std::memory_order_acquire)); }
  std::uint64_t bytes() const { return bytes_in(word_.load(std::memory_order_relaxed)); }
  bool empty() const { return bytes() == 0; }
  /// Whether it holds so many frees or so many bytes. One that is not empty holds a free.
  bool holds(std::size_t frees, std::uint64_t bytes_or_more) const {
    const std::uint64_t joined = bytes();
    const std::size_t counted = frees_.load(std::memory_order_relaxed);
    return (counted == 0 && joined != 0 ? 1 : counted) >= frees || joined >= bytes_or_more;
  }

  /// Begins the next one.
  Closed close() {
    const EpochNumber number = newest_.load(std::memory_order_relaxed);
    newest_.store(number + 1, std::memory_order_relaxed);
    const std::uint64_t word =
        word_.exchange((number + 1) << kBytesBits, std::memory_order_acq_rel);
    return {number, bytes_in(word), frees_.exchange(0, std::memory_order_relaxed)};
  }

 private:
  // The word: the number's lowest 24 bits, then the bytes in units of kAlignment, up to 512 TiB.
  static constexpr unsigned kBytesBits = 40;
  static constexpr std::uint64_t kBytesMask = (std::uint64_t{1} << kBytesBits) - 1;

  static std::uint64_t bytes_in(std::uint64_t word) { return (word & kBytesMask) * kAlignment; }
  // A thread that has read a word has read it within eight million epochs of the newest.
  EpochNumber number_in(std::uint64_t word) const {
    const EpochNumber newest = newest_.load(std::memory_order_relaxed);
    const auto ahead = static_cast<std::int64_t>((word & ~kBytesMask) - (newest << kBytesBits));
    return newest + static_cast<std::uint64_t>(ahead >> kBytesBits);
  }

  std::atomic<std::uint64_t> word_{std::uint64_t{1} << kBytesBits};
  std::atomic<std::size_t> frees_{0};
  std::atomic<EpochNumber> newest_{1};
};

}  // namespace cupool::core
