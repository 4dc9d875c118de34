// SPDX-License-Identifier: Apache-2.0
// The program's pointer queries, answered from the pointer map.
#include "engine/serve/pointer_queries.h"

#include "engine/block/accounting.h"
#include "engine/reclaim/lane_mark.h"

namespace cupool::engine {

std::optional<PointerQueries::Pitched> PointerQueries::known_layout(std::uint64_t width,
                                                                    std::uint64_t rows) {
  Context* context = registry_.current();
  if (context == nullptr || width == 0 || rows == 0) return std::nullopt;
  const auto index = static_cast<std::size_t>(context->device().ordinal());
  const std::uint64_t unit = pitch_units_[index].load(std::memory_order_relaxed);
  if (unit <= 1) return std::nullopt;
  Pitched layout{(width + unit - 1) / unit * unit, 0};
  if (layout.pitch == 0 || __builtin_mul_overflow(layout.pitch, rows, &layout.bytes))
    return std::nullopt;
  return layout;
}

// The driver does not document its padding of rows. Its answers so far were multiples of
// kAlignment. If a device's first answer is not, the driver answers there for good (unit 1).
void PointerQueries::learn_pitch(std::uint64_t width, std::uint64_t pitch) {
  Context* context = registry_.current();
  if (context == nullptr || width == 0) return;
  const bool as_expected = pitch == (width + kAlignment - 1) / kAlignment * kAlignment;
  std::atomic<std::uint64_t>& unit =
      pitch_units_[static_cast<std::size_t>(context->device().ordinal())];
  std::uint64_t unknown = 0;
  if (!as_expected) {
    unit.store(1, std::memory_order_relaxed);
  } else {
    unit.compare_exchange_strong(unknown, kAlignment, std::memory_order_relaxed);
  }
}

bool PointerQueries::holds(CUdeviceptr address) const {
  const Block* block = blocks_.find(address);
  return block != nullptr && block->source != BlockSource::passed_through;
}

CUdeviceptr PointerQueries::base_of(CUdeviceptr address) const {
  CUdeviceptr base = 0;
  if (holds(address)) return address;
  const CUresult result = driver_.cuMemGetAddressRange_v2(&base, nullptr, address);
  if (result == CUDA_SUCCESS) return base;
  base = address;
  // The usual answer for memory that is not device memory. Any other error is the driver's.
  if (result == CUDA_ERROR_NOT_FOUND) return base;
  blocks_.for_each([&](const Block& block) {
    const bool inside = address >= block.address && address - block.address < block.capacity;
    if (inside) base = block.address;
  });
  return base;
}

const Block* PointerQueries::live_block(CUdeviceptr base) const {
  const Block* block = blocks_.find(base);
  const bool live = block != nullptr && block->source != BlockSource::passed_through &&
                    block->state.load(std::memory_order_acquire) == BlockState::live;
  return live ? block : nullptr;
}

FoundMemory PointerQueries::find(CUdeviceptr base, CUdeviceptr address) {
  FoundMemory found = host_.find(base, address);
  if (found.served() || found.nobodys) return found;
  found = async_.blocks().find(base, address);
  if (found.served() || found.nobodys) return found;
  const Block* const live = live_block(base);
  if (live == nullptr) {
    found.imported = imports_.find(base);
    found.nobodys = is_freed_block(base);
  } else if (address - base >= live->requested) {
    found.nobodys = true;
  } else {
    found.live = live;
  }
  return found;
}

CUcontext PointerQueries::context_of_pool_memory(CUdeviceptr address) {
  const CUdeviceptr base = base_of(address);
  if (const Block* const block = live_block(base)) {
    return block->source == BlockSource::pool ? block->context->handle() : nullptr;
  }
  const auto imported = imports_.find(base);
  return imported ? imported->context : nullptr;
}

std::optional<trace::Memory> PointerQueries::memory_at(CUdeviceptr address) const {
  const Block* block = blocks_.find(address);
  if (block == nullptr || block->state.load(std::memory_order_acquire) != BlockState::live) {
    return std::nullopt;
  }
  return trace::Memory{address, block->requested, block->context->device().ordinal()};
}

bool PointerQueries::is_freed_block(CUdeviceptr base) const {
  const Block* block = blocks_.find(base);
  if (block != nullptr) return block->state.load(std::memory_order_acquire) != BlockState::live;
  return registry_.devices().any_orphan_at(base);
}

void PointerQueries::mark_shared_outside(CUdeviceptr address, KnownBy by, KnownUntil until) {
  host_.mark_shared_outside(address);
  const CUdeviceptr base = base_of(address);
  async_.blocks().mark_shared_outside(base);
  Block* block = blocks_.find(base);
  if (block == nullptr) return;
  if (until == KnownUntil::driver_frees && block->source == BlockSource::malloc) return;
  if (by == KnownBy::descriptor) block->exported = true;
  block->set_shared_outside();
  LaneMark::wait(driver_);  // its last owner's work may be pending
}

}  // namespace cupool::engine
