// SPDX-License-Identifier: Apache-2.0
// Asks the driver for free memory, which costs little beside giving idle memory back in vain.
#include "engine/serve/room.h"

#include <algorithm>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/serve/failure.h"
#include "engine/serve/giving_back.h"
#include "stats/device_stats.h"
#include "stats/pool_growth.h"
#include "util/mutation.h"

namespace cupool::engine {

using stats::Gauge;

namespace {

// Free memory beyond a request with which its refusal has another cause: a growth step for each
// pool, which the driver may want at once.
constexpr std::uint64_t kRoomBeside = 64ull << 20;

bool is_enough(std::uint64_t free_bytes, std::uint64_t wanted_bytes) {
  if (CUPOOL_MUTATED("sees-room-everywhere")) return true;
  return wanted_bytes <= free_bytes &&
         free_bytes >= stats::in_growth_steps(wanted_bytes) + kRoomBeside;
}

}  // namespace

// MPS gives processes limits of their own, which free memory may not show. An older driver does not
// tell of it.
bool Room::may_have_limit(const Device& device) const {
  constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);  // CUDA 12.6
  int shared = 0;
  return driver_.cuDeviceGetAttribute(&shared, kMpsEnabled, device.ordinal()) != CUDA_SUCCESS ||
         shared != 0;
}

// Unknown where the process alone has a limit: free memory says nothing then.
std::optional<std::uint64_t> Room::free_bytes(Context& context) {
  if (may_have_limit(context.device())) return std::nullopt;
  const ContextVisit visit(context, kShortNs);
  if (!visit || !context.usable()) return std::nullopt;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (!scope.ok()) return std::nullopt;
  CUresult result = driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  if (cuda::is_refusal(result)) result = driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  if (result != CUDA_SUCCESS) note_failure(context, result);
  const bool known =
      result == CUDA_SUCCESS && total_bytes + kRoomBeside >= context.device().total_bytes();
  return known ? std::optional<std::uint64_t>(free_bytes) : std::nullopt;
}

std::optional<std::uint64_t> Room::free_bytes(Device& device) {
  for (Context* context : registry_.contexts_of(device.ordinal())) {
    if (const auto free = free_bytes(*context)) return free;
  }
  return std::nullopt;
}

bool Room::is_there(Device& device, std::uint64_t wanted_bytes) {
  if (wanted_bytes == 0) return false;
  const auto free = free_bytes(device);
  return free && is_enough(*free, wanted_bytes);
}

bool Room::is_just_there(Device& device, std::uint64_t wanted_bytes) {
  if (wanted_bytes == 0) return false;
  const auto free = free_bytes(device);
  return free && *free >= wanted_bytes;
}

bool Room::lacks(Device& device, std::uint64_t bytes) {
  const auto free = free_bytes(device);
  return free && *free < bytes;
}

// What of the device's memory could go back now. What the GPU still uses is included; what is on
// its way back by another thread is not.
std::uint64_t Room::idle_bytes(Device& device) {
  for (Context* context : registry_.contexts_of(device.ordinal())) context->threads().fold();
  const stats::DeviceStats& stats = device.stats();
  const std::int64_t blocks =
      stats.value(Gauge::cached_bytes).current + stats.value(Gauge::retired_bytes).current;
  std::uint64_t idle = static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 0));
  idle -= std::min(idle, device.budget().aside_bytes());
  if (device.pools() != nullptr) idle += device.pools()->preallocation().bytes();
  return idle + device.default_pool().fill().idle_bytes() + async_.idle().bytes(device);
}

bool Room::beside_idle_memory(const Device* only, std::uint64_t wanted_bytes) {
  if (wanted_bytes == 0) return false;
  bool any = false;
  for (Device* device : registry_.devices().all()) {
    if (only != nullptr && device != only) continue;
    if (!is_there(*device, wanted_bytes)) return false;
    const std::uint64_t slack = device->pools() == nullptr ? 0 : device->pools()->pair().slack();
    any = any || idle_bytes(*device) != 0 || slack >= stats::kPoolGrowthStep;
  }
  return any;
}

// After an attempt that idle memory did not help. Other threads take and give memory meanwhile, so
// that one look decides nothing. Two in a row do: else such a call would empty the process again
// and again for what the others have just cached.
Room::Outlook Room::outlook(Context& context, Patience& patience) {
  Device& device = context.device();
  const std::uint64_t wanted = patience.wanted_bytes();
  Patience::Attempts& attempts = patience.attempts_on(device.ordinal());
  if (!attempts.any || wanted == 0) return Outlook::give_back;
  const std::uint64_t idle = idle_bytes(device);  // first: what goes back between counts twice
  const std::optional<std::uint64_t> free = free_bytes(context);
  const bool has_room = free && is_enough(*free, wanted);
  const bool lacks = free && *free + idle < wanted;
  if ((has_room && attempts.had_room) || (lacks && attempts.lacked)) return Outlook::hopeless;
  attempts.had_room = has_room;
  attempts.lacked = lacks;
  return has_room ? Outlook::try_again : Outlook::give_back;
}

}  // namespace cupool::engine
