// The book of exports and leases.
#include "core/ipc_exports.h"

#include <algorithm>

#include "core/context.h"
#include "core/ipc_server.h"

namespace cupool::core {

bool IpcExports::handle_of(const Block& block, ipc::Handle* handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto number = numbers_.find(block.address);
  if (number == numbers_.end()) return false;
  const Export& exported = exports_.at(number->second);
  if (exported.block != &block || exported.kept) return false;
  *handle = handle_locked(number->second, exported);
  return true;
}

bool IpcExports::add(Block& block, const SharedMemory& memory, ipc::Handle* handle) {
  Export exported;
  if (!ipc::fill_random(exported.secret.data(), exported.secret.size())) return false;
  exported.block = &block;
  exported.device = &block.context->device();
  exported.address = block.address;
  exported.capacity = block.capacity;
  exported.requested = block.requested;
  exported.memory = memory;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!start_locked()) return false;
  const auto known = numbers_.find(block.address);
  if (known != numbers_.end()) {
    const auto other = exports_.find(known->second);
    if (other->second.block == &block) {  // another thread was faster
      *handle = handle_locked(other->first, other->second);
      return true;
    }
    exports_.erase(other);  // its memory went by a route that we do not see
  }
  const std::uint64_t number = ++last_number_;
  numbers_[block.address] = number;
  *handle = handle_locked(number, exports_.emplace(number, exported).first->second);
  return true;
}

bool IpcExports::end(Block& block, bool context_gone) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_.erase(std::remove_if(ended_.begin(), ended_.end(),
                              [&](const Ended& ended) { return ended.block == &block; }),
               ended_.end());
  const auto number = numbers_.find(block.address);
  if (number == numbers_.end()) return true;
  const auto found = exports_.find(number->second);
  if (found->second.block != &block) return true;
  if (found->second.leases == 0) {
    exports_.erase(found);
    numbers_.erase(number);
    return true;
  }
  found->second.kept = true;
  if (context_gone) found->second.block = nullptr;
  return false;
}

std::vector<IpcExports::Ended> IpcExports::take_ended() {
  std::vector<Ended> taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  taken.swap(ended_);
  any_ended_.store(false, std::memory_order_release);
  return taken;
}

std::uint64_t IpcExports::kept_bytes(const Device& device) {
  std::uint64_t bytes = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : exports_) {
    const Export& exported = entry.second;
    if (exported.kept && exported.block != nullptr && exported.device == &device) {
      bytes += exported.capacity;
    }
  }
  return bytes;
}

bool IpcExports::is_self(std::uint64_t exporter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return name_ != 0 && name_ == exporter;
}

ipc::Status IpcExports::grant(std::uint64_t block, const ipc::Secret& secret, SharedMemory* memory,
                              std::uint64_t* requested) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = exports_.find(block);
  if (found == exports_.end() || !ipc::equal(found->second.secret, secret) || found->second.kept) {
    return ipc::Status::unknown;
  }
  ++found->second.leases;
  *memory = found->second.memory;
  *requested = found->second.requested;
  return ipc::Status::granted;
}

void IpcExports::end_leases(std::uint64_t block, std::uint64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = exports_.find(block);
  if (found == exports_.end()) return;
  Export& exported = found->second;
  exported.leases -= count;
  if (exported.leases != 0 || !exported.kept) return;
  ended_.push_back({exported.block, exported.device, exported.address});
  numbers_.erase(exported.address);
  exports_.erase(found);
  any_ended_.store(true, std::memory_order_release);
}

bool IpcExports::start_locked() {
  if (name_ != 0) return true;
  std::uint64_t name = 0;
  if (!ipc::fill_random(&name, sizeof name) || name == 0) return false;
  if (!ipc::start_server(*this, name)) return false;
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

}  // namespace cupool::core
