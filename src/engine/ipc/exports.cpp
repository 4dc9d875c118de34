// SPDX-License-Identifier: Apache-2.0
// The records of exports and leases.
#include "engine/ipc/exports.h"

#include <algorithm>
#include <new>

#include "channel/socket.h"
#include "engine/context/context.h"
#include "engine/ipc/server.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

bool IpcExports::handle_of(const Block& block, ipc::Handle* handle) {
  const std::lock_guard lock(mutex_);
  const auto number = numbers_.find(block.address);
  if (number == numbers_.end()) return false;
  const Export& exported = exports_.at(number->second);
  if (exported.block != &block || exported.kept || !exported.memory.pool_file.is_there() ||
      !start_locked()) {
    return false;
  }
  *handle = handle_locked(number->second, exported);
  return true;
}

bool IpcExports::add(Block& block, const SharedMemory& memory, ipc::Handle* handle) {
  Export exported;
  if (!channel::fill_random(exported.secret.data(), exported.secret.size())) return false;
  exported.block = &block;
  exported.device = &block.context->device();
  exported.address = block.address;
  exported.capacity = block.capacity;
  exported.requested = block.requested;
  exported.memory = memory;
  const std::lock_guard lock(mutex_);
  if (!start_locked()) return false;
  const auto known = numbers_.find(block.address);
  if (known != numbers_.end()) {
    const auto other = exports_.find(known->second);
    if (other->second.block == &block) {  // another thread was first, or the pool's file is new
      other->second.memory = memory;
      *handle = handle_locked(other->first, other->second);
      return true;
    }
    exports_.erase(other);  // its memory was freed by a route that cupool does not see
    numbers_.erase(known);
  }
  const std::uint64_t number = ++last_number_;
  if (!add_locked(number, exported)) return false;
  *handle = handle_locked(number, exported);
  return true;
}

// All of it or nothing.
bool IpcExports::add_locked(std::uint64_t number, const Export& exported) {
  const std::size_t most_ended = ended_.size() + exports_.size() + 1;
  try {
    if (ended_.capacity() < most_ended) ended_.reserve(2 * most_ended);
    exports_.emplace(number, exported);
    numbers_.emplace(exported.address, number);
    return true;
  } catch (const std::bad_alloc&) {
    exports_.erase(number);
    return false;
  }
}

bool IpcExports::end(Block& block, Kept kept) {
  const std::lock_guard lock(mutex_);
  ended_.erase(std::remove_if(ended_.begin(), ended_.end(),
                              [&](const Ended& ended) { return ended.block == &block; }),
               ended_.end());
  const auto number = numbers_.find(block.address);
  if (number == numbers_.end()) return true;
  const auto found = exports_.find(number->second);
  if (found->second.block != &block) return true;
  if (found->second.leases == 0 || CUPOOL_MUTATED("forgets-leases")) {
    exports_.erase(found);
    numbers_.erase(number);
    return true;
  }
  found->second.kept = true;
  if (kept == Kept::memory) found->second.block = nullptr;
  return false;
}

std::vector<Context*> IpcExports::contexts_of_ended() {
  std::vector<Context*> contexts;
  const std::lock_guard lock(mutex_);
  for (const Ended& ended : ended_) {
    if (std::find(contexts.begin(), contexts.end(), ended.context) == contexts.end()) {
      contexts.push_back(ended.context);
    }
  }
  return contexts;
}

std::vector<IpcExports::Ended> IpcExports::take_ended(const Context* context) {
  const std::lock_guard lock(mutex_);
  const auto taken = std::stable_partition(
      ended_.begin(), ended_.end(), [&](const Ended& ended) { return ended.context != context; });
  const std::vector<Ended> result(taken, ended_.end());
  ended_.erase(taken, ended_.end());
  any_ended_.store(!ended_.empty(), std::memory_order_release);
  return result;
}

std::uint64_t IpcExports::kept_bytes(const Device& device) {
  std::uint64_t bytes = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& entry : exports_) {
    const Export& exported = entry.second;
    if (exported.kept && exported.block != nullptr && exported.device == &device) {
      bytes += exported.capacity;
    }
  }
  return bytes;
}

bool IpcExports::is_self(std::uint64_t exporter) {
  const std::lock_guard lock(mutex_);
  return name_ != 0 && name_ == exporter;
}

ipc::Status IpcExports::grant(std::uint64_t block, const ipc::Secret& secret, SharedMemory* memory,
                              std::uint64_t* requested) {
  const std::lock_guard lock(mutex_);
  const auto found = exports_.find(block);
  if (found == exports_.end() || !ipc::equal(found->second.secret, secret) || found->second.kept ||
      !found->second.memory.pool_file.is_there()) {
    return ipc::Status::unknown;
  }
  ++found->second.leases;
  *memory = found->second.memory;
  *requested = found->second.requested;
  return ipc::Status::granted;
}

void IpcExports::end_leases(std::uint64_t block, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const auto found = exports_.find(block);
  if (found == exports_.end()) return;
  Export& exported = found->second;
  exported.leases -= count;
  if (exported.leases != 0 || !exported.kept) return;
  Context* context = nullptr;
  if (exported.block != nullptr) context = exported.block->context;
  ended_.push_back({exported.block, context, exported.device, exported.address});
  numbers_.erase(exported.address);
  exports_.erase(found);
  any_ended_.store(true, std::memory_order_release);
}

bool IpcExports::start_locked() {
  if (name_ != 0 && listener_.is_there()) return true;
  const util::Uncancelled throughout;
  // The program has closed the socket. A connection attempt wakes the server's waiting thread, so
  // that it notices.
  if (name_ != 0) channel::connect_to(name_, 0);
  std::uint64_t name = 0;
  if (!channel::fill_random(&name, sizeof name) || name == 0) return false;
  if (!ipc::start_server(*this, name, &listener_)) return false;
  name_ = name;
  return true;
}

ipc::Handle IpcExports::handle_locked(std::uint64_t number, const Export& exported) const {
  ipc::Handle handle;
  handle.exporter = name_;
  handle.block = number;
  handle.secret = exported.secret;
  return handle;
}

}  // namespace cupool::engine
