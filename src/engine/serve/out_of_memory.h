// SPDX-License-Identifier: Apache-2.0
// A call that ran out of memory is repeated after idle memory was given back (contract 4).
#pragma once

#include <optional>

#include "engine/context/context_registry.h"
#include "engine/ipc/neighbours.h"
#include "engine/reclaim/patience.h"
#include "engine/serve/async_memory.h"
#include "engine/serve/idle_memory.h"
#include "engine/serve/room.h"
#include "stats/timeline.h"
#include "util/clock.h"

namespace cupool::engine {

/// What page-locked host memory takes of a device at most: entries of page tables, 8 bytes for each
/// 4 KiB.
constexpr std::uint64_t page_table_bytes(std::uint64_t host_bytes) {
  return host_bytes / 512 + 1;
}

/// A call of the program's that may be made again. Of no type of its own, since each function has
/// one.
class Attempt {
 public:
  template <typename Call>
  explicit Attempt(const Call& call)
      : call_(&call), make_([](const void* made) { return (*static_cast<const Call*>(made))(); }) {}
  CUresult operator()() const { return last_ = make_(call_); }

  /// Without host memory for what attempts need, this is the program's answer: no exception crosses
  /// a C boundary.
  CUresult last() const { return last_; }

 private:
  const void* call_;
  CUresult (*make_)(const void*);
  mutable CUresult last_ = CUDA_ERROR_OUT_OF_MEMORY;
};

/// Thread-safe.
class OutOfMemory {
 public:
  OutOfMemory(const cuda::Driver& driver, ContextRegistry& registry, IdleMemory& idle,
              AsyncMemory& async)
      : driver_(driver),
        registry_(registry),
        idle_(idle),
        async_(async),
        room_(driver, registry, async) {}

  /// Maximum attempts of one call. Other threads may take the memory that was given back.
  static constexpr int kRetries = 64;

  /// Repeats a call that ran out of memory, if idle memory could be given back.
  template <typename Call>
  CUresult retry(const Call& real, Patience& patience) {
    return retry_here(Attempt(real), patience);
  }
  template <typename Call>
  CUresult retry(const Call& real) {
    Patience patience;
    return retry(real, patience);
  }

  /// As retry(), for a call that creates a stream in the current context. If it still fails, spare
  /// streams are destroyed, one before each further attempt.
  template <typename Call>
  CUresult retry_stream(const Call& create) {
    CUresult result = retry(create);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && destroy_spare_stream()) result = create();
    return result;
  }

  /// As retry(), for a call that needs memory of device `ordinal`, whatever context is current.
  /// Without a context on it, nothing here is idle, but neighbours are asked.
  template <typename Call>
  CUresult retry_on(int ordinal, const Call& real, Patience patience = Patience()) {
    return retry_of(ordinal, Attempt(real), patience);
  }

  /// As retry(), for a call that takes memory of the device `only` (null: not known, the current
  /// one is tried first), and that may be refused for another reason, as by the limit of a pool.
  /// Nothing is given back where memory cannot be the cause.
  template <typename Call>
  CUresult retry_anywhere(const Call& real, Patience& patience, const Device* only = nullptr) {
    return retry_where_short(Attempt(real), patience, only);
  }

  /// Whether `bytes` fit on the device of `context` (null: not known) when it is empty. If not, no
  /// idle memory is given back and nobody waits.
  static bool may_fit(Context* context, std::uint64_t bytes);

  /// The driver is about to be asked for `bytes` of the context's device (null: not known). Where
  /// they are not free, gives stream-ordered memory that lies idle back first.
  void before_driver_call(Context* context, std::uint64_t bytes);

  /// Gives all idle memory of the context's device back, and waits for retired blocks within
  /// `patience`. True: there was some.
  bool give_back_idle(Context& context, Patience& patience);

  /// Gives back the context's cached blocks and the idle memory of its device's pools. True: the
  /// pools have shrunk. The caller is in a visit.
  bool give_back_cached(Context& context);

  /// The program is about to end `context`. If that is the last one of its device, gives the idle
  /// memory of cupool's pools back, which outlive contexts: afterwards nothing could free it, and
  /// another process would find it taken. The caller is in no visit.
  void context_ends(Context& context);

  /// Gives back idle pool memory of the device with this UUID, for another process that wants
  /// `wanted_bytes` (0: not known). First what the pools hold idle; if that does not do, cached
  /// blocks, and retired ones whose fence completes soon. Not the bytes of CUPOOL_PREALLOC, plain
  /// memory, or what the program keeps in a default pool that is not kept, and nothing during a
  /// capture. Returns the bytes given back. The caller is in no visit, and holds off the driver's
  /// end.
  std::optional<std::uint64_t> give_to_neighbour(const channel::DeviceId& device,
                                                 std::uint64_t wanted_bytes);

  /// Gives back what the device's default pool holds idle, if it is kept. Returns the bytes; needs
  /// no wait.
  std::uint64_t trim_default_pool(Device& device);
  /// The same on the current device, if only that tells how much memory is free (contract 5).
  void trim_if_unclear();

  /// Makes a spare for each of cupool's streams in the context, as far as there is memory.
  ///
  /// A stream takes device memory, of which the context has some in reserve for the first ones.
  /// cupool's streams have used that up, so on a full device the program's would be refused. Not
  /// made while there is memory: each stream makes synchronising the context slower.
  void make_spare_streams(Context& context);

  /// True if memory was released since `*tried_ns`, by this thread or another: retry. Then sets
  /// `*tried_ns` to the start of the new attempt. False also if earlier attempts have shown that
  /// another one is in vain.
  bool more_given_back(Context& context, std::uint64_t* tried_ns, Patience& patience);

 private:
  // Assumed duration of a call that ran out of memory, since its start is not known.
  static constexpr std::uint64_t kLongestCallNs = 10'000'000;

  CUresult retry_here(const Attempt& real, Patience& patience);
  CUresult retry_of(int ordinal, const Attempt& real, Patience patience);
  CUresult retry_where_short(const Attempt& real, Patience& patience, const Device* only);
  CUresult retry_in(Context& context, const Attempt& real, Patience& patience);
  CUresult ask_neighbours(Device& device, const Attempt& real, Patience& patience);
  void end_preallocation(Context& context);
  std::uint64_t give_back_done(Device& device, AsyncIdle::Look look);
  bool may_do(Device& device, std::uint64_t gave, Patience& patience);
  bool give_back_idle_of(Context& context, Patience& patience, bool* enough);
  template <typename GiveBack, typename Meanwhile>
  bool reclaim_all_of(Context& context, Patience& patience, const GiveBack& give_back,
                      const Meanwhile& meanwhile);
  bool give_back_pooled(Context& context);
  struct Asking {
    std::uint64_t since_ns = 0;
    std::uint64_t until_ns = 0;  ///< 0: not yet
  };
  bool neighbours_gave(Device& device, Patience& patience, Asking* asking);
  bool close_small_chunk(Context& context, Patience& patience);
  bool destroy_spare_stream();

  const cuda::Driver& driver_;
  ContextRegistry& registry_;
  IdleMemory& idle_;
  AsyncMemory& async_;
  Room room_;
  ipc::Neighbours neighbours_;
};

/// Makes a call of the program that takes device memory. Repeats it if it ran out of memory.
template <typename Call>
CUresult rescue(OutOfMemory& out_of_memory, const Call& real) {
  const CUresult result = real();
  return result == CUDA_ERROR_OUT_OF_MEMORY ? out_of_memory.retry(real) : result;
}

}  // namespace cupool::engine
