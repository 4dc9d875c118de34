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

/// Thread-safe. Contexts are found without a lock while a thread stays in one.
class ContextRegistry {
 public:
  ContextRegistry(const cuda::Driver& driver, const config::Settings& settings)
      : driver_(driver), settings_(settings) {}

  /// The calling thread's current context; null if it has none, or if it cannot be served.
  Context* current();

  /// The context with this handle if it has been seen, else null. Never creates one.
  Context* find(CUcontext handle);

  /// The contexts of a device that are not gone.
  std::vector<Context*> contexts_of(int device);

  /// The context that a stream belongs to; for the default streams, and where the driver does not
  /// say, the current one. Null as current().
  Context* context_of(CUstream stream);

  /// The context in which this stream is capturing, or null.
  Context* capturing_context(CUstream stream);

  /// Whether memory of ours at `address` outlived its context; see Device.
  bool is_orphan(CUdeviceptr address);

  /// Whether every context that was seen is gone.
  bool all_gone();

  /// Every device that serves or has served. The pointers stay valid.
  std::vector<Device*> devices();

  /// To be called after any context was set gone, so that threads look again.
  void forget_found();

 private:
  Context* find_or_create(CUcontext handle);

  const cuda::Driver& driver_;
  const config::Settings& settings_;
  std::mutex mutex_;
  std::map<CUcontext, Context*> contexts_;
  std::array<Device*, stats::kMaxDevices> devices_{};
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace cupool::core
