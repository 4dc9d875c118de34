// SPDX-License-Identifier: Apache-2.0
// Read with engine/serve/idle_memory, which resolves `auto` when it finds an RDMA library.
#include "process/modes.h"

#include "config/settings.h"
#include "engine/context/rdma_libraries.h"
#include "engine/reclaim/message_calls.h"

namespace cupool::process {
namespace {

std::string is_loaded(const char* library) {
  return std::string(library) + " is loaded";
}

// What an RDMA library makes of the settings, for a run in which cupool serves nothing.
stats::ModeReason expected_with(const char* library, const config::Settings& settings) {
  const bool seen = engine::MessageCalls::seen() && !engine::MessageCalls::any_unseen_route() &&
                    engine::rdma_user_beside_mpi() == nullptr;
  const bool sync = settings.free_mode == config::FreeMode::automatic && !seen;
  const bool plain = settings.backend == config::Backend::automatic;
  return {is_loaded(library), library,
          config::text_of(sync ? config::FreeMode::sync : settings.free_mode),
          config::text_of(plain ? config::Backend::malloc : settings.backend)};
}

}  // namespace

const char* backend_in_force(engine::Allocator* allocator) {
  if (allocator == nullptr) return "driver";
  for (engine::Device* device : allocator->registry().devices().all()) {
    return device->backend().source() == engine::BlockSource::pool ? "pool" : "malloc";
  }
  return "none";
}

void note_rdma_library(bool is_serving) {
  const config::Settings& settings = config::settings();
  const bool engine_looks = settings.free_mode == config::FreeMode::automatic ||
                            settings.backend == config::Backend::automatic;
  if (!is_serving || !engine_looks) engine::loaded_rdma_library();
}

bool describe_modes(engine::Allocator* allocator, stats::ProcessInfo* info) {
  const config::Settings& settings = config::settings();
  const char* const free_mode =
      allocator == nullptr ? "driver" : config::text_of(allocator->policy().mode());
  const char* const backend = backend_in_force(allocator);
  const char* const library = engine::noted_rdma_library();
  const bool is_known =
      library == nullptr || (info->mode_reason && !info->mode_reason->library.empty());
  if (info->free_mode == free_mode && info->backend == backend && is_known) return false;
  info->free_mode = free_mode;
  info->backend = backend;
  info->requested_free_mode = config::text_of(settings.free_mode);
  info->requested_backend = config::text_of(settings.backend);
  const bool automatic = settings.backend == config::Backend::automatic;
  if (library != nullptr) {
    info->mode_reason = allocator == nullptr
                            ? expected_with(library, settings)
                            : stats::ModeReason{is_loaded(library), library, free_mode, backend};
  } else if (automatic && info->backend == "malloc") {
    info->mode_reason = {"the memory pools of the device cannot be used", "", free_mode, backend};
  } else if (allocator != nullptr && settings.free_mode == config::FreeMode::automatic &&
             allocator->policy().mode() == config::FreeMode::sync) {
    info->mode_reason = {"a library of OptiX or of the video engines is loaded", "", free_mode,
                         backend};
  }
  return true;
}

}  // namespace cupool::process
