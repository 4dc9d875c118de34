// The backend over the driver's memory pools: two pools of our own on each device, so that small
// blocks do not pin large chunks and large blocks are 2 MiB aligned; or the device's default pool.
#pragma once

#include <atomic>
#include <mutex>

#include "core/backend.h"
#include "core/device.h"
#include "cuda/driver.h"

namespace cupool::core {

class PoolBackend final : public Backend {
 public:
  PoolBackend(const cuda::Driver& driver, const Device& device)
      : driver_(driver), device_(device) {}

  BlockSource source() const override { return BlockSource::pool; }
  CUresult allocate(Context& context, std::uint64_t capacity, CUdeviceptr* address) override;
  bool release(Context& context, CUdeviceptr address) override;
  void trim(Context& context) override;
  stats::PoolFigures figures() const override;

  /// Reserves CUPOOL_PREALLOC bytes in the pool of large blocks. `context` is current.
  void preallocate(Context& context);

  /// True if the driver has pools and this device supports them.
  static bool supported(const cuda::Driver& driver, int device);

 private:
  enum Kind { kSmall, kLarge, kKinds };

  CUresult pool_of(Kind kind, CUmemoryPool* pool);
  CUresult create(CUmemoryPool* pool) const;
  void configure(CUmemoryPool pool) const;
  void set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value,
                     const char* option) const;
  void grant_peers(CUmemoryPool pool) const;
  void shed_slack(Kind kind, CUmemoryPool pool);
  std::uint64_t attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) const;
  bool would_exceed_maximum(std::uint64_t capacity) const;

  const cuda::Driver& driver_;
  const Device& device_;
  std::mutex create_mutex_;
  std::atomic<CUmemoryPool> pools_[kKinds] = {};
  std::atomic<std::uint64_t> last_reserved_[kKinds] = {};
};

}  // namespace cupool::core
