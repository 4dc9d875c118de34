// Copies and fills as operations: where the bytes are, what that means for the waiting host, and
// what is done when the operation executes.
#pragma once

#include <cstddef>
#include <cstdint>

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

/// How a copy call behaves towards its caller.
enum class Towards { host_waits, host_goes_on };

CUresult copy(Entry& in, Stream& stream, Towards towards, const Box& to, const Box& from,
              const Extent& extent);

CUresult fill(Entry& in, Stream& stream, Towards towards, uintptr_t to, size_t pitch,
              unsigned value, size_t value_bytes, size_t width, size_t rows);

}  // namespace cupool::sim
