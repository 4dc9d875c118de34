// SPDX-License-Identifier: Apache-2.0
// The map of contexts, and each thread's last found context.
#include "engine/context/context_registry.h"

#include <new>

#include "cuda/scopes.h"
#include "engine/context/green_contexts.h"
#include "util/log.h"

namespace cupool::engine {

using detail::last_found;
using detail::LastFound;

Context* ContextRegistry::ask_for_current(Context& known) {
  CUcontext handle = nullptr;
  // If the driver does not say, the hooks' knowledge holds.
  if (driver_.cuCtxGetCurrent(&handle) != CUDA_SUCCESS) return &known;
  if (GreenContexts::of_process().primary_of(handle) == known.handle()) return &known;
  if (trusts_hooks_.exchange(false)) {
    CUPOOL_LOG(warn,
               "the current context was changed by a call that cupool does not see; from now on "
               "cupool asks the driver each time (slower, still correct)");
  }
  return look_at_current();
}

void ContextRegistry::distrust_hooks() {
  trusts_hooks_.store(false, std::memory_order_relaxed);
  forget_found();
}

Context* ContextRegistry::look_at_current() {
  CUcontext handle = nullptr;
  last_found.is_current = false;
  const bool trusted = trusts_hooks_.load(std::memory_order_relaxed);
  if (driver_.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || handle == nullptr) return nullptr;
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last_found.handle == handle && last_found.generation == generation) {
    last_found.is_current = trusted;
    return last_found.context;
  }
  Context* context = find_or_create(handle);
  if (context != nullptr) last_found = LastFound{handle, context, generation, trusted};
  return context;
}

Context* ContextRegistry::find(CUcontext handle) {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(handle);
  return found == contexts_.end() ? nullptr : found->second;
}

Context* ContextRegistry::find_living(CUcontext of_stream) {
  const CUcontext handle = GreenContexts::of_process().primary_of(of_stream);
  if (last_found.handle == handle &&
      last_found.generation == generation_.load(std::memory_order_acquire)) {
    return last_found.context;
  }
  Context* const context = find(handle);
  if (context != nullptr && !context->ends()) return context;
  const cuda::ContextScope scope(driver_, handle);
  return scope.ok() ? find_or_create(handle) : nullptr;
}

void ContextRegistry::forget_found() {
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

// The context is current. If its end is being decided, waits: the handle may already be another
// context's. Without host memory nothing is known of it, and the driver serves.
Context* ContextRegistry::find_or_create(CUcontext current) try {
  const CUcontext handle = GreenContexts::of_process().primary_of(current);
  CUdevice ordinal = -1;
  if (driver_.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS &&
      driver_.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (ordinal < 0 || ordinal >= stats::kMaxDevices) {
    CUPOOL_WARN_ONCE(
        "device ordinal %d is beyond the devices that cupool serves: the driver serves its memory",
        ordinal);
    return nullptr;
  }
  devices_.device_in_use(ordinal);
  for (;;) {
    Context* found = nullptr;
    {
      // Driver calls under this lock only read properties.
      const std::lock_guard lock(mutex_);
      found = find_or_create_locked(handle, ordinal);
    }
    if (!found->ends()) {
      found->device().orphans().release(driver_, *found, found->device().pools());
      return found;
    }
    if (ContextVisit::any_of_this_thread()) return nullptr;
    found->gate().wait_until_open();
  }
} catch (const std::bad_alloc&) {
  return nullptr;
}

Context* ContextRegistry::find_or_create_locked(CUcontext handle, int ordinal) {
  Device& device = devices_.of(ordinal);
  const auto place = contexts_.emplace(handle, nullptr).first;
  Context*& context = place->second;
  if (context != nullptr && &context->device() == &device) {
    context->begin_again();
    return context;
  }
  // Read before the gate: the end of one that is gone, and whose gate is open, is over.
  const bool has_ended = context != nullptr && context->gone();
  if (context == nullptr || !context->gate().is_closed()) {  // else a reused handle, soon
    Context* const old = context;
    try {
      context = other_of_handle(handle, device);
    } catch (...) {
      if (context == nullptr) contexts_.erase(place);
      throw;
    }
    if (has_ended) keep_ended(*old);
  }
  return context;
}

// A record is never destroyed, since threads may still look at it. So there is one for each device
// of a handle, however often it comes again.
Context* ContextRegistry::other_of_handle(CUcontext handle, Device& device) {
  const auto found = ended_.find({handle, device.ordinal()});
  if (found == ended_.end()) return new Context(driver_, handle, device);
  Context* const context = found->second;
  ended_.erase(found);
  context->begin_again();
  return context;
}

// Without host memory the record is lost. So is that of a context whose end nobody saw: its blocks
// are still in it.
void ContextRegistry::keep_ended(Context& context) {
  try {
    ended_.emplace(std::pair(context.handle(), context.device().ordinal()), &context);
  } catch (const std::bad_alloc&) {
  }
}

void ContextRegistry::drop(const Context& context) {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(context.handle());
  if (found != contexts_.end() && found->second == &context) contexts_.erase(found);
}

Context* ContextRegistry::next_behind(CUcontext* handle) {
  const std::lock_guard lock(mutex_);
  const auto next = contexts_.upper_bound(*handle);
  if (next == contexts_.end()) return nullptr;
  *handle = next->first;
  return next->second;
}

Context* ContextList::next_behind(CUcontext* handle) const {
  for (;;) {
    Context* const context = registry_.next_behind(handle);
    if (context == nullptr || !device_) return context;
    if (context->device().ordinal() == *device_ && !context->gone()) return context;
  }
}

// Without the registry's lock: where both are held, the ordering's lock is taken first.
bool ContextRegistry::is_internal(CUdeviceptr address) {
  for (Context* const context : all()) {
    if (context->gone()) continue;
    if (context->ordering().barriers().holds(address) || context->small_chunk().holds(address)) {
      return true;
    }
  }
  return devices_.any_orphan_at(address);
}

}  // namespace cupool::engine
