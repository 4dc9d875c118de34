// SPDX-License-Identifier: Apache-2.0
// A pthread key takes the place of a destructor, so that the number is plain data: a late call in
// an exiting thread takes a shard once more.
#include "engine/host/host_shards.h"

#include <pthread.h>

namespace cupool::engine {

std::size_t HostShards::take() {
  static std::atomic<std::size_t> more_threads{0};
  struct Key {
    Key() : made(pthread_key_create(&key, give_back) == 0) {}
    pthread_key_t key{};
    const bool made;  ///< a process has so many
  };
  static const Key at_end;
  constexpr std::uint64_t kAll = ~std::uint64_t{0} >> (64 - kHostShards);
  std::uint64_t taken = taken_.load(std::memory_order_relaxed);
  while (at_end.made && (taken & kAll) != kAll) {
    const std::uint64_t lowest = ~taken & (taken + 1);
    if (!taken_.compare_exchange_weak(taken, taken | lowest, std::memory_order_relaxed)) continue;
    own_ = static_cast<std::size_t>(__builtin_ctzll(lowest)) + 1;
    pthread_setspecific(at_end.key, &own_);
    return own_ - 1;
  }
  own_ = more_threads.fetch_add(1, std::memory_order_relaxed) % kHostShards + 1;
  return own_ - 1;
}

// Of the calling thread, which ends.
void HostShards::give_back(void*) {
  taken_.fetch_and(~(std::uint64_t{1} << (own_ - 1)), std::memory_order_relaxed);
  own_ = 0;
}

}  // namespace cupool::engine
