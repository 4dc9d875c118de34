// SPDX-License-Identifier: Apache-2.0
// The rules of cuda.h, "API synchronization behavior": pageable memory is staged or waited for,
// page-locked memory is used when the operation runs, copies between device memory and fills of
// it do not wait even in their synchronous form.
#include "driver/copy.h"

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "driver/array.h"

namespace cupool::sim {

namespace {

enum class Place { device, pinned, pageable };

Place place_of(uintptr_t address) {
  World& w = world();
  if (w.device_at(address) != nullptr) return Place::device;
  return w.addresses.find(address) != nullptr ? Place::pinned : Place::pageable;
}

size_t span(const Box& box, const Extent& extent) {
  if (extent.width == 0 || extent.rows == 0 || extent.slices == 0) return 0;
  return ((extent.slices - 1) * box.height + extent.rows - 1) * box.pitch + extent.width;
}

bool in_array(uintptr_t address, size_t bytes) {
  for (const Array* array : world().arrays) {
    if (address >= array->memory && address + bytes <= array->memory + array->bytes) return true;
  }
  return false;
}

/// A device address must belong to an allocation when the call is made.
bool plausible(uintptr_t address, size_t bytes) {
  World& w = world();
  if (w.device_at(address) == nullptr) return address != 0;
  const Allocation* found = w.addresses.find(address);
  if (found == nullptr) return in_array(address, bytes);
  return bytes <= found->base + found->size - address;
}

void move_rows(uintptr_t to_base, const Box& to, uintptr_t from_base, const Box& from,
               const Extent& extent) {
  for (size_t slice = 0; slice < extent.slices; ++slice) {
    for (size_t row = 0; row < extent.rows; ++row) {
      const uintptr_t d = to_base + (slice * to.height + row) * to.pitch;
      const uintptr_t s = from_base + (slice * from.height + row) * from.pitch;
      std::memmove(reinterpret_cast<void*>(d), reinterpret_cast<const void*>(s), extent.width);
    }
  }
}

bool still_mapped(uintptr_t address, size_t bytes) {
  const Device* device = world().device_at(address);
  return device == nullptr || device->arena.backed(address, bytes);
}

bool crosses_without_access(uintptr_t to, uintptr_t from) {
  World& w = world();
  const Device* a = w.device_at(to);
  const Device* b = w.device_at(from);
  if (a == nullptr || b == nullptr || a == b) return false;
  return !copy_reaches(b->ordinal, to) || !copy_reaches(a->ordinal, from);
}

bool is_managed(uintptr_t address) {
  const Allocation* found = world().addresses.find(address);
  return found != nullptr && found->origin == Origin::managed;
}

uint64_t duration(size_t bytes) {
  return 2000 +
         static_cast<uint64_t>(static_cast<double>(bytes) / world().settings.gigabytes_per_second);
}

/// What a copy does when it runs; a staged source was read before.
std::function<CUresult()> movement(const Box& to, const Box& from, const Extent& extent,
                                   std::shared_ptr<std::vector<unsigned char>> staged) {
  return [=]() -> CUresult {
    if (!still_mapped(to.base, span(to, extent)) || !still_mapped(from.base, span(from, extent))) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (crosses_without_access(to.base, from.base)) return CUDA_SUCCESS;
    const uintptr_t source =
        staged != nullptr ? reinterpret_cast<uintptr_t>(staged->data()) : from.base;
    move_rows(to.base, to, source, from, extent);
    return CUDA_SUCCESS;
  };
}

std::shared_ptr<std::vector<unsigned char>> stage(uintptr_t from, size_t bytes) {
  const auto* const source = reinterpret_cast<const unsigned char*>(from);
  return std::make_shared<std::vector<unsigned char>>(source, source + bytes);
}

/// The judge's view of a source that is read at any time after the call, whatever the stream does.
void read_out_of_order(Stream& stream, uintptr_t from, size_t bytes) {
  World& w = world();
  OpSpec read;
  read.name = "copy in any order";
  read.accesses.push_back({from, bytes, false});
  w.judge.before_submit(read, w.engine.host_clock(), Instant{stream.timeline, ++stream.number});
}

OpSpec batched(Stream& stream, const BatchedCopy& c) {
  World& w = world();
  const size_t from_bytes = span(c.from, c.extent);
  OpSpec spec;
  spec.name = "batched copy";
  spec.duration_ns = duration(c.extent.width * c.extent.rows * c.extent.slices);
  spec.accesses.push_back({c.to.base, span(c.to, c.extent), true});
  std::shared_ptr<std::vector<unsigned char>> staged;
  if (c.order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) {
    w.judge.host_access(c.from.base, from_bytes, false);
    staged = stage(c.from.base, from_bytes);
  } else if (c.order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
    read_out_of_order(stream, c.from.base, from_bytes);
    if (w.settings.mode == Mode::early) staged = stage(c.from.base, from_bytes);
  } else {
    spec.accesses.push_back({c.from.base, from_bytes, false});
  }
  spec.effect = movement(c.to, c.from, c.extent, std::move(staged));
  return spec;
}

}  // namespace

bool resolve(const Side& side, const Extent& extent, Box* box) {
  box->pitch = side.pitch != 0 ? side.pitch : extent.width;
  box->height = side.height != 0 ? side.height : extent.rows;
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      box->base = reinterpret_cast<uintptr_t>(side.host);
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      box->base = side.device;
      break;
    case CU_MEMORYTYPE_ARRAY: {
      const Array* const array = known_array(side.array);
      if (array == nullptr) return false;
      box->base = array->memory;
      box->pitch = array->pitch;
      box->height = array->descriptor.Height != 0 ? array->descriptor.Height : 1;
      break;
    }
    default:
      return false;
  }
  box->base += (side.z * box->height + side.y) * box->pitch + side.x;
  return extent.width <= box->pitch;
}

CUresult copy(Entry& in, Stream& stream, Towards towards, const Box& to, const Box& from,
              const Extent& extent) {
  const size_t to_bytes = span(to, extent);
  const size_t from_bytes = span(from, extent);
  if (to_bytes == 0) return CUDA_SUCCESS;
  if (!plausible(to.base, to_bytes) || !plausible(from.base, from_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Place to_place = place_of(to.base);
  const Place from_place = place_of(from.base);
  const bool capturing = stream.capture != nullptr;
  OpSpec spec;
  spec.name = "copy";
  spec.duration_ns = duration(extent.width * extent.rows * extent.slices);
  if (to_place != Place::pageable || capturing) spec.accesses.push_back({to.base, to_bytes, true});
  if (towards == Towards::host_waits && from_place == Place::pageable) {
    // "A stream sync is performed before the copy is initiated", and none after it.
    const CUresult refused = world().captures.refuse_legacy(stream);
    if (refused != CUDA_SUCCESS) return refused;
    const CUresult waited = wait_for(in, *stream.context, tails(stream));
    if (waited != CUDA_SUCCESS) return waited;
  }
  std::shared_ptr<std::vector<unsigned char>> staged;
  if (from_place == Place::pageable && !capturing) {
    // Staged: the caller may change the buffer as soon as the call returns.
    staged = stage(from.base, from_bytes);
  } else {
    spec.accesses.push_back({from.base, from_bytes, false});
  }
  spec.effect = movement(to, from, extent, std::move(staged));
  const CUresult result = perform(stream, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(spec));
  if (result != CUDA_SUCCESS || capturing) return result;
  in.costs(2000);
  const bool host_to_host = to_place != Place::device && from_place != Place::device;
  const bool host_involved = to_place != Place::device || from_place == Place::pinned ||
                             is_managed(to.base) || is_managed(from.base);
  const bool waits = to_place == Place::pageable || host_to_host ||
                     (towards == Towards::host_waits && host_involved);
  return waits ? wait_for(in, *stream.context, {stream.last}) : CUDA_SUCCESS;
}

CUresult copy_batch(Entry& in, Stream& stream, const std::vector<BatchedCopy>& copies,
                    size_t* failed) {
  // cuda.h: "Must not be legacy NULL stream"; no kind of graph node stands for a batch.
  if (stream.kind == Stream::Kind::legacy) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capture != nullptr) return world().captures.refuse_on(stream);
  for (size_t i = 0; i < copies.size(); ++i) {
    const BatchedCopy& c = copies[i];
    const size_t bytes = span(c.to, c.extent);
    if (bytes != 0 && plausible(c.to.base, bytes) &&
        plausible(c.from.base, span(c.from, c.extent))) {
      continue;
    }
    *failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<GraphExec::Step> steps;
  for (const BatchedCopy& c : copies) steps.push_back({batched(stream, c), {}});
  replay(steps, stream, "batch of copies");
  in.costs(2000);
  return stream.context->sticky;
}

CUresult describe_fill(uintptr_t to, size_t pitch, uint64_t value, size_t value_bytes, size_t width,
                       size_t rows, OpSpec* spec) {
  const size_t row_bytes = width * value_bytes;
  const size_t bytes = (rows - 1) * pitch + row_bytes;
  if (to % value_bytes != 0 || !plausible(to, bytes) || place_of(to) == Place::pageable) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  spec->name = "fill";
  spec->duration_ns = duration(row_bytes * rows);
  spec->accesses.push_back({to, bytes, true});
  spec->effect = [=]() -> CUresult {
    if (!still_mapped(to, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (size_t row = 0; row < rows; ++row) {
      auto* const at = reinterpret_cast<unsigned char*>(to + row * pitch);
      if (value_bytes == 1) {
        std::memset(at, static_cast<int>(value), row_bytes);
      } else {
        for (size_t i = 0; i < width; ++i) std::memcpy(at + i * value_bytes, &value, value_bytes);
      }
    }
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

CUresult fill(Entry& in, Stream& stream, Towards towards, uintptr_t to, size_t pitch,
              uint64_t value, size_t value_bytes, size_t width, size_t rows) {
  if (width == 0 || rows == 0) return CUDA_SUCCESS;
  OpSpec spec;
  CUresult result = describe_fill(to, pitch, value, value_bytes, width, rows, &spec);
  if (result != CUDA_SUCCESS) return result;
  const bool capturing = stream.capture != nullptr;
  result = perform(stream, CU_GRAPH_NODE_TYPE_MEMSET, std::move(spec));
  if (result != CUDA_SUCCESS || capturing) return result;
  in.costs(2000);
  const bool host_sees = place_of(to) == Place::pinned || is_managed(to);
  const bool waits = towards == Towards::host_waits && host_sees;
  return waits ? wait_for(in, *stream.context, {stream.last}) : CUDA_SUCCESS;
}

}  // namespace cupool::sim
