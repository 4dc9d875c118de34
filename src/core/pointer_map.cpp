// The sharded table behind PointerMap.
#include "core/pointer_map.h"

#include "core/context.h"

namespace cupool::core {

Block* PointerMap::insert(Block* block) {
  Shard& shard = shards_[shard_of(block->address)];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  Block*& slot = shard.blocks[block->address];
  Block* replaced = slot;
  slot = block;
  return replaced;
}

bool PointerMap::erase(const Block* block) {
  Shard& shard = shards_[shard_of(block->address)];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.blocks.find(block->address);
  if (found == shard.blocks.end() || found->second != block) return false;
  shard.blocks.erase(found);
  return true;
}

Block* PointerMap::find(CUdeviceptr address) const {
  const Shard& shard = shards_[shard_of(address)];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.blocks.find(address);
  return found == shard.blocks.end() ? nullptr : found->second;
}

// All under the shard's lock: a block that leaves the map meanwhile could be another one by then.
PointerMap::Claim PointerMap::claim(CUdeviceptr address, Block** block) {
  Shard& shard = shards_[shard_of(address)];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.blocks.find(address);
  if (found == shard.blocks.end() || found->second->source == BlockSource::passed_through) {
    return Claim::missing;
  }
  *block = found->second;
  if (!(*block)->context->usable()) return Claim::unusable;
  BlockState expected = BlockState::live;
  const bool was_live = (*block)->state.compare_exchange_strong(expected, BlockState::retired,
                                                                std::memory_order_acq_rel);
  return was_live ? Claim::claimed : Claim::not_live;
}

std::vector<Block*> PointerMap::extract(const std::function<bool(const Block&)>& belongs) {
  std::vector<Block*> extracted;
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (auto entry = shard.blocks.begin(); entry != shard.blocks.end();) {
      if (belongs(*entry->second)) {
        extracted.push_back(entry->second);
        entry = shard.blocks.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  return extracted;
}

void PointerMap::for_each(const std::function<void(const Block&)>& visit) const {
  for (const Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (const auto& entry : shard.blocks) visit(*entry.second);
  }
}

}  // namespace cupool::core
