// The allocator: who serves an allocation, what a free does, and what a program is told about its
// memory. Every route ends here; nothing here knows by which one a call came.
#pragma once

#include <cstdint>
#include <optional>

#include "config/settings.h"
#include "core/context_registry.h"
#include "core/ipc_exports.h"
#include "core/ipc_imports.h"
#include "core/legacy_stream.h"
#include "core/pointer_map.h"
#include "cuda/driver.h"
#include "stats/timeline.h"
#include "trace/watch.h"
#include "util/clock.h"
#include "util/mutation.h"

namespace cupool::core {

/// Thread-safe. `std::nullopt` from a try_ function means: not ours, make the real call.
// What is written apart from what is read. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Allocator {
 public:
  Allocator(const cuda::Driver& driver, const config::Settings& settings);

  /// Serves `bytes` in the current context: from the cache, else fresh, after giving idle memory
  /// back if need be. On success `*address` is set.
  std::optional<CUresult> try_allocate(std::uint64_t bytes, CUdeviceptr* address);

  /// Serves `bytes` only if a quiet block lies ready in `context`'s cache; for the runtime's short
  /// cut. False: nothing has happened.
  bool try_allocate_cached(Context& context, std::uint64_t bytes, CUdeviceptr* address);

  /// Frees `address` if a block of ours begins there. The result is what the driver would say, a
  /// double free and a sticky error included.
  std::optional<CUresult> try_free(CUdeviceptr address);

  /// The same for a stream-ordered free, which legacy memory may be given to as well: the block is
  /// retired, and the caller does not wait.
  std::optional<CUresult> try_free_in_stream(CUdeviceptr address);

  /// Frees `address` if a live block of ours begins there; for the runtime's short cut. False: the
  /// real function has to answer.
  bool try_free_live(CUdeviceptr address);

  /// Makes an allocation that passes through: the real call, and once more after idle memory has
  /// been given back if it ran out of memory. `bytes()` is asked after a success for what to count;
  /// `address` is where the real call leaves its result.
  template <typename Bytes, typename Call>
  CUresult pass_allocation(const Bytes& bytes, const CUdeviceptr* address, const Call& real) {
    const std::uint64_t start = util::now_ns();
    const CUresult result = rescue(real);
    note_passed_allocation(registry_.current(), result == CUDA_SUCCESS ? bytes() : 0, address,
                           result, start);
    return result;
  }

  /// Makes a call of the program that takes device memory, and once more after idle memory has been
  /// given back if it ran out of memory (contract 4).
  template <typename Call>
  CUresult rescue(const Call& real) {
    const CUresult result = real();
    return result == CUDA_ERROR_OUT_OF_MEMORY ? retry(real) : result;
  }

  /// The second attempt of a call that ran out of memory, if idle memory could be given back.
  template <typename Call>
  CUresult retry(const Call& real) {
    Context* context = registry_.current();
    if (context == nullptr || !context->usable()) return CUDA_ERROR_OUT_OF_MEMORY;
    return retry_in(*context, real);
  }

  /// The same for a call that needs memory of device `ordinal`, whatever context is current.
  template <typename Call>
  CUresult retry_on(int ordinal, const Call& real) {
    for (Context* context : registry_.contexts_of(ordinal)) {
      if (context->usable()) return retry_in(*context, real);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }

  /// The same for a call that does not say which device it takes memory of (a pool's, a stream's):
  /// on the current one first.
  template <typename Call>
  CUresult retry_anywhere(const Call& real) {
    Context* context = registry_.current();
    const Device* first = context == nullptr ? nullptr : &context->device();
    CUresult result = retry(real);
    for (const Device* device : registry_.devices()) {
      if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
      if (device != first) result = retry_on(device->ordinal(), real);
    }
    return result;
  }

  /// Makes a free that passes through, and forgets the allocation if it succeeded.
  template <typename Call>
  CUresult pass_free(CUdeviceptr address, const Call& real) {
    const std::uint64_t start = util::now_ns();
    Block* passed = take_passed(address);
    registry_.current();  // a new context gives the memory of a lost one back first
    // The driver would free memory of ours that the program does not own, and what it has imported,
    // which is closed and never freed.
    const bool internal =
        passed == nullptr && (registry_.is_internal(address) || imports_.holds(address));
    const CUresult result = internal ? CUDA_ERROR_INVALID_VALUE : real();
    note_passed_free(passed, result, start);
    if (result == CUDA_SUCCESS) {
      host_reachable_.remove(HostReachable::Kind::managed, address);
    }
    return result;
  }

  /// Whether the page-locked memory at `host` is cupool's and not the program's.
  bool is_internal(const void* host) {
    return registry_.is_internal(reinterpret_cast<CUdeviceptr>(host));
  }

  /// Runs the program's synchronisation of `context` (null: not one that is served).
  /// `count_failure` false: a failure is not counted, because the caller will make the call once
  /// more.
  template <typename Call>
  CUresult synchronize(Context* context, bool count_failure, const Call& real) {
    if (context == nullptr) return real();
    const std::uint64_t start = util::now_ns();
    context->drain_threads(Context::Drain::join);
    const EpochNumber before = context->ordering().begin_synchronize();
    const HostWork::Mark host_work = context->host_work().begin_wait();
    const CUresult result = real();
    if (result == CUDA_SUCCESS || count_failure) {
      context->stats().add(stats::Counter::synchronize_calls_total);
      context->stats().synchronize_time().record(util::now_ns() - start);
    }
    if (result == CUDA_SUCCESS) {
      context->ordering().end_synchronize(before);
      context->host_work().end_context_wait(host_work);
      keep_quiet(*context);
    } else {
      note_failure(*context, result);
    }
    return result;
  }

  /// The same of its wait for the legacy stream of `context`, its current one.
  template <typename Call>
  CUresult synchronize_legacy_stream(Context& context, const Call& real) {
    StreamWait wait;
    if (!begin_stream_wait(context, &wait)) return real();
    const CUresult result = real();
    // Asked last: see LegacyStream.
    if (result == CUDA_SUCCESS && LegacyStream::covers_context()) end_stream_wait(context, wait);
    return result;
  }

  /// The pitch that the driver gives a row of `width` bytes, or 0 if it is not known yet. The first
  /// real answer of a device teaches it.
  std::uint64_t known_pitch(std::uint64_t width);
  void learn_pitch(std::uint64_t width, std::uint64_t pitch);

  /// Counting calls that are not served here, on the current device.
  void count_null_free();
  void count_in_current_device(stats::Counter counter);

  /// Whether a block of ours, in whatever state, begins at `address`.
  bool holds(CUdeviceptr address) const;

  /// Bytes that lie idle on the current device and that the program may count as free.
  std::uint64_t idle_bytes();

  /// Where the block of ours begins that `address` lies in; where it lies in none, what the driver
  /// says of it, or itself.
  CUdeviceptr base_of(CUdeviceptr address) const;

  /// The live block of ours that begins at `base`, or null.
  const Block* live_block(CUdeviceptr base);
  /// The program's memory that begins at `address`, whoever serves it.
  std::optional<trace::Memory> memory_at(CUdeviceptr address) const;
  /// Whether `base` is a block that the program has freed already.
  bool is_freed_block(CUdeviceptr base);

  /// The program has allocated managed memory: kernels reach it, and it takes device memory when
  /// they do.
  void managed_allocated(CUdeviceptr address, std::uint64_t bytes);

  /// The address is known outside of CUDA's ordering (IPC, RDMA, SYNC_MEMOPS): its block is never
  /// served again. `address` may lie inside the block.
  void mark_shared_outside(CUdeviceptr address);

  /// Makes an IPC handle for the block that `address` lies in, if it is a live one of a pool of
  /// ours that can be shared.
  std::optional<CUresult> try_export(CUdeviceptr address, CUipcMemHandle* handle);

  /// Opens `handle` in the current context if cupool made it, in whatever process.
  std::optional<CUresult> try_import(const CUipcMemHandle& handle, CUdeviceptr* address);

  /// Memory of other processes that is open.
  IpcImports& imports() { return imports_; }

  /// The driver has destroyed `context`, or all contexts of a device.
  void context_gone(Context& context);

  /// Gives all idle memory of the context's device back to the device; true if there was any.
  bool give_back_idle(Context& context);

  /// For decay, on a thread of ours; nothing decays in the device's default pool, whose memory the
  /// program may be given next. What threads that have done nothing since the last call hold
  /// goes to the shared cache of `context`, and what is retired into the next epoch.
  void settle_idle(Context& context);
  /// Gives blocks of `context` that nobody has needed for a while (see BlockCache) back to the
  /// pools, until they have `most_bytes` or more. The bytes; 0: there are no more. Plain memory
  /// stays: its return waits for the GPU.
  std::uint64_t release_unneeded(Context& context, std::uint64_t most_bytes);
  /// Gives about `most_bytes` that lie unneeded in the pools back to the device (see PoolBackend).
  /// False: nothing has gone back.
  bool trim_unneeded(Context& context, std::uint64_t most_bytes, bool* more);

  /// From now on CUPOOL_PREALLOC is left to preallocate_some(), and `wake` says that there is work.
  void preallocate_elsewhere(void (*wake)()) { wake_preallocator_.store(wake); }
  /// From now on pools are started by start_some_pools(), and `wake` says that there is one to
  /// start.
  void start_pools_elsewhere(void (*wake)()) {
    wake_starter_.store(wake);
    registry_.start_pools_later(true);
  }
  /// Starts the pools of the devices that await it. False: some are still to be started, where no
  /// context could be used.
  bool start_some_pools();
  /// There is nobody to do so: the program's own calls do.
  void start_pools_at_first() { registry_.start_pools_later(false); }

  /// Reserves a slice of it on some device. True: and there is more that could be, at once.
  bool preallocate_some();
  /// Whether there is more to reserve on any device.
  bool preallocates();

  /// From now on every allocation passes through, and freed blocks of ours are kept aside: for
  /// `reason`, which a warning gives, the engine cannot know any more what is done with its memory.
  void stop_serving(const char* reason);
  bool serves() const { return serving_.load(std::memory_order_relaxed); }

  /// Reads the driver's pool figures into the statistics, and counts what is still live.
  void refresh_figures();

  /// Brings the statistics up to date with what threads have counted.
  void fold_statistics();

  // The hot path (core/allocator_hot.h).
  /// A small block for the program that the calling thread has ready in `context`, its current one.
  /// Null: nothing has happened.
  Block* take_hot(Context& context, std::uint64_t bytes);
  /// Frees a live block of ours that the calling thread's batch has room for. Nothing: nothing has
  /// happened.
  std::optional<CUresult> free_hot(CUdeviceptr address);

  ContextRegistry& registry() { return registry_; }

  /// Host memory of the program that kernels can reach.
  HostReachable& host_reachable() { return host_reachable_; }

  /// In force: what `auto` means in this process is settled.
  config::FreeMode free_mode() const { return free_mode_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kRetries = 64;

  // Of a call that ran out of memory nobody knows when it began; hardly earlier than this.
  static constexpr std::uint64_t kLongestCallNs = 10'000'000;

  // For its life a thread has idle memory in its hands that is on its way back to the driver.
  class GivingBack {
   public:
    explicit GivingBack(Allocator& allocator) : allocator_(allocator) {
      allocator_.giving_back_.fetch_add(1, std::memory_order_acq_rel);
    }
    ~GivingBack() {
      if (gave_back) allocator_.gave_back_ns_.store(util::now_ns(), std::memory_order_release);
      allocator_.giving_back_.fetch_sub(1, std::memory_order_acq_rel);
    }
    GivingBack(const GivingBack&) = delete;
    GivingBack& operator=(const GivingBack&) = delete;

    bool gave_back = false;

   private:
    Allocator& allocator_;
  };

  template <typename Call>
  CUresult retry_in(Context& context, const Call& real) {
    // More than once, since other threads take what was given back.
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t tried_ns = util::now_ns() - kLongestCallNs;
    for (int round = 0; result == CUDA_ERROR_OUT_OF_MEMORY && round < kRetries; ++round) {
      if (!more_given_back(context, &tried_ns)) break;
      result = real();
    }
    // An error that is there to stay may have kept memory back: then that is the answer (I7).
    const bool answered = context.usable() && !cuda::shut_down();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !answered) result = real();
    if (result == CUDA_SUCCESS) {
      context.stats().add(stats::Counter::oom_rescues_total);
      stats::note_event(stats::EventKind::oom_rescue, context.stats(), 0);
    }
    return result;
  }

  /// What the program's wait for the legacy stream covers.
  struct StreamWait {
    ThreadCache::BatchNumber batch = ThreadCache::kNoBatch;  ///< the thread's own
    EpochNumber before = 0;                                  ///< 0: no epoch has anything
    HostWork::Mark host_work;
  };

  bool more_given_back(Context& context, std::uint64_t* tried_ns);
  bool give_back_cached(Context& context);
  bool can_serve(Context& context, std::uint64_t bytes) const;
  bool pools_are_awaited(Device& device);
  Block* take_own(Context& context, std::uint64_t bytes);
  static Block* take_counted(Context& context, ThreadCache& cache, std::uint64_t bytes);
  Block* collect_and_take(Context& context, ThreadCache& cache, std::uint64_t bytes);
  bool collect(Context& context, ThreadCache& cache,
               ThreadCache::BatchNumber waited_for = ThreadCache::kNoBatch);
  ThreadCache::Limits limits_of_thread(Context& context) const;
  Block* take_shared(Context& context, ThreadCache* cache, std::uint64_t capacity);
  static CUresult poll(Context& context, ThreadCache* cache, bool may_grow, bool close_open,
                       BlockList* quiet);
  Block* take_quiet_block(Context& context, std::uint64_t capacity, stats::Counter* served_by);
  static bool is_wanted(Device& device, const Block& quiet) {
    const bool shared = quiet.shared_outside.load(std::memory_order_relaxed) &&
                        !CUPOOL_MUTATED("shared-served-again");
    return !shared && device.keeps(quiet);
  }
  Block* fresh_block(Context& context, std::uint64_t capacity);
  CUresult allocate_fresh(Context& context, std::uint64_t capacity, CUdeviceptr* address,
                          BlockSource* source);
  Block* adopt(Context& context, std::uint64_t capacity, CUdeviceptr address, BlockSource source);
  void look_for_agents();
  void preallocate(Context& context);
  void make_live(Block& block, std::uint64_t bytes);
  void keep_quiet(Context& context);
  void leave_room_for_managed(Context& context);
  void keep(Context& context, BlockList& quiet);
  void release(Context& context, BlockList& idle);
  bool is_leased(Block& quiet);
  bool release_ended_leases();
  std::optional<CUresult> answer_unclaimed(CUdeviceptr address, PointerMap::Claim claim,
                                           const Block* found);
  EpochNumber retire(Block& block);
  CUresult free_claimed(Block& block);
  CUresult free_claimed_otherwise(Block& block);
  static bool add_to_batch(Context& context, ThreadCache& cache, Block& block);
  CUresult free_waiting(Block& block);
  CUresult free_singly(Block& block, std::uint64_t start_ns);
  CUresult end_batch(Context& context, ThreadCache& cache);
  CUresult end_batch(Context& context, ThreadCache& cache, std::uint64_t start_ns);
  bool waits_for_context(Context& context) const;
  bool may_wait(Context& context) const;
  CUresult finish_free(Context& context, const HostWork::Mark& before, EpochNumber epoch,
                       std::uint64_t bytes_freed);
  CUresult wait_for_context(Context& context, const HostWork::Mark& before, EpochNumber epoch,
                            stats::Counter reason);
  CUresult wait_for_host_work(Context& context);
  std::uint64_t pending_limit(Context& context, std::uint64_t bytes_freed) const;
  CUresult bound_pending(Context& context, std::uint64_t bytes_freed);
  void count_wait(stats::DeviceStats& stats, stats::Counter reason, std::uint64_t start_ns);
  bool begin_stream_wait(Context& context, StreamWait* wait);
  void end_stream_wait(Context& context, const StreamWait& wait);
  CUresult answer_of_free(Context& context, CUresult result);
  void note_failure(Context& context, CUresult result);
  void note_passed_allocation(Context* context, std::uint64_t bytes, const CUdeviceptr* address,
                              CUresult result, std::uint64_t start_ns);
  Block* take_passed(CUdeviceptr address);
  void note_passed_free(Block* passed, CUresult result, std::uint64_t start_ns);

  const cuda::Driver& driver_;
  const config::Settings settings_;
  ContextRegistry registry_;
  PointerMap blocks_;
  IpcExports exports_;
  IpcImports imports_;
  HostReachable host_reachable_;
  std::atomic<void (*)()> wake_preallocator_{nullptr};
  std::atomic<void (*)()> wake_starter_{nullptr};
  std::atomic<bool> agents_found_{false};
  std::atomic<int> giving_back_{0};             ///< threads that are
  std::atomic<std::uint64_t> gave_back_ns_{0};  ///< when one was done with it last; 0: never
  // Read by every call, and hardly ever written: apart from what threads write.
  alignas(128) std::atomic<config::FreeMode> free_mode_;
  std::atomic<bool> serving_{true};
  std::array<std::atomic<std::uint64_t>, stats::kMaxDevices> pitch_units_{};
};

// Whether a free in this context may have to wait for more than host work that has events, and the
// pending bound.
[[gnu::always_inline]] inline bool Allocator::waits_for_context(Context& context) const {
  const config::FreeMode mode = free_mode();
  if (mode == config::FreeMode::ordered) return false;
  return mode == config::FreeMode::sync || host_reachable_.any(HostReachable::Kind::managed) ||
         host_reachable_.any(HostReachable::Kind::zero_copy) ||
         context.host_work().needs_context() || !serving_.load(std::memory_order_relaxed);
}

[[gnu::always_inline]] inline bool Allocator::may_wait(Context& context) const {
  return free_mode() != config::FreeMode::ordered &&
         (context.host_work().maybe_pending() || waits_for_context(context));
}

}  // namespace cupool::core
