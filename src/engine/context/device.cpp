// SPDX-License-Identifier: Apache-2.0
// Reads a device's properties once and chooses its backend.
#include "engine/context/device.h"

#include <cstring>

#include "engine/reclaim/lane.h"
#include "util/log.h"

namespace cupool::engine {
namespace {

std::uint64_t read_total_bytes(const cuda::Driver& driver, int ordinal, stats::DeviceStats& stats) {
  size_t total = 0;
  if (driver.cuDeviceTotalMem_v2(&total, ordinal) != CUDA_SUCCESS && !cuda::has_shut_down(driver)) {
    CUPOOL_WARN_ONCE(
        "the driver does not report the memory size of device %d; its memory comes from cuMemAlloc",
        ordinal);
  }
  char name[128] = {};
  driver.cuDeviceGetName(name, sizeof(name) - 1, ordinal);
  stats.set_device_info(name, total);
  return total;
}

channel::DeviceId read_id(const cuda::Driver& driver, int ordinal) {
  channel::DeviceId id = channel::kNoDevice;
  CUuuid uuid{};
  if (driver.cuDeviceGetUuid_v2 != nullptr &&
      driver.cuDeviceGetUuid_v2(&uuid, ordinal) == CUDA_SUCCESS) {
    std::memcpy(id.data(), uuid.bytes, id.size());
  }
  return id;
}

DeviceLimits limits_of(const config::Settings& settings, std::uint64_t total_bytes) {
  DeviceLimits limits;
  limits.max_block = settings.max_block.resolve(total_bytes);
  limits.max_cached = settings.max_cached.resolve(total_bytes);
  limits.max_pending = settings.max_pending.resolve(total_bytes);
  limits.pending_grows = settings.max_pending.grows;
  limits.default_pending = config::LimitOption{}.resolve(total_bytes);
  limits.release_threshold = settings.release_threshold.resolve(total_bytes);
  limits.max_size = settings.max_size.resolve(total_bytes);
  limits.prealloc = settings.prealloc.resolve(total_bytes);
  limits.use_default_pool = settings.pool == config::Pool::device_default;
  limits.ipc = settings.ipc;
  limits.reuse_follow_event_dependencies = settings.reuse_follow_event_dependencies;
  limits.reuse_allow_opportunistic = settings.reuse_allow_opportunistic;
  limits.reuse_allow_internal_dependencies = settings.reuse_allow_internal_dependencies;
  return limits;
}

bool wants_pools(const cuda::Driver& driver, int ordinal, config::Backend wanted,
                 bool every_device_is_peer) {
  const bool supported = PoolBackend::supported(driver, ordinal);
  if (wanted == config::Backend::pool && !supported && !cuda::has_shut_down(driver)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_BACKEND=pool: this driver or device has no memory pools; memory comes from "
        "cuMemAlloc instead. CUPOOL_BACKEND=malloc silences this warning");
  }
  if (!supported || wanted == config::Backend::malloc) return false;
  // A copy between devices that cannot be peers would write nothing into pool memory.
  if (!every_device_is_peer && wanted == config::Backend::pool && !cuda::has_shut_down(driver)) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_BACKEND=pool: not all devices can be peers (or the driver does not say), and "
        "copies between their pools would write nothing. Memory comes from cuMemAlloc instead; to "
        "use pools, set CUDA_VISIBLE_DEVICES to one device");
  }
  return every_device_is_peer;
}

// The backend does not matter. With CUPOOL_POOL=default the pool is configured as a whole.
bool may_keep_default_pool(const cuda::Driver& driver, int ordinal,
                           const config::Settings& settings, const DeviceLimits& limits) {
  return settings.async != config::Async::off && !limits.use_default_pool &&
         limits.release_threshold != 0 && driver.cuDeviceGetDefaultMemPool != nullptr &&
         driver.cuDeviceGetMemPool != nullptr && PoolBackend::supported(driver, ordinal);
}

// Settings that name the pools or their size start them at once.
bool may_start_later(const config::Settings& settings, const DeviceLimits& limits) {
  return settings.pool_start == config::PoolStart::background &&
         settings.backend != config::Backend::pool && limits.prealloc == 0 && limits.max_size == 0;
}

}  // namespace

Device::Device(const cuda::Driver& driver, int ordinal, const config::Settings& settings)
    : ordinal_(ordinal),
      id_(read_id(driver, ordinal)),
      stats_(stats::device(ordinal)),
      total_bytes_(read_total_bytes(driver, ordinal, stats_)),
      limits_(limits_of(settings, total_bytes_)),
      peers_(find_peers(driver, ordinal)),
      budget_(limits_, stats_),
      plain_(driver),
      pools_(create_pools(driver, settings.backend)),
      default_pool_(driver, ordinal, limits_,
                    may_keep_default_pool(driver, ordinal, settings, limits_)),
      pool_start_(pools_, may_start_later(settings, limits_)),
      backend_(pools_ != nullptr ? static_cast<Backend*>(pools_) : &plain_) {}

Device::Peers Device::find_peers(const cuda::Driver& driver, int ordinal) {
  Peers peers;
  int count = 0;
  // Peers that are not known cannot get access either.
  peers.every_other = driver.cuDeviceGetCount(&count) == CUDA_SUCCESS;
  for (int other = 0; other < count; ++other) {
    if (other == ordinal) continue;
    int can = 0;
    if (driver.cuDeviceCanAccessPeer(&can, other, ordinal) == CUDA_SUCCESS && can != 0) {
      peers.ordinals.push_back(other);
    } else {
      peers.every_other = false;
    }
  }
  return peers;
}

PoolBackend* Device::create_pools(const cuda::Driver& driver, config::Backend wanted) {
  if (!wants_pools(driver, ordinal_, wanted, peers_.every_other)) return nullptr;
  // Never destroyed: blocks and exit handlers may still need them.
  return new PoolBackend(
      driver, {ordinal_, total_bytes_, limits_, peers_.ordinals, stats_, budget_, orphans_});
}

Backend& Device::backend_of(BlockSource source) {
  if (source == BlockSource::pool) return *pools_;
  return plain_;
}

void Device::use_plain_memory() {
  Lane::leave(Lane::End::off);
  backend_.store(&plain_, std::memory_order_release);
  pool_start_.give_up();
}

void Device::trim(StreamSource& context) {
  if (pools_ != nullptr) pools_->trim(context);
}

stats::PoolFigures Device::pool_figures() const {
  return pools_ == nullptr ? stats::PoolFigures{} : pools_->pair().figures();
}

bool can_share(const Device& device, const Block& block) {
  return block.source == BlockSource::pool && device.pools()->sharing().can_share(block.capacity);
}

}  // namespace cupool::engine
