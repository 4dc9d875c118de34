// SPDX-License-Identifier: Apache-2.0
// The first step of every free.
#include "engine/serve/retire.h"

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/block/accounting.h"

namespace cupool::engine {

using stats::Counter;
using stats::DeviceStats;
using stats::Gauge;

void drop(const ClaimedBlock& claimed) {
  DeviceStats& stats = claimed.context->stats();
  stats.add(Counter::free_calls_total);
  stats.add(Counter::free_bytes_total, claimed.requested);
  stats::this_thread().add_frees(1);
  count_live(stats, claimed.requested, claimed.capacity, -1);
  stats.gauge_add(Gauge::retired_bytes, signed_bytes(claimed.capacity));
}

void count_retired(Block& block) {
  DeviceStats& stats = block.context->stats();
  count_live(stats, block, -1);
  stats.gauge_add(Gauge::retired_bytes, signed_bytes(block.capacity));
}

EpochNumber retire(Block& block) {
  count_retired(block);
  return block.context->ordering().epochs().retire(&block);
}

std::optional<CUresult> answer_unclaimed(const cuda::Driver& driver, CUdeviceptr address,
                                         PointerMap::Claim claim, const ClaimedBlock& found) {
  if (claim == PointerMap::Claim::missing) return std::nullopt;
  DeviceStats& stats = found.context->stats();
  stats.add(Counter::free_calls_total);
  if (claim == PointerMap::Claim::unusable) {
    // I7: after a sticky error the driver answers, and frees nothing any more. The block's own
    // context is current, because from a healthy one the driver would free pool memory that cupool
    // releases later.
    const cuda::ContextScope scope(driver, found.context->handle());
    return scope.ok() ? driver.cuMemFree_v2(address) : scope.result();
  }
  stats.add(Counter::free_rejected_total);
  return CUDA_ERROR_INVALID_VALUE;
}

void set_aside(Block& retired) {
  retired.aside = true;
  retired.context->device().budget().count_aside(signed_bytes(retired.capacity));
}

}  // namespace cupool::engine
