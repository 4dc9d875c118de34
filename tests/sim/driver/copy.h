// SPDX-License-Identifier: Apache-2.0
// Copies and fills as operations: where the bytes are, what that means for the waiting host, and
// what is done when the operation executes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/entry.h"

namespace cupool::sim {

/// A box of rows in linear memory.
struct Box {
  uintptr_t base = 0;
  size_t pitch = 0;   ///< bytes from row to row
  size_t height = 0;  ///< rows from slice to slice
};

struct Extent {
  size_t width = 0;  ///< bytes
  size_t rows = 1;
  size_t slices = 1;
};

/// One side of a copy as the caller described it.
struct Side {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t pitch;
  size_t height;
  size_t x, y, z;
};

/// False when the description makes no sense.
bool resolve(const Side& side, const Extent& extent, Box* box);

/// How a copy call behaves towards its caller.
enum class Towards { host_waits, host_goes_on };

CUresult copy(Entry& in, Stream& stream, Towards towards, const Box& to, const Box& from,
              const Extent& extent);

/// One copy of a batch; its source is read when `order` allows, its target in stream order.
struct BatchedCopy {
  Box to;
  Box from;
  Extent extent;
  CUmemcpySrcAccessOrder order;
};

/// The batch is ordered in its stream, its copies are not ordered among each other. `failed` gets
/// the index of a copy that cannot be made; then none is.
CUresult copy_batch(Entry& in, Stream& stream, const std::vector<BatchedCopy>& copies,
                    size_t* failed);

/// What a fill does, or an error where it makes no sense.
CUresult describe_fill(uintptr_t to, size_t pitch, uint64_t value, size_t value_bytes, size_t width,
                       size_t rows, OpSpec* spec);

CUresult fill(Entry& in, Stream& stream, Towards towards, uintptr_t to, size_t pitch,
              uint64_t value, size_t value_bytes, size_t width, size_t rows);

}  // namespace cupool::sim
