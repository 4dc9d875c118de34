// What processes that share memory say to each other: the handle that the program carries from one
// to the other, and the messages between the importer and the exporter's server.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

namespace cupool::core::ipc {

constexpr std::uint64_t kMagic = 0x9d1c70efa6d243b5;  // random; no handle of the driver has it
constexpr std::uint32_t kVersion = 1;

/// Who holds the handle may have the memory; nobody can guess it.
using Secret = std::array<unsigned char, 16>;

/// Takes as long whatever the contents.
bool equal(const Secret& a, const Secret& b);

/// From the kernel's generator. False: it has none to give.
bool fill_random(void* bytes, std::size_t count);

/// A CUipcMemHandle of ours.
struct Handle {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t unused = 0;
  std::uint64_t exporter = 0;  ///< random number of the process, and the name of its socket
  std::uint64_t block = 0;     ///< number of the exported block in that process
  Secret secret{};
  std::array<unsigned char, 16> padding{};
};
static_assert(sizeof(Handle) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

bool is_ours(const CUipcMemHandle& handle);
Handle from_driver_type(const CUipcMemHandle& handle);
CUipcMemHandle to_driver_type(const Handle& handle);

/// open asks for a lease of a block, and is answered; close ends one, and is not.
enum class Verb : std::uint32_t { open = 1, close = 2 };

struct Request {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  Verb verb = Verb::open;
  std::uint64_t sequence = 0;  ///< comes back in the reply
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

/// With status granted it carries the pool's file descriptor.
struct Reply {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  Status status = Status::unknown;
  std::uint64_t sequence = 0;  ///< 0: no answer to a request, the connection itself is refused
  std::uint64_t pool = 0;      ///< number of the pool in the exporting process
  std::uint64_t requested = 0;
  CUmemPoolPtrExportData pointer{};
};

}  // namespace cupool::core::ipc
