// SPDX-License-Identifier: Apache-2.0
// Memory that was idle at the end of each of the last steps is unneeded.
#include "engine/backend/pool_decay.h"

#include <algorithm>

#include "cuda/scopes.h"
#include "engine/backend/pool_attributes.h"

namespace cupool::engine {

void PoolDecay::end_step(std::uint64_t released) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  step_ = (step_ + 1) % BlockCache::kDecaySteps;
  for (const PoolKind kind : kEachPoolKind) {
    const CUmemoryPool pool = pair_.created(kind);
    if (pool == nullptr) continue;
    const std::uint64_t reserved = reserved_bytes(driver_, pool);
    const std::uint64_t used = used_bytes(driver_, pool);
    const std::uint64_t now = reserved - std::min(reserved, used);
    Slack& slack = slack_[index_of(kind)];
    slack.at_end[step_] = now;
    const std::uint64_t least = *std::min_element(slack.at_end.begin(), slack.at_end.end());
    slack.unneeded = std::min(now, std::max(least, slack.unneeded + released));
    slack.to_trim = slack.unneeded;
  }
}

PoolDecay::Trimmed PoolDecay::trim_unneeded(StreamSource& context, std::uint64_t bytes) {
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const cuda::ContextScope scope(driver_, context.handle());
  CUstream stream = nullptr;
  // The frees of this thread must have reached the pools.
  if (!scope.ok() || context.thread_stream(&stream) != CUDA_SUCCESS) return {};
  cuda::wait_for_stream(driver_, stream);
  Trimmed trimmed;
  for (const PoolKind kind : kEachPoolKind) {
    Slack& slack = slack_[index_of(kind)];
    if (slack.to_trim == 0) continue;
    const CUmemoryPool pool = pair_.created(kind);
    const std::uint64_t before = reserved_bytes(driver_, pool);
    const std::uint64_t part = std::min({slack.to_trim, bytes, before});
    const std::uint64_t floor = kind == PoolKind::large ? limits_.prealloc : 0;
    driver_.cuMemPoolTrimTo(pool, std::max(before - part, floor));
    const std::uint64_t after = reserved_bytes(driver_, pool);
    const std::uint64_t gone = before - std::min(before, after);
    for (std::uint64_t& each : slack.at_end) each -= std::min(each, gone);
    slack.unneeded -= std::min(slack.unneeded, gone);
    // Less than a chunk, or fragments between live blocks, stay until there is more.
    slack.to_trim = gone == 0 ? 0 : slack.to_trim - std::min(slack.to_trim, std::max(part, gone));
    trimmed.any = trimmed.any || gone != 0;
    trimmed.more = trimmed.more || slack.to_trim != 0;
  }
  if (trimmed.any) pair_.see_reserved();
  return trimmed;
}

}  // namespace cupool::engine
