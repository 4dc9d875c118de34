// Which contexts and devices there are: from the driver's handles to ours.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "config/settings.h"
#include "core/context.h"
#include "core/device.h"
#include "cuda/driver.h"

namespace cupool::core {

namespace detail {
/// The context that the thread was last found in.
struct LastFound {
  CUcontext handle;
  Context* context;
  std::uint64_t generation;
  bool is_current;  ///< and nothing has changed that since, by the hooks
};
inline thread_local LastFound last_found{};
}  // namespace detail

/// Thread-safe. Contexts are found without a lock while a thread stays in one.
class ContextRegistry {
 public:
  ContextRegistry(const cuda::Driver& driver, const config::Settings& settings)
      : driver_(driver), settings_(settings) {}

  /// The calling thread's current context; null if it has none, or if it cannot be served. Known
  /// without asking the driver as long as the hooks have seen nothing that may change it.
  Context* current() {
    Context* const known = known_current();
    return known != nullptr ? known : look_at_current();
  }

  /// The same where it is known; null: it has to be asked for, or there is none.
  [[gnu::always_inline]] Context* known_current() const {
    const detail::LastFound& last = detail::last_found;
    const bool known =
        last.is_current && last.generation == generation_.load(std::memory_order_acquire);
    return known ? last.context : nullptr;
  }

  /// The same from the driver. `known` is what current() said: if the driver says otherwise, it has
  /// been reached by a way that the hooks do not see, and is always asked from then on.
  Context* ask_for_current(Context* known);

  /// The current one by the hooks and by the driver: what a synchronisation makes quiet must be its
  /// own context's.
  Context* current_for_certain() {
    Context* const known = current();
    return known == nullptr ? nullptr : ask_for_current(known);
  }

  /// The driver may shut down at any time from now on: it is asked each time.
  void distrust_hooks();

  /// To be called around every function of the driver that may change the calling thread's current
  /// context, before and after.
  static void current_may_change() { detail::last_found.is_current = false; }

  /// The context with this handle if it has been seen, else null. Never creates one.
  Context* find(CUcontext handle);

  /// The contexts of a device that are not gone.
  std::vector<Context*> contexts_of(int device);

  /// The context that a stream belongs to; for the default streams, and where the driver does not
  /// say, the current one. Null as current().
  Context* context_of(CUstream stream);

  /// The context in which this stream is capturing, or null.
  Context* capturing_context(CUstream stream);

  /// Whether the memory at `address` is cupool's and not the program's: it outlived its context
  /// (see Device), or is kept as a barrier (see Ordering).
  bool is_internal(CUdeviceptr address);

  /// Whether every context that was seen is gone.
  bool all_gone();

  /// Every device that serves or has served. The pointers stay valid.
  std::vector<Device*> devices();

  /// New memory of every device, of those that come later too, is plain from now on.
  void use_plain_memory();

  /// From now on devices that come into use leave the start of their pools to a thread of ours; or
  /// no device does.
  void start_pools_later(bool later);

  /// The process has made a context on device `ordinal`: other devices' memory is open to it from
  /// now on, as plain memory is.
  void device_in_use(int ordinal);

  /// To be called after any context was set gone, so that threads look again.
  void forget_found();

 private:
  Context* find_or_create(CUcontext handle);
  Context* look_at_current();

  const cuda::Driver& driver_;
  const config::Settings& settings_;
  std::mutex mutex_;
  std::map<CUcontext, Context*> contexts_;
  std::array<Device*, stats::kMaxDevices> devices_{};
  std::atomic<std::uint64_t> generation_{1};
  std::atomic<bool> plain_memory_{false};
  std::atomic<bool> start_pools_later_{false};
  std::atomic<bool> trusts_hooks_{true};
};

}  // namespace cupool::core
