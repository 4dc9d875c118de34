// SPDX-License-Identifier: Apache-2.0
// The order in which a thread may take locks: one table, and in builds without NDEBUG a check of
// every lock that is taken. In others nothing of the check is left.
#pragma once

#include <cstddef>
#include <mutex>

#ifndef NDEBUG
#include <cstdio>
#include <cstdlib>
#endif

namespace cupool::util {

// X(name of the rank, what its lock protects), in the order in which locks may be taken: a thread
// that has one takes only locks further down. From `leaves` on nothing is taken under a lock.
// clang-format off
#define CUPOOL_LOCK_RANKS(X)                                                                       \
  X(primary_context, "a device's primary context, while the driver retains, releases or resets it") \
  X(context_end, "what follows from the end of a context")                                         \
  X(import_exchange, "the importer's talk with an exporter")                                       \
  X(import_table, "the importer's table of open memory")                                           \
  X(neighbours, "this process's requests to its neighbours")                                      \
  X(peak_use, "the sample of a device's highest use")                                              \
  X(thread_cache_stock, "the caches of all threads of a context")                                  \
  X(ordering, "closed epochs, captures and barriers of a context")                                 \
  X(context_registry, "which handle is which context")                                             \
  X(devices, "which ordinal is which device")                                                      \
  X(lane, "whether the process is in one lane")                                                    \
  X(other_streams, "work on streams other than that of the lane")                                  \
  X(stream_caches, "which stream has which cache of stream-ordered memory")                        \
  X(leaves, "nothing: the leaves begin here")                                                      \
  X(thread_cache, "one thread's cache")                                                            \
  X(open_epoch, "blocks of the open epoch")                                                        \
  X(block_cache, "idle blocks of a context")                                                       \
  X(pointer_map, "which address is which block")                                                   \
  X(spare_blocks, "unused records of blocks")                                                      \
  X(stream_cache, "freed stream-ordered memory of one stream")                                     \
  X(host_cache, "freed page-locked memory of one shard")                                           \
  X(host_work, "events behind work that touches host memory")                                      \
  X(pinned_memory, "which host memory is page-locked")                                             \
  X(host_reachable, "ranges of memory that kernels share with the host")                           \
  X(points, "the events of a context's points")                                                    \
  X(foreign_streams, "the stream that waits for other contexts' streams")                          \
  X(orphans, "memory that outlived its context")                                                   \
  X(pool_creation, "a device's pools, while the driver makes them")                                \
  X(default_pool, "a device's default pool, while cupool or the program sets it")                  \
  X(pool_sharing, "a device's pools, while the driver exports them")                               \
  X(preallocation, "blocks of CUPOOL_PREALLOC")                                                    \
  X(small_chunk, "the block that keeps the driver's small chunk open")                             \
  X(stream_stock, "streams that threads share")                                                    \
  X(exports, "exported blocks and their leases")                                                   \
  X(attachments, "how often the program is attached to each context")                              \
  X(green_contexts, "the green contexts that the program has made")                                \
  X(library_look, "the dynamic linker's list of libraries")
// clang-format on

enum class LockRank : unsigned char {
#define CUPOOL_LOCK_RANK(name, protects) name,
  CUPOOL_LOCK_RANKS(CUPOOL_LOCK_RANK)
#undef CUPOOL_LOCK_RANK
};

/// The check. A lock that is only tried is not checked, since nobody waits for it, but counts as
/// held. All for the calling thread.
class LockOrder {
 public:
#ifdef NDEBUG
  static void check(LockRank) {}
  static void taken(LockRank) {}
  static void released(LockRank) {}
  static void begin_anew() {}
#else
  /// Before a lock is waited for: ends the process, with a message, if what is held forbids it.
  static void check(LockRank rank) {
    for (std::size_t i = 0; i < held.count; ++i) {
      const LockRank other = held.ranks[i];
      if (other < rank && other < LockRank::leaves) continue;
      std::fprintf(stderr, "cupool: lock %s is taken while %s is held (util/lock_order.h)\n",
                   name(rank), name(other));
      std::abort();
    }
  }
  static void taken(LockRank rank) {
    if (held.count == kMostHeld) std::abort();
    held.ranks[held.count++] = rank;
  }
  static void released(LockRank rank) {
    for (std::size_t i = held.count; i-- != 0;) {
      if (held.ranks[i] != rank) continue;
      for (--held.count; i < held.count; ++i) held.ranks[i] = held.ranks[i + 1];
      return;
    }
    std::fprintf(stderr, "cupool: lock %s is released by a thread that does not hold it\n",
                 name(rank));
    std::abort();
  }
  /// The thread has left what it was doing for good, in a signal handler: what that held stays
  /// held, and says nothing about what follows.
  static void begin_anew() {
    held.count = 0;
  }

 private:
  static const char* name(LockRank rank) {
    static constexpr const char* kNames[] = {
#define CUPOOL_LOCK_RANK(name, protects) #name,
        CUPOOL_LOCK_RANKS(CUPOOL_LOCK_RANK)
#undef CUPOOL_LOCK_RANK
    };
    return kNames[static_cast<unsigned>(rank)];
  }

  static constexpr std::size_t kMostHeld = 16;
  struct Held {
    std::size_t count;
    LockRank ranks[kMostHeld];
  };
  static inline thread_local Held held{};
#endif
};

/// A Lockable of `rank` around another one.
template <LockRank rank, typename Mutex = std::mutex>
class Ranked {
 public:
  void lock() {
    LockOrder::check(rank);
    mutex_.lock();
    LockOrder::taken(rank);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    LockOrder::taken(rank);
    return true;
  }
  void unlock() {
    LockOrder::released(rank);
    mutex_.unlock();
  }

 private:
  Mutex mutex_;
};

}  // namespace cupool::util
