// SPDX-License-Identifier: Apache-2.0
// Misses, uncommon frees, and what goes back to the driver.
#include "engine/serve/async_memory.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/block/accounting.h"
#include "engine/context/rdma_libraries.h"
#include "engine/serve/failure.h"
#include "engine/serve/giving_back.h"
#include "engine/serve/retire.h"
#include "util/clock.h"
#include "util/uncancelled.h"

namespace cupool::engine {

namespace {

// May be idle whatever the program had at its peak.
constexpr std::uint64_t kLeastIdle = 64ull << 20;
// How long a fence is asked for, of a GPU that may have nothing to do: it needs a moment to pass
// it.
constexpr std::uint64_t kMomentNs = 100'000;
// Given back at once by decay.
constexpr std::uint64_t kAsyncSlice = 64ull << 20;

bool can_serve(const cuda::Driver& driver) {
  return driver.cuCtxRecordEvent != nullptr && driver.cuMemFreeAsync != nullptr &&
         driver.cuStreamGetCtx != nullptr && driver.cuDeviceGetMemPool != nullptr &&
         driver.cuDeviceGetDefaultMemPool != nullptr;
}

// Numbers of objects, and of threads.
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
std::uint64_t own_thread() {
  thread_local const std::uint64_t own = next_number();
  return own;
}

bool is_default_stream(CUstream stream) {
  return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

AsyncMemory::AsyncMemory(const cuda::Driver& driver, const config::Settings& settings,
                         ContextRegistry& registry, FreePolicy& policy, IdleMemory& idle)
    : driver_(driver), registry_(registry), policy_(policy), idle_(idle), number_(next_number()) {
  on_.store(settings.async == config::Async::serve && can_serve(driver));
  if (distrusted_.load()) on_.store(false);
}

// Whatever is not known to be served is the driver's. Kept for the thread if all is well.
const AsyncMemory::Known* AsyncMemory::find_place(Context& context, CUstream stream) {
  Device& device = context.device();
  const StreamName name{&context, context.incarnation(), stream,
                        stream == CU_STREAM_PER_THREAD ? own_thread() : 0};
  if (context.ends() || device.limits().use_default_pool || noted_rdma_library() != nullptr ||
      policy_.host_reachable().any(HostReachable::Kind::managed)) {
    return nullptr;
  }
  CUcontext owner = nullptr;
  if (!is_default_stream(stream) &&
      (driver_.cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS || owner != context.handle())) {
    return nullptr;
  }
  CUmemoryPool current = nullptr;
  CUmemoryPool pool = nullptr;
  if (driver_.cuDeviceGetMemPool(&current, device.ordinal()) != CUDA_SUCCESS ||
      driver_.cuDeviceGetDefaultMemPool(&pool, device.ordinal()) != CUDA_SUCCESS ||
      current != pool) {
    return nullptr;
  }
  const StreamCaches::Place place = caches_.find_or_add(name, context.stats());
  if (place.cache == nullptr) return nullptr;
  pools_[static_cast<std::size_t>(device.ordinal())].store(pool);
  Known* const pair = pair_of(stream);
  if (pair[0].stream != stream) pair[1] = pair[0];
  pair[0] = Known{number_, stream, &context, pool, place};
  return &pair[0];
}

bool AsyncMemory::may_allocate(Request* request, std::size_t bytes, CUmemoryPool pool,
                               CUstream stream) {
  if (!is_on() || bytes == 0 || bytes > kLargestStreamBlock ||
      refusal_in_host_function(driver_) != CUDA_SUCCESS) {
    return false;
  }
  Context* const context = registry_.current_for_certain();
  if (context == nullptr || Serving::any_capture() || !serves(*context)) return false;
  request->life = context->incarnation();
  const Known* const known = find_place(*context, stream);
  if (known == nullptr || (pool != nullptr && pool != known->pool)) return false;
  request->context = context;
  request->bytes = bytes;
  request->capacity = stream_capacity_for(bytes);
  request->place = known->place;
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
  return from_others(settle(*request.context, Look::once));
}

// Records a fence, and looks whether the GPU has come to it. Returns the newest complete epoch.
EpochNumber AsyncMemory::settle(Context& context, Look look) {
  Ordering& ordering = context.ordering();
  const ContextVisit visit(context);
  if (!visit) return kNoEpoch;
  const EpochNumber wanted = ordering.epochs().join(0, 1);
  const std::uint64_t start_ns = util::now_ns();
  for (;;) {
    BlockList reclaimed;
    const CUresult result = ordering.poll(Ordering::Poll::all, &reclaimed);
    if (result != CUDA_SUCCESS) note_failure(context, result);
    if (!reclaimed.empty()) idle_.cache_or_release(context, reclaimed);
    const EpochNumber complete = ordering.epochs().complete_up_to();
    if (complete >= wanted || result != CUDA_SUCCESS || look == Look::once ||
        util::now_ns() - start_ns > kMomentNs) {
      return complete;
    }
  }
}

void AsyncMemory::remember(Block& block) {
  held_.fetch_add(block.capacity, std::memory_order_relaxed);
  add_block(map_, &block);
}

bool AsyncMemory::forget(const Block& block) {
  if (!map_.erase(&block)) return false;
  held_.fetch_sub(block.capacity, std::memory_order_relaxed);
  return true;
}

// The context may have ended since the driver's call; then the memory is the driver's.
void AsyncMemory::adopt(const Request& request, CUdeviceptr address) {
  any_.store(true);
  forget_stale(address);
  Context& context = *request.context;
  Block* const block = new_block();
  if (block == nullptr) return;
  block->address = address;
  block->capacity = request.capacity;
  block->requested = request.bytes;
  block->context = &context;
  block->source = BlockSource::pool;
  block->state.store(BlockState::live);
  remember(*block);
  if (context.incarnation() != request.life) {
    const std::uint64_t word = block->state.word();
    if (block->state.claim(word) && forget(*block)) delete_block(block);
    return;
  }
  const std::uint64_t held = held_.load(std::memory_order_relaxed);
  const std::uint64_t idle = caches_.bytes();
  const std::uint64_t had = held > idle ? held - idle : 0;
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < had && !peak_.compare_exchange_weak(peak, had, std::memory_order_relaxed)) {
  }
  caches_.set_limit(
      std::min(context.device().limits().max_cached, std::max({peak, had, kLeastIdle})));
}

void AsyncMemory::forget_stale(CUdeviceptr address) {
  Block* const stale = has_any() ? map_.find(address) : nullptr;
  if (stale == nullptr) return;
  const std::uint64_t word = stale->state.word();
  const bool ours = BlockStateCell::state_of(word) == BlockState::live ? stale->state.claim(word)
                                                                       : caches_.take(*stale);
  if (forget(*stale) && ours) delete_block(stale);
}

std::optional<CUresult> AsyncMemory::try_free(CUdeviceptr address, CUstream stream) {
  Block* const block = map_.find(address);
  if (block == nullptr) return std::nullopt;
  const std::uint64_t word = block->state.word();
  if (block->address != address) return std::nullopt;
  Context* const context = registry_.known_current();
  const Known& known = known_of(stream);
  if (!is_known(known, stream, context) || block->context != context || !serves(*context) ||
      block->shared_outside.load(std::memory_order_relaxed)) {
    return free_slowly(*block, word, stream);
  }
  if (BlockStateCell::state_of(word) != BlockState::live || !block->state.claim(word)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const EpochNumber open = context->ordering().epochs().open();
  if (known.place.cache->push(known.place.use, *block, open) == StreamCache::Taken::yes) {
    return CUDA_SUCCESS;
  }
  block->state.store(BlockState::live);
  return free_slowly(*block, block->state.word(), stream);
}

std::optional<CUresult> AsyncMemory::free_slowly(Block& block, std::uint64_t word,
                                                 CUstream stream) {
  if (!is_on() || Serving::any_capture() || refusal_in_host_function(driver_) != CUDA_SUCCESS ||
      block.shared_outside.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  Context* const context = registry_.current_for_certain();
  if (context == nullptr || block.context != context || !serves(*context)) return std::nullopt;
  const Known* const known = find_place(*context, stream);
  if (known == nullptr) return std::nullopt;
  const StreamCaches::Place place = known->place;
  if (BlockStateCell::state_of(word) != BlockState::live || !block.state.claim(word)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const EpochNumber open = context->ordering().epochs().open();
  using Taken = StreamCache::Taken;
  Taken taken = place.cache->push(place.use, block, open);
  if (taken == Taken::full && caches_.allot(place, block.capacity)) {
    taken = place.cache->push(place.use, block, open);
  }
  if (taken == Taken::yes) return CUDA_SUCCESS;
  block.state.store(BlockState::live);
  return std::nullopt;
}

// Before the driver's free: another thread may get the address at once. False: freed before.
bool AsyncMemory::give_up(CUdeviceptr address, Block** block) {
  Block* const found = has_any() ? map_.find(address) : nullptr;
  if (found == nullptr) return true;
  const std::uint64_t word = found->state.word();
  if (found->address != address) return true;
  if (BlockStateCell::state_of(word) != BlockState::live || !found->state.claim(word)) return false;
  if (forget(*found)) *block = found;  // else its context has ended
  return true;
}

void AsyncMemory::given_up(Block& block, bool freed) {
  if (freed) return delete_block(&block);
  block.state.store(BlockState::live);
  remember(block);
}

// What is idle is nobody's, and so are bytes beyond the request.
FoundMemory AsyncMemory::find(CUdeviceptr base, CUdeviceptr address) const {
  FoundMemory found;
  const Block* const block = has_any() ? map_.find(base) : nullptr;
  if (block == nullptr) return found;
  found.nobodys = block->state.load() != BlockState::live || address - base >= block->requested;
  if (!found.nobodys) found.as_the_drivers = block;
  return found;
}

void AsyncMemory::mark_shared_outside(CUdeviceptr base) {
  Block* const block = has_any() ? map_.find(base) : nullptr;
  if (block != nullptr) block->shared_outside.store(true, std::memory_order_relaxed);
}

// Has the driver free idle blocks on a stream behind which they are unused. What it refuses twice
// stays in `idle`.
std::uint64_t AsyncMemory::free_in(BlockList& idle, CUstream stream) {
  BlockList refused;
  std::uint64_t bytes = 0;
  while (Block* const block = idle.pop()) {
    const CUdeviceptr address = block->address;
    if (!forget(*block)) continue;
    if (driver_.cuMemFreeAsync(address, stream) != CUDA_SUCCESS &&
        driver_.cuMemFreeAsync(address, stream) != CUDA_SUCCESS) {
      remember(*block);
      refused.push(block);
      continue;
    }
    bytes += block->capacity;
    delete_block(block);
  }
  idle = refused;
  return bytes;
}

void AsyncMemory::keep(Context& context, BlockList& idle) {
  if (!idle.empty()) caches_.put_back(&context, context.incarnation(), context.stats(), idle);
}

// Blocks that the GPU does not use. A trim of the pool takes only what a wait has covered; on this
// stream it is short.
std::uint64_t AsyncMemory::release(Context& context, BlockList& idle) {
  if (idle.empty()) return 0;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  std::uint64_t bytes = 0;
  if (scope.ok() && context.thread_stream(&stream) == CUDA_SUCCESS) {
    bytes = free_in(idle, stream);
    driver_.cuStreamSynchronize(stream);
  }
  keep(context, idle);
  return bytes;
}

// Blocks that the GPU may still use, on a stream of their own behind all work of the context, which
// outlives its handle. Not during a capture, which such an event would harm.
void AsyncMemory::release_in_order(Context& context, BlockList& idle) {
  if (idle.empty() || Serving::any_capture()) return;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUevent behind = nullptr;
  CUstream stream = nullptr;
  if (!scope.ok() || driver_.cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  if (driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    if (driver_.cuCtxRecordEvent(context.handle(), behind) == CUDA_SUCCESS &&
        driver_.cuStreamWaitEvent(stream, behind, 0) == CUDA_SUCCESS) {
      free_in(idle, stream);
    }
    driver_.cuStreamDestroy_v2(stream);
  }
  driver_.cuEventDestroy_v2(behind);
}

void AsyncMemory::stop() {
  on_.store(false);
  if (!has_any()) return;
  for (Context* const context : registry_.all()) {
    const ContextVisit visit(*context, kLongestWaitForOthersNs);
    if (!visit || !context->usable()) continue;
    GivingBack part(idle_.give_backs());
    BlockList idle = caches_.context_ends(context);
    part.gave_back = !idle.empty();
    release_in_order(*context, idle);
    keep(*context, idle);
  }
}

std::uint64_t AsyncMemory::give_back(Context& context, To to) {
  if (!has_any() || Serving::any_capture() || caches_.bytes(&context) == 0) return 0;
  const util::Uncancelled throughout;
  const ContextVisit visit(context);
  if (!visit || !context.usable()) return 0;
  GivingBack part(idle_.give_backs());
  BlockList idle = caches_.take(&context, settle(context, Look::for_a_moment),
                                StreamCaches::Which::complete, ~std::uint64_t{0});
  const std::uint64_t bytes = release(context, idle);
  part.gave_back = bytes != 0;
  Device& device = context.device();
  if (bytes != 0 && to == To::device && !device.default_pool().is_kept()) {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    driver_.cuMemPoolTrimTo(pools_[static_cast<std::size_t>(device.ordinal())].load(), 0);
  }
  return bytes;
}

int AsyncMemory::device_of(CUmemoryPool pool) const {
  if (pool == nullptr || !has_any()) return -1;
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const auto& each) { return each.load() == pool; });
  return found == pools_.end() ? -1 : static_cast<int>(found - pools_.begin());
}

void AsyncMemory::give_back_of(CUmemoryPool pool) {
  const int device = device_of(pool);
  if (device < 0) return;
  for (Context* const context : registry_.contexts_of(device)) give_back(*context, To::pool);
}

EpochNumber AsyncMemory::covering_epoch(Context& context) {
  const bool any = has_any() && caches_.bytes(&context) != 0;
  return any ? context.ordering().epochs().join(0, 1) : kNoEpoch;
}

bool AsyncMemory::give_back_unneeded() {
  if (!has_any() || Serving::any_capture()) return false;
  bool more = false;
  for (Context* const context : registry_.all()) {
    if (!context->usable() || caches_.bytes(context) == 0) continue;
    const ContextVisit visit(*context);
    if (!visit || !context->usable()) continue;
    GivingBack part(idle_.give_backs());
    BlockList idle = caches_.take(context, settle(*context, Look::once),
                                  StreamCaches::Which::unneeded, kAsyncSlice);
    more = more || idle.bytes >= kAsyncSlice;
    part.gave_back = release(*context, idle) != 0;
  }
  return more;
}

void AsyncMemory::context_ends(Context& context) {
  if (!has_any() || cuda::shut_down() || !context.usable()) return;
  BlockList idle = caches_.context_ends(&context);
  release_in_order(context, idle);
  keep(context, idle);
}

// What is still idle is lost with its records. A block that the program frees just now stays with
// that thread, which finds its cache gone. A live one is claimed first, so that no thread can free
// it any more but by the driver.
void AsyncMemory::context_gone(Context& context, bool alone) {
  if (!has_any()) return;
  BlockList idle = caches_.context_ends(&context);
  while (Block* const block = idle.pop()) {
    if (forget(*block) && alone) delete_block(block);
  }
  for (Block* const block :
       map_.extract([&](const Block& each) { return each.context == &context; })) {
    held_.fetch_sub(block->capacity, std::memory_order_relaxed);
    const std::uint64_t word = block->state.word();
    if (BlockStateCell::state_of(word) != BlockState::live || !block->state.claim(word)) continue;
    if (alone) delete_block(block);
  }
}

std::uint64_t AsyncMemory::idle_bytes(Device& device) {
  if (!has_any()) return 0;
  std::uint64_t sum = 0;
  for (Context* const context : registry_.contexts_of(device.ordinal())) {
    sum += caches_.bytes(context);
  }
  return sum;
}

std::uint64_t AsyncMemory::unused_bytes(CUmemoryPool pool) {
  const int device = device_of(pool);
  std::uint64_t sum = 0;
  if (device < 0) return sum;
  map_.for_each([&](const Block& block) {
    if (block.context->device().ordinal() != device) return;
    const bool live = block.state.load(std::memory_order_relaxed) == BlockState::live;
    const std::uint64_t used = (block.requested + kAlignment - 1) & ~(kAlignment - 1);
    sum += block.capacity - (live ? std::min(used, block.capacity) : 0);
  });
  return sum;
}

void AsyncMemory::fold() {
  if (!has_any()) return;
  caches_.fold();
  for (Device* const device : registry_.devices().all()) {
    device->stats().gauge_set(stats::Gauge::own_async_cached_bytes,
                              signed_bytes(idle_bytes(*device)));
  }
}

}  // namespace cupool::engine
