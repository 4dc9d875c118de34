// SPDX-License-Identifier: Apache-2.0
// The protocol of processes that share memory: the handle that the program passes between them, and
// the messages between the importer and the exporter's server.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

namespace cupool::engine::ipc {

constexpr std::uint64_t kMagic = 0x9d1c70efa6d243b5;  // random; no driver handle contains it
constexpr std::uint32_t kVersion = 1;

/// Grants access to the memory to any holder of the handle, and cannot be guessed.
using Secret = std::array<unsigned char, 16>;

/// Compares in constant time.
bool equal(const Secret& a, const Secret& b);

/// A CUipcMemHandle made by cupool.
struct Handle {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t unused = 0;
  std::uint64_t exporter = 0;  ///< random number of the process, in its socket's name
  std::uint64_t block = 0;     ///< number of the exported block in that process
  Secret secret{};
  std::array<unsigned char, 16> padding{};
};
static_assert(sizeof(Handle) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

bool is_ours(const CUipcMemHandle& handle);
Handle from_driver_type(const CUipcMemHandle& handle);
CUipcMemHandle to_driver_type(const Handle& handle);

/// open requests a lease of a block and is answered. close ends a lease and is not answered.
enum class Verb : std::uint32_t { open = 1, close = 2 };

struct Request {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  Verb verb = Verb::open;
  std::uint64_t sequence = 0;  ///< repeated in the reply
  std::uint64_t block = 0;
  Secret secret{};
};

enum class Status : std::uint32_t {
  granted = 0,
  unknown = 1,        ///< no such block, or a wrong secret
  other_user = 2,     ///< the peer is another user's process
  busy = 3,           ///< more importers than the exporter serves
  other_version = 4,  ///< another version of this library
};

/// With Status::granted, the message carries the pool's file descriptor.
struct Reply {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  Status status = Status::unknown;
  std::uint64_t sequence = 0;  ///< 0: the connection is refused, not a request
  std::uint64_t pool = 0;      ///< number of the pool in the exporting process
  std::uint64_t requested = 0;
  CUmemPoolPtrExportData pointer{};
};

}  // namespace cupool::engine::ipc
