// SPDX-License-Identifier: Apache-2.0
// Memory that several processes take from the same devices (CUPOOL_SIM_SHARED): a file holds what
// each of them uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cupool::sim {

/// What all processes use of one device. A process that has ended uses nothing, however it ended.
class SharedUse {
 public:
  /// The use of device `ordinal` that the file records.
  SharedUse(const std::string& file, int ordinal);
  ~SharedUse();
  SharedUse(const SharedUse&) = delete;
  SharedUse& operator=(const SharedUse&) = delete;

  /// Bytes that other living processes use.
  size_t of_others() const;
  /// Records `own_after` bytes of this process, unless all processes would use more than `total`.
  /// False: they would.
  bool take(size_t own_after, size_t total);
  /// Records `own_after` bytes, fewer than before.
  void give(size_t own_after);

  /// Same for each process with this file: a part of the device's UUID.
  uint64_t identity() const { return identity_; }

 private:
  struct Entry;
  int file_ = -1;
  uint64_t identity_ = 0;
  Entry* entries_ = nullptr;  ///< of this device
  Entry* own_ = nullptr;
};

}  // namespace cupool::sim
