// The map of contexts, and each thread's memory of the last one it was in.
#include "core/context_registry.h"

#include "core/device_use.h"
#include "util/log.h"

namespace cupool::core {

using detail::last_found;
using detail::LastFound;

Context* ContextRegistry::ask_for_current(Context* known) {
  CUcontext handle = nullptr;
  // Where the driver does not say, what the hooks have seen holds.
  if (known != nullptr && driver_.cuCtxGetCurrent(&handle) != CUDA_SUCCESS) return known;
  if (known != nullptr && handle == known->handle()) return known;
  if (known != nullptr && trusts_hooks_.exchange(false)) {
    CUPOOL_LOG(warn,
               "the current context changed by a way that cupool does not see; asking the driver "
               "each time from now on");
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
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = contexts_.find(handle);
  return found == contexts_.end() ? nullptr : found->second;
}

std::vector<Context*> ContextRegistry::contexts_of(int device) {
  std::vector<Context*> result;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : contexts_) {
    Context* context = entry.second;
    if (context->device().ordinal() == device && !context->gone()) result.push_back(context);
  }
  return result;
}

Context* ContextRegistry::context_of(CUstream stream) {
  CUcontext handle = nullptr;
  const bool named =
      stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
  if (!named || driver_.cuStreamGetCtx == nullptr ||
      driver_.cuStreamGetCtx(stream, &handle) != CUDA_SUCCESS) {
    return current();
  }
  if (last_found.handle == handle &&
      last_found.generation == generation_.load(std::memory_order_acquire)) {
    return last_found.context;
  }
  Context* context = find(handle);
  return context != nullptr ? context : current();
}

Context* ContextRegistry::capturing_context(CUstream stream) {
  if (!Ordering::any_capture()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : contexts_) {
    if (entry.second->ordering().captures(stream)) return entry.second;
  }
  return nullptr;
}

std::vector<Device*> ContextRegistry::devices() {
  std::vector<Device*> result;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Device* device : devices_) {
    if (device != nullptr) result.push_back(device);
  }
  return result;
}

bool ContextRegistry::all_gone() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : contexts_) {
    if (!entry.second->gone()) return false;
  }
  return true;
}

void ContextRegistry::use_plain_memory() {
  plain_memory_.store(true, std::memory_order_release);
  for (Device* device : devices()) device->use_plain_memory();
}

void ContextRegistry::start_pools_later(bool later) {
  start_pools_later_.store(later, std::memory_order_release);
  if (later) return;
  for (Device* device : devices()) device->start_pools_at_first();
}

void ContextRegistry::device_in_use(int ordinal) {
  if (!note_device_in_use(ordinal)) return;
  for (Device* device : devices()) device->admit(ordinal);
}

void ContextRegistry::forget_found() {
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

// The context is current.
Context* ContextRegistry::find_or_create(CUcontext handle) {
  CUdevice ordinal = -1;
  if (driver_.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS &&
      driver_.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (ordinal < 0 || ordinal >= stats::kMaxDevices) {
    CUPOOL_WARN_ONCE("device ordinal %d is beyond what is served; its calls pass through", ordinal);
    return nullptr;
  }
  device_in_use(ordinal);
  Context* found = nullptr;
  {
    // Driver calls under this lock only read properties.
    const std::lock_guard<std::mutex> lock(mutex_);
    Device*& device = devices_[static_cast<std::size_t>(ordinal)];
    if (device == nullptr) {
      device = new Device(driver_, ordinal, settings_);
      if (start_pools_later_.load(std::memory_order_acquire)) device->start_pools_later();
    }
    if (plain_memory_.load(std::memory_order_acquire)) device->use_plain_memory();
    Context*& context = contexts_[handle];
    if (context != nullptr && &context->device() != device) context = nullptr;  // used again
    if (context == nullptr) context = new Context(driver_, handle, *device);
    if (context->gone()) context->revive();
    found = context;
  }
  found->device().release_orphans(*found);
  return found;
}

bool ContextRegistry::is_internal(CUdeviceptr address) {
  std::vector<Context*> contexts;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : contexts_) contexts.push_back(entry.second);
  }
  // Not under the registry's lock: that of the ordering is taken first where both are held.
  for (Context* context : contexts) {
    if (!context->gone() && context->ordering().is_barrier(address)) return true;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Device* device : devices_) {
    if (device != nullptr && device->is_orphan(address)) return true;
  }
  return false;
}

}  // namespace cupool::core
