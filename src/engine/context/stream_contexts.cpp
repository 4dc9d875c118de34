// SPDX-License-Identifier: Apache-2.0
// The driver knows the context of a stream, except of the default streams.
#include "engine/context/stream_contexts.h"

#include "util/mutation.h"

namespace cupool::engine {
namespace {

// A default stream's handle means another stream in each context.
bool is_default_stream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

Context* StreamContexts::context_of(CUstream stream) {
  CUcontext handle = nullptr;
  if (is_default_stream(stream) || driver_.cuStreamGetCtx == nullptr ||
      driver_.cuStreamGetCtx(stream, &handle) != CUDA_SUCCESS) {
    return registry_.current();
  }
  Context* const context = registry_.find_living(handle);
  return context != nullptr ? context : registry_.current();
}

Context* StreamContexts::capturing_context(CUstream stream) {
  if (!Serving::any_capture()) return nullptr;
  if (is_default_stream(stream) && !CUPOOL_MUTATED("takes-default-streams-for-one")) {
    Context* context = registry_.current();
    return context != nullptr && context->ordering().captures().has(stream) ? context : nullptr;
  }
  for (Context* context : registry_.all()) {
    if (context->ordering().captures().has(stream)) return context;
  }
  return nullptr;
}

void StreamContexts::host_work_submitted(CUstream stream) {
  Context* const context = context_of(stream);
  if (context == nullptr) return;
  const UseCount::Use until_recorded(notes_[line_of_thread<kCallLines>()].count);
  const std::optional<bool> captures =
      Serving::any_capture() ? cuda::is_capturing(driver_, stream) : false;
  if (!captures) return context->host_work().submitted_unseen();
  if (!*captures) context->host_work().submitted(stream);
}

void StreamContexts::let_fences_in_but(const Context& context) {
  for (Context* other : registry_.all()) {
    if (other != &context) other->ordering().captures().let_fences_in();
  }
}

}  // namespace cupool::engine
