// SPDX-License-Identifier: Apache-2.0
// Misses, and uncommon frees.
#include "engine/serve/async_memory.h"

#include <algorithm>

#include "cuda/stream_kind.h"
#include "engine/async/stream_free.h"
#include "engine/context/rdma_libraries.h"
#include "engine/context/thread_order.h"
#include "engine/reclaim/dependent_launches.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

namespace {

// May be idle whatever the program had at its peak.
constexpr std::uint64_t kLeastIdle = 64ull << 20;

bool can_serve(const cuda::Driver& driver) {
  return driver.cuCtxRecordEvent != nullptr && driver.cuMemFreeAsync != nullptr &&
         driver.cuStreamGetCtx != nullptr && driver.cuStreamGetFlags != nullptr &&
         driver.cuDeviceGetMemPool != nullptr && driver.cuDeviceGetDefaultMemPool != nullptr;
}

}  // namespace

AsyncMemory::AsyncMemory(const cuda::Driver& driver, const config::Settings& settings,
                         ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle)
    : driver_(driver),
      registry_(registry),
      policy_(policy),
      idle_(driver, registry, idle, caches_, blocks_),
      all_idle_(idle) {
  on_.store(settings.async == config::Async::serve && can_serve(driver));
  if (distrusted_.load()) on_.store(false);
}

// Only the stream's own work orders its work. The driver's allocation or free in any other stream
// is an operation that orders more: the legacy stream's comes behind all blocking streams and
// before their next work, a blocking stream's behind the legacy one and before what waits for its
// stream. A hit is no operation.
bool AsyncMemory::is_non_blocking(CUstream stream) const {
  if (CUPOOL_MUTATED("reuses-behind-implicit-order")) return true;
  return cuda::is_non_blocking(driver_, stream) == true;
}

// Whatever is not known to be served is the driver's. What is known of a stream that has a cache
// stays so until it ends.
StreamCaches::Place AsyncMemory::find_place(Context& context, CUstream stream) {
  if (!is_non_blocking(stream)) return {};
  const StreamName name{&context, context.incarnation(), stream};
  StreamCaches::Place place = caches_.find(name);
  if (place.cache == nullptr && may_have_cache(context, stream)) {
    place = caches_.find_or_add(name, context.stats());
  }
  if (place.cache == nullptr) return place;
  Known* const pair = pair_of(stream);
  if (pair[0].stream != stream) pair[1] = pair[0];
  pair[0] = Known{stream, &context, place};
  return place;
}

bool AsyncMemory::may_have_cache(Context& context, CUstream stream) {
  Device& device = context.device();
  CUcontext owner = nullptr;
  if (context.ends() || device.limits().use_default_pool ||
      driver_.cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS || owner != context.handle()) {
    return false;
  }
  CUmemoryPool current = nullptr;
  CUmemoryPool pool = nullptr;
  if (driver_.cuDeviceGetMemPool(&current, device.ordinal()) != CUDA_SUCCESS ||
      driver_.cuDeviceGetDefaultMemPool(&pool, device.ordinal()) != CUDA_SUCCESS ||
      current != pool) {
    return false;
  }
  pools_[static_cast<std::size_t>(device.ordinal())].store(pool);
  return true;
}

bool AsyncMemory::may_allocate(Request* request, std::size_t bytes, CUmemoryPool pool,
                               CUstream stream) {
  if (!is_on() || bytes == 0 || bytes > kLargestStreamBlock ||
      refusal_in_host_function(driver_) != CUDA_SUCCESS) {
    return false;
  }
  Context* const context = registry_.current_for_certain();
  if (context == nullptr || Serving::any_capture() || !serves(*context) ||
      noted_rdma_library() != nullptr ||
      policy_.host_reachable().any(HostReachable::Kind::managed)) {
    return false;
  }
  request->life = context->incarnation();
  request->place = find_place(*context, stream);
  if (request->place.cache == nullptr || !is_default_pool(pool, *context)) return false;
  request->context = context;
  request->bytes = bytes;
  request->capacity = stream_capacity_for(bytes);
  return true;
}

CUdeviceptr AsyncMemory::pop(const Request& request) {
  CUdeviceptr address =
      request.place.cache->pop(request.place.use, request.capacity, request.bytes);
  if (address != 0) return address;
  bool pending = false;
  const auto from_others = [&](EpochNumber complete) {
    return caches_.pop_complete(request.context, request.life, request.capacity, request.bytes,
                                complete, &pending);
  };
  address = from_others(request.context->ordering().epochs().complete_up_to());
  if (address != 0 || !pending) return address;
  return from_others(idle_.settle(*request.context, AsyncIdle::Look::once));
}

std::optional<CUresult> AsyncMemory::try_free(CUdeviceptr address, CUstream stream) {
  Block* const block = blocks_.find(address);
  if (block == nullptr) return std::nullopt;
  const std::uint64_t word = block->state.word();
  if (block->address != address) return std::nullopt;
  Context* const context = registry_.known_current();
  const Known& known = known_of(stream);
  const std::uint64_t life = context == nullptr ? 0 : context->incarnation();
  if (!is_known(known, stream, context) || block->context != context || !serves(*context) ||
      block->shared_outside.load(std::memory_order_relaxed)) {
    return free_slowly(*block, word, stream);
  }
  ThreadOrder::submits(driver_, stream, ThreadOrder::What::served_free);
  const auto open = [&] { return context->ordering().epochs().open(); };
  const StreamFree freed = free_into(known.place, *block, word, *context, life, open);
  if (freed == StreamFree::done) return CUDA_SUCCESS;
  if (freed == StreamFree::invalid) return CUDA_ERROR_INVALID_VALUE;
  if (freed == StreamFree::lost) return drop_lost(*block);
  return free_slowly(*block, word, stream);
}

// The pool outlives the context, and the driver frees the memory.
std::nullopt_t AsyncMemory::drop_lost(Block& block) {
  blocks_.drop_lost(block);
  return std::nullopt;
}

std::optional<CUresult> AsyncMemory::free_slowly(Block& block, std::uint64_t word,
                                                 CUstream stream) {
  const util::Uncancelled throughout;
  if (!is_on() || Serving::any_capture() || refusal_in_host_function(driver_) != CUDA_SUCCESS ||
      block.shared_outside.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  Context* const context = registry_.current_for_certain();
  if (context == nullptr || block.context != context) return std::nullopt;
  const std::uint64_t life = context->incarnation();
  if (!serves(*context)) return std::nullopt;
  const StreamCaches::Place place = find_place(*context, stream);
  if (place.cache == nullptr) return std::nullopt;
  ThreadOrder::submits(driver_, stream, ThreadOrder::What::served_free);
  const auto open = [&] { return context->ordering().epochs().open(); };
  StreamFree freed = free_into(place, block, word, *context, life, open);
  if (freed == StreamFree::full && caches_.allot(place, block.capacity)) {
    freed = free_into(place, block, word, *context, life, open);
  }
  if (freed == StreamFree::done) return CUDA_SUCCESS;
  if (freed == StreamFree::invalid) return CUDA_ERROR_INVALID_VALUE;
  if (freed == StreamFree::lost) return drop_lost(block);
  return std::nullopt;
}

int AsyncMemory::device_of(CUmemoryPool pool) const {
  if (pool == nullptr) return -1;
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const auto& each) { return each.load() == pool; });
  return found == pools_.end() ? -1 : static_cast<int>(found - pools_.begin());
}

void AsyncMemory::adopt(const Request& request, CUdeviceptr address) {
  forget_stale(address);
  Context& context = *request.context;
  DependentLaunch::serialise_all();
  blocks_.adopt(context, request.life, address, request.capacity, request.bytes);
  const std::uint64_t held = blocks_.bytes();
  const std::uint64_t idle = caches_.idle().bytes;
  const std::uint64_t had = held > idle ? held - idle : 0;
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < had && !peak_.compare_exchange_weak(peak, had, std::memory_order_relaxed)) {
  }
  caches_.set_limit(
      std::min(context.device().limits().max_cached, std::max({peak, had, kLeastIdle})));
}

void AsyncMemory::forget_stale(CUdeviceptr address) {
  Block* const stale = blocks_.find(address);
  if (stale == nullptr) return;
  const std::uint64_t word = stale->state.word();
  if (stale->address != address) return;  // its record is another block's by now
  const bool live = BlockStateCell::state_of(word) == BlockState::live;
  const bool ours = live ? AsyncBlocks::claim(*stale, word) : caches_.take(*stale, word);
  blocks_.forget(*stale, address);
  if (ours) delete_block(stale);
}

void AsyncMemory::stop() {
  on_.store(false);
  idle_.give_all_back();
}

void AsyncMemory::give_back_of(CUmemoryPool pool) {
  const int device = device_of(pool);
  if (device >= 0) idle_.give_back_of(device, registry_.current());
}

// Asked before each allocation by some programs (CuPy's asynchronous pool).
std::uint64_t AsyncMemory::unused_bytes(CUmemoryPool pool) {
  const int device = device_of(pool);
  if (device < 0) return 0;
  caches_.fold();
  const std::int64_t unused = stats::device(device).unused_stream_ordered.load();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(unused, 0));
}

}  // namespace cupool::engine
