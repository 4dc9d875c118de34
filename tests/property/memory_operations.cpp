// SPDX-License-Identifier: Apache-2.0
// Allocations, frees, and the host's buffers. After a free in which the driver would have waited,
// the host touches buffers of copies and kernels (contract 2); the judge tells whether it may.
#include <cupool_sim.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr std::uint64_t kMostWords = 64;
constexpr std::uint64_t kLargeBlock = 2u << 20;

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// The driver frees shared memory, and may reuse its address.
unsigned long long allocations_of_the_driver() {
  return cupoolSimCalls("cuMemAlloc_v2") + cupoolSimCalls("cuMemAllocFromPoolAsync");
}

}  // namespace

void Machine::allocate(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  const int context = alive(static_cast<int>(op.c)) ? static_cast<int>(op.c) : 0;
  if (block.address != 0 || op.size == 0 || !enter(context)) return;
  CUdeviceptr address = 0;
  const unsigned long long asked = allocations_of_the_driver();
  const bool forbidden = !unsafe_allowed(op.thread);
  const CUresult result = cuMemAlloc(&address, op.size);
  if (forbidden && result == CUDA_SUCCESS) {
    return fail("an allocation succeeded that a capture forbids (contract 9)");
  }
  const bool none = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (!expect(none ? CUDA_SUCCESS : result, "cuMemAlloc") || none) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool was_shared = shared_.erase(address) != 0;
    if (was_shared && !concurrent_ && asked == allocations_of_the_driver()) {
      failure_ = "memory known outside was served again (contract 8)";
      failed_ = true;
      return;
    }
  }
  adopt(block, address, op.size, context);
  // Mostly the first words, which a later owner uses too; sometimes the last ones.
  if (op.thread % 2 == 1 && block.owner % 4 == 0) {
    block.offset = (op.size / 4 - block.words) * 4;
  }
}

// A new block of the program's.
void Machine::adopt(Block& block, CUdeviceptr address, std::uint64_t size, int context) {
  // The device's default pool does not align large blocks (engine/serve/allocator.cpp, adopt()).
  const std::uint64_t alignment = size >= kLargeBlock && aligns_large_ ? kLargeBlock : 512;
  if (address % alignment != 0) return fail("a block is not aligned (contract 1, 6)");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = live_.lower_bound(address);
    const bool collides = (next != live_.end() && next->first < address + size) ||
                          (next != live_.begin() && std::prev(next)->second > address);
    live_[address] = address + size;
    if (collides && failure_.empty()) {
      failure_ = "a block overlaps a live one (contract 1)";
      failed_ = true;
    }
  }
  const CUdeviceptr was = block.was;
  block = Block{};
  block.was = was == address ? 0 : was;
  block.address = address;
  block.size = size;
  block.context = context;
  block.owner = ++last_number_;
  block.words = std::min(size / 4, kMostWords);
  if (size <= 4096) block.words = size / 4;
  cupoolSimOwner(pointer(address), size, block.owner);
}

// A refused free has no effect.
void Machine::own_again(const Block& block) {
  cupoolSimOwner(pointer(block.address), block.size, block.owner);
  const std::lock_guard<std::mutex> lock(mutex_);
  live_[block.address] = block.address + block.size;
  shared_.erase(block.address);
}

void Machine::disown(const Block& block) {
  // What another process has open stays its memory until it is somebody else's.
  bool lent = false;
  for (const Slots& slots : slots_) {
    for (const LentBlock& each : slots.lent_blocks) lent |= each.address == block.address;
  }
  if (!lent) cupoolSimOwner(pointer(block.address), block.size, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  live_.erase(block.address);
  if (block.shared) shared_.insert(block.address);
}

void Machine::release(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  const int other = static_cast<int>(op.c);
  if (block.address == 0) return;
  release_block(slots, block, op.thread, alive(other) ? other : block.context);
}

// `current`: the current context of the free; the block may belong to another one.
void Machine::release_block(Slots& slots, Block& block, unsigned thread, int current) {
  if (has_failed(current)) current = block.context;  // else the call returns its error
  if (!await_guests(slots, block) || !enter(current)) return;
  const bool legacy_would_wait = unsafe_allowed(thread);
  const Block freed = block;
  disown(freed);
  if (!expect(cuMemFree(freed.address), "cuMemFree", freed.context)) return own_again(freed);
  if (!legacy_would_wait) return fail("a free succeeded that a capture forbids (contract 9)");
  block = Block{};
  block.was = freed.address;
  block.was_context = freed.context;
  if (free_mode_ == FreeMode::ordered) return;
  host_is_safe(slots, freed.context);
  next_uses_are_ordered(slots, thread, freed.context);
}

// Contract 2: what the thread does next comes after its work in the context.
void Machine::next_uses_are_ordered(Slots& slots, unsigned thread, int context) {
  for (Block& block : slots.blocks) {
    const bool by_thread = block.last.thread == thread_numbers_[thread];
    if (by_thread && block.last.context == context) block.freed_behind = true;
  }
  for (PoolBlock& block : slots.pool_blocks) {
    const bool by_thread = block.last.thread == thread_numbers_[thread];
    if (by_thread && block.last.context == context) block.freed_behind = true;
  }
}

// Contract 2: the driver's free waits for all work of the context, so the host may touch any buffer
// now.
void Machine::host_is_safe(Slots& slots, int context) {
  for (Buffer& buffer : slots.buffers) {
    if (buffer.context == context) buffer.pending.clear();
  }
}

// Contract 3. The address must be unused now: another block may begin there.
void Machine::release_again(const Operation& op) {
  Block& block = slots_of(op).blocks[op.a % kBlocks];
  if (block.was == 0 || concurrent_ || !enter(block.was_context)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (live_.count(block.was) != 0) return;
  }
  for (const Slots& slots : slots_) {
    for (const Buffer& managed : slots.buffers) {
      if (managed.device == block.was) return;
    }
  }
  const CUresult result = cuMemFree(block.was);
  if (result == CUDA_SUCCESS) return fail("a double free succeeded (contract 3)");
  expect(result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result, "cuMemFree");
}

// The driver orders a free of legacy memory in a stream; the program orders its work before it.
void Machine::release_in_stream(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (block.address == 0) return;
  // The last use, and hence the stream, may belong to another context.
  const bool abroad = !block.last.none() && block.last.context != block.context;
  const StreamRef where = abroad ? block.last : stream(op, op.b, block.context);
  if (where.none() || !enter(where.context)) return;
  if (where.per_thread && where.thread != thread_numbers_[op.thread]) return;
  if (capture_of(slots, where) != nullptr || !unsafe_allowed(op.thread)) return;
  if (where.legacy && !legacy_allowed(where.context)) return;
  if (block.racy || (!block.last.none() && block.last.number != where.number)) return;
  const Block freed = block;
  // The driver answers for the block's context as well as for the stream's.
  const int answering = has_failed(freed.context) ? freed.context : where.context;
  disown(freed);
  if (!expect(cuMemFreeAsync(freed.address, where.handle), "cuMemFreeAsync", answering)) {
    return own_again(freed);
  }
  block = Block{};
}

// Makes the memory known to agents that no stream orders.
void Machine::share_block(const Operation& op) {
  Block& block = slots_of(op).blocks[op.a % kBlocks];
  if (block.address == 0 || !enter(block.context)) return;
  CUresult result = CUDA_SUCCESS;
  if (op.c == 0) {
    CUipcMemHandle handle;
    result = cuIpcGetMemHandle(&handle, block.address);
    if (result == CUDA_ERROR_INVALID_VALUE) return;  // pool memory cannot be exported this way
  } else {
    unsigned on = 1;
    result = cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block.address);
  }
  if (expect(result, "cuIpcGetMemHandle or cuPointerSetAttribute")) block.shared = true;
}

void Machine::memory_info() {
  size_t free_bytes = 0;
  size_t total = 0;
  if (!enter(0) || !expect(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo")) return;
  if (total != machinery_.device_bytes || free_bytes > total)
    fail("cuMemGetInfo is wrong (contract 5)");
}

void Machine::buffer_create(const Operation& op) {
  Buffer& buffer = slots_of(op).buffers[op.a % kBuffers];
  if (buffer.host != nullptr || !unsafe_allowed(op.thread) || !enter(0)) return;
  buffer = Buffer{};
  buffer.type = static_cast<Buffer::Type>(op.c % 4);
  if (buffer.type == Buffer::registered) return buffer_register(buffer);
  if (buffer.type == Buffer::managed) {
    const CUresult result = cuMemAllocManaged(&buffer.device, Buffer::kBytes, CU_MEM_ATTACH_GLOBAL);
    const bool none = result == CUDA_ERROR_OUT_OF_MEMORY;
    if (!expect(none ? CUDA_SUCCESS : result, "cuMemAllocManaged") || none) buffer.device = 0;
    buffer.host = pointer(buffer.device);
    return;
  }
  if (!expect(cuMemHostAlloc(&buffer.host, Buffer::kBytes, 0), "cuMemHostAlloc")) return;
  if (buffer.type == Buffer::mapped) {
    expect(cuMemHostGetDevicePointer(&buffer.device, buffer.host, 0), "cuMemHostGetDevicePointer");
  }
}

void Machine::buffer_register(Buffer& buffer) {
  buffer.own = {std::aligned_alloc(Buffer::kBytes, Buffer::kBytes), std::free};
  if (expect(cuMemHostRegister(buffer.own.get(), Buffer::kBytes, 0), "cuMemHostRegister")) {
    buffer.host = buffer.own.get();
  }
}

// Page-locked memory that overlaps, and a call that takes the other kind of memory: both refused,
// as without cupool, and without effect.
void Machine::buffer_mistake(const Operation& op) {
  const Buffer& buffer = slots_of(op).buffers[op.a % kBuffers];
  if (buffer.host == nullptr || buffer.type == Buffer::managed) return;
  if (!unsafe_allowed(op.thread) || !enter(buffer.context)) return;
  const bool registered = buffer.type == Buffer::registered;
  CUresult wanted = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  CUresult result = CUDA_SUCCESS;
  if (op.c == 0) {
    result = cuMemHostRegister(buffer.host, Buffer::kBytes / 2, 0);
  } else if (registered) {
    wanted = CUDA_ERROR_INVALID_VALUE;
    result = cuMemFreeHost(buffer.host);
  } else {
    wanted = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    result = cuMemHostUnregister(buffer.host);
  }
  if (result == CUDA_SUCCESS) return fail("a mistake with page-locked memory succeeded");
  expect(result == wanted ? CUDA_SUCCESS : result, "a mistake with page-locked memory");
}

// Page-locked memory may be cupool's, and its free need not wait; the driver has the rest.
void Machine::buffer_destroy(const Operation& op) {
  Slots& slots = slots_of(op);
  Buffer& buffer = slots.buffers[op.a % kBuffers];
  if (buffer.host == nullptr || !unsafe_allowed(op.thread) || !enter(buffer.context)) return;
  for (Graph& graph : slots.graphs) {
    for (const auto& used : graph.made_by.buffers) {
      if (used.second == buffer.host && graph.exec != nullptr) return;
    }
  }
  for (const Capture& capture : slots.captures) {
    for (const auto& used : capture.buffers) {
      if (used.second == buffer.host && capture.active) return;
    }
  }
  bool freed = false;
  if (buffer.type == Buffer::managed) {
    freed = expect(cuMemFree(buffer.device), "freeing managed memory");
  } else if (buffer.type == Buffer::registered) {
    freed = expect(cuMemHostUnregister(buffer.host), "cuMemHostUnregister");
  } else {
    freed = expect(cuMemFreeHost(buffer.host), "cuMemFreeHost");
  }
  if (freed) buffer = Buffer{};
}

void Machine::host_touch(const Operation& op) {
  Buffer& buffer = slots_of(op).buffers[op.a % kBuffers];
  if (buffer.host == nullptr || !buffer.pending.empty()) return;
  cupoolSimHostAccess(buffer.host, Buffer::kBytes, op.c == 1 ? 1 : 0);
}

}  // namespace cupool::property
