// SPDX-License-Identifier: Apache-2.0
// Handles and secrets.
#include "engine/ipc/wire.h"

#include <cstring>

namespace cupool::engine::ipc {

bool equal(const Secret& a, const Secret& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

bool is_ours(const CUipcMemHandle& handle) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, &handle, sizeof magic);
  return magic == kMagic;
}

Handle from_driver_type(const CUipcMemHandle& handle) {
  Handle ours;
  std::memcpy(static_cast<void*>(&ours), &handle, sizeof ours);
  return ours;
}

CUipcMemHandle to_driver_type(const Handle& handle) {
  CUipcMemHandle theirs;
  std::memcpy(&theirs, &handle, sizeof theirs);
  return theirs;
}

}  // namespace cupool::engine::ipc
