// Reads a device's properties once and chooses its backend.
#include "core/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/backend_pool.h"
#include "util/clock.h"
#include "util/log.h"

namespace cupool::core {

Device::Device(const cuda::Driver& driver, int ordinal, const config::Settings& settings)
    : driver_(driver), ordinal_(ordinal), stats_(stats::device(ordinal)), plain_(driver) {
  size_t total = 0;
  if (driver_.cuDeviceTotalMem_v2(&total, ordinal_) != CUDA_SUCCESS) {
    CUPOOL_WARN_ONCE("the size of device %d is not to be had; its memory comes from cuMemAlloc",
                     ordinal_);
  }
  total_bytes_ = total;
  char name[128] = {};
  driver_.cuDeviceGetName(name, sizeof(name) - 1, ordinal_);
  stats_.set_device_info(name, total_bytes_);

  limits_.max_block = settings.max_block.resolve(total_bytes_);
  limits_.max_cached = settings.max_cached.resolve(total_bytes_);
  limits_.max_pending = settings.max_pending.resolve(total_bytes_);
  const config::Settings defaults = config::parse(nullptr, nullptr, nullptr);
  limits_.default_pending = defaults.max_pending.resolve(total_bytes_);
  limits_.release_threshold = settings.release_threshold.resolve(total_bytes_);
  limits_.max_size = settings.max_size.resolve(total_bytes_);
  limits_.prealloc = settings.prealloc.resolve(total_bytes_);
  limits_.use_default_pool = settings.pool == config::Pool::device_default;
  limits_.ipc = settings.ipc;
  limits_.reuse_follow_event_dependencies = settings.reuse_follow_event_dependencies;
  limits_.reuse_allow_opportunistic = settings.reuse_allow_opportunistic;
  limits_.reuse_allow_internal_dependencies = settings.reuse_allow_internal_dependencies;

  find_peers();
  choose_backend(settings.backend);
  // Who names the pools, or says how large they are to be, has them from the start.
  may_start_later_ = settings.pool_start == config::PoolStart::background && pools_ != nullptr &&
                     settings.backend != config::Backend::pool && limits_.prealloc == 0 &&
                     limits_.max_size == 0;
}

void Device::find_peers() {
  int count = 0;
  // Devices that are not known cannot be admitted either.
  if (driver_.cuDeviceGetCount(&count) != CUDA_SUCCESS) every_device_is_peer_ = false;
  for (int other = 0; other < count; ++other) {
    if (other == ordinal_) continue;
    int can = 0;
    if (driver_.cuDeviceCanAccessPeer(&can, other, ordinal_) == CUDA_SUCCESS && can != 0) {
      peers_.push_back(other);
    } else {
      every_device_is_peer_ = false;
    }
  }
}

void Device::choose_backend(config::Backend wanted) {
  const bool supported = PoolBackend::supported(driver_, ordinal_);
  if (wanted == config::Backend::pool && !supported) {
    CUPOOL_WARN_ONCE(
        "CUPOOL_BACKEND=pool: this driver or device has no memory pools; serving from cuMemAlloc "
        "instead (set CUPOOL_BACKEND=malloc to say so)");
  }
  bool use_pool = supported && wanted != config::Backend::malloc;
  // Copies between devices that cannot be peers would write nothing into pool memory.
  if (use_pool && !every_device_is_peer_) {
    use_pool = false;
    if (wanted == config::Backend::pool) {
      CUPOOL_WARN_ONCE(
          "CUPOOL_BACKEND=pool: not all devices can be peers (or the driver does not say), and "
          "copies between their pools would write nothing; serving from cuMemAlloc (show the "
          "program one device, by CUDA_VISIBLE_DEVICES, to have pools)");
    }
  }
  if (!use_pool) return;
  // Never destroyed: blocks and exit handlers may still need them.
  pools_ = new PoolBackend(driver_, *this);
  backend_.store(pools_, std::memory_order_release);
}

bool Device::wants_pools_started() {
  constexpr unsigned kFew = 3;
  if (freed_by_driver_.load(std::memory_order_relaxed) < kFew) return false;
  Start waits = Start::waits;
  if (!pool_start_.compare_exchange_strong(waits, Start::awaited, std::memory_order_acq_rel)) {
    return false;
  }
  awaited_since_ns_.store(util::now_ns(), std::memory_order_release);
  return true;
}

bool Device::wait_for_start() const {
  constexpr std::uint64_t kFirstNs = 15'000'000;
  constexpr std::uint64_t kLongestNs = 100'000'000;
  constexpr std::uint64_t kEachNs = 1'000'000'000;
  const std::uint64_t since = awaited_since_ns_.load(std::memory_order_acquire);
  const std::uint64_t now = util::now_ns();
  if (since == 0 || now < since + kFirstNs) return pools_are_started();
  const std::uint64_t end = now - (now - since - kFirstNs) % kEachNs + kLongestNs;
  while (!pools_are_started() && util::now_ns() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return pools_are_started();
}

void Device::start_pools(Context& context) {
  pools_->start(context);
  pool_start_.store(Start::done, std::memory_order_release);
}

CUresult Device::allocate_last(Context& context, std::uint64_t capacity, CUdeviceptr* address) {
  if (&backend() == &plain_) return CUDA_ERROR_OUT_OF_MEMORY;
  return pools_->allocate_last(context, capacity, address);
}

Backend& Device::backend_of(BlockSource source) {
  if (source == BlockSource::pool) return *pools_;
  return plain_;
}

bool Device::can_share(const Block& block) const {
  return block.source == BlockSource::pool && pools_->can_share(block.capacity);
}

CUresult Device::share(const Block& block, SharedMemory* memory) {
  if (block.source != BlockSource::pool) return CUDA_ERROR_NOT_SUPPORTED;
  return pools_->share(block.capacity, block.address, memory);
}

void Device::trim(Context& context) {
  if (pools_ != nullptr) pools_->trim(context);
}

void Device::end_decay_step(std::uint64_t released) {
  if (pools_ != nullptr) pools_->end_decay_step(released);
}

bool Device::trim_unneeded(Context& context, std::uint64_t bytes, bool* more) {
  return pools_ != nullptr && pools_->trim_unneeded(context, bytes, more);
}

stats::PoolFigures Device::pool_figures() const {
  return pools_ == nullptr ? stats::PoolFigures{} : pools_->figures();
}

std::uint64_t Device::pinned_bytes() const {
  return pools_ == nullptr ? 0 : pools_->pinned_bytes();
}

void Device::admit(int peer) {
  if (pools_ != nullptr && std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) {
    pools_->admit(peer);
  }
}

std::uint64_t Device::footprint_budget() const {
  constexpr std::uint64_t kStep = 32ull << 20;  // of a driver pool's growth (docs/measurements)
  const auto peak = static_cast<std::uint64_t>(stats_.value(stats::Gauge::application_bytes).peak);
  return peak + peak / 8 + kStep + limits_.max_pending;
}

std::uint64_t Device::pending_bound(std::uint64_t except) const {
  const stats::GaugeValue application = stats_.value(stats::Gauge::application_bytes);
  const auto unused =
      static_cast<std::uint64_t>(std::max<std::int64_t>(application.peak - application.current, 0));
  const std::uint64_t room = (unused - std::min(unused, except)) / 2;
  return std::max(limits_.max_pending,
                  std::min(limits_.max_pending + room, limits_.default_pending));
}

bool Device::begin_preallocation() {
  if (pools_ == nullptr || limits_.prealloc == 0) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (preallocated_) return false;
  preallocated_ = true;
  return true;
}

void Device::preallocate(Context& context) {
  pools_->preallocate(context);
}

Preallocation Device::preallocate_some(Context& context) {
  if (!preallocates()) return Preallocation::ended;
  const Preallocation state = pools_->preallocate_some(context);
  if (state == Preallocation::ended) preallocates_.store(false, std::memory_order_relaxed);
  return state;
}

void Device::end_preallocation(Context& context) {
  if (pools_ != nullptr) pools_->end_preallocation(context);
}

std::uint64_t Device::preallocating_bytes() const {
  return pools_ == nullptr ? 0 : pools_->preallocating_bytes();
}

void Device::add_orphans(const std::vector<CUdeviceptr>& addresses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orphans_.insert(orphans_.end(), addresses.begin(), addresses.end());
  has_orphans_.store(!orphans_.empty(), std::memory_order_release);
}

void Device::release_orphans(Context& context) {
  if (!has_orphans_.load(std::memory_order_acquire)) return;
  std::vector<CUdeviceptr> addresses;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    addresses.swap(orphans_);
    has_orphans_.store(false, std::memory_order_release);
  }
  if (addresses.empty()) return;
  std::vector<CUdeviceptr> refused;
  for (const CUdeviceptr address : addresses) {
    if (!pools_->release(context, address) && !pools_->release(context, address)) {
      refused.push_back(address);
    }
  }
  trim(context);
  if (!refused.empty()) add_orphans(refused);
}

bool Device::is_orphan(CUdeviceptr address) {
  if (!has_orphans_.load(std::memory_order_acquire)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(orphans_.begin(), orphans_.end(), address) != orphans_.end();
}

}  // namespace cupool::core
