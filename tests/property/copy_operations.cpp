// SPDX-License-Identifier: Apache-2.0
// Copies: within a context, to and from the host, between contexts and devices, and in batches.
#include <algorithm>
#include <vector>

#include "machine.h"

namespace cupool::property {

void Machine::copy_blocks(const Operation& op) {
  Slots& slots = slots_of(op);
  const unsigned from_slot = op.c % kBlocks;
  Block& to = slots.blocks[op.a % kBlocks];
  Block& from = slots.blocks[from_slot];
  if (to.address == 0 || from.address == 0 || &to == &from) return;
  if (to.context != from.context || from.words == 0 || !enter(to.context)) return;
  const StreamRef where = stream(op, op.b, to.context);
  if (where.none() || !use(slots, op.a % kBlocks, where) || !use(slots, from_slot, where)) return;
  std::uint64_t words = std::min(to.words, from.words);
  CUdeviceptr target = to.address + to.offset;
  CUdeviceptr source = from.address + from.offset;
  void* arguments[] = {&target, &source, &words};
  expect(launch(contexts_[to.context].copy, where, arguments), "a kernel");
  to.known = false;
}

void Machine::copy_buffer(const Operation& op, bool to_device) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  Buffer& buffer = slots.buffers[op.c % kBuffers];
  if (block.address == 0 || buffer.host == nullptr || buffer.context != block.context) return;
  if (!enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  if (where.none() || !use(slots, op.a % kBlocks, where)) return;
  use_buffer(slots, op.c % kBuffers, where);
  const CUdeviceptr at = block.address + block.offset;
  const std::size_t bytes = std::min<std::uint64_t>(block.words * 4, 4096);
  if (to_device) {
    expect(cuMemcpyHtoDAsync(at, buffer.host, bytes, where.handle), "cuMemcpyHtoDAsync");
    block.known = false;
  } else {
    expect(cuMemcpyDtoHAsync(buffer.host, at, bytes, where.handle), "cuMemcpyDtoHAsync");
  }
}

// Calls for device memory whose target is page-locked memory.
void Machine::fill_buffer(const Operation& op) {
  Slots& slots = slots_of(op);
  const Block& block = slots.blocks[0];
  Buffer& buffer = slots.buffers[op.a % kBuffers];
  if (buffer.host == nullptr || !buffer.is_host_address() || !enter(buffer.context)) return;
  const StreamRef where = stream(op, op.b, buffer.context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (where.legacy && !legacy_allowed(buffer.context)) return;
  const auto at = reinterpret_cast<CUdeviceptr>(buffer.host);
  if (op.c == 0) {
    use_buffer(slots, op.a % kBuffers, where);
    expect(cuMemsetD8Async(at, 1, Buffer::kBytes, where.handle), "cuMemsetD8Async");
    return;
  }
  if (block.address == 0 || block.context != buffer.context || !use(slots, 0, where)) return;
  use_buffer(slots, op.a % kBuffers, where);
  const std::size_t bytes = std::min<std::uint64_t>(block.words * 4, Buffer::kBytes);
  expect(cuMemcpyDtoDAsync(at, block.address + block.offset, bytes, where.handle),
         "cuMemcpyDtoDAsync");
}

// A kernel of one context on memory of another.
void Machine::stamp_abroad(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  const int context = static_cast<int>(op.c);
  if (block.address == 0 || block.context == context || !enter(context)) return;
  if (!reaches(context, block) || !may_synchronize(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (!use(slots, op.a % kBlocks, where)) return;
  CUdeviceptr at = block.address + block.offset;
  auto value = static_cast<std::uint32_t>(++last_number_);
  void* arguments[] = {&at, &block.words, &value};
  expect(launch(contexts_[context].stamp, where, arguments), "a kernel");
  block.value = value;
  block.known = !traps_;  // else the kernel may be dropped, while the block stays live
}

// Contract 7: between devices, with or without peer access.
void Machine::copy_abroad(const Operation& op) {
  Slots& slots = slots_of(op);
  const unsigned from_slot = op.c % kBlocks;
  Block& to = slots.blocks[op.a % kBlocks];
  Block& from = slots.blocks[from_slot];
  if (to.address == 0 || from.address == 0 || to.context == from.context) return;
  const int context =
      slots_of(op).streams[op.b % kStreams].context == from.context ? from.context : to.context;
  if (to.words == 0 || from.words == 0 || !may_synchronize(context) || !enter(context)) return;
  const StreamRef where = stream(op, op.b, context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (!use(slots, op.a % kBlocks, where) || !use(slots, from_slot, where)) return;
  const std::size_t bytes = std::min(to.words, from.words) * 4;
  const CUdeviceptr target = to.address + to.offset;
  const CUdeviceptr source = from.address + from.offset;
  const CUresult result =
      op.a % 2 == 0 ? cuMemcpyPeerAsync(target, contexts_[to.context].handle, source,
                                        contexts_[from.context].handle, bytes, where.handle)
                    : cuMemcpyDtoDAsync(target, source, bytes, where.handle);
  expect(result, "cuMemcpyPeerAsync or cuMemcpyDtoDAsync");
  to.known = !traps_ && from.known && !from.racy && !to.racy && to.words <= from.words &&
             !is_lent(slots, from);
  to.value = from.value;
  from.checked |= to.known;
}

// From the first half of the buffer to block a, from block a + 1 to a + 2, and from a + 3 to the
// other half; missing blocks are skipped. Only unused memory may be read out of stream order.
void Machine::batch_copy(const Operation& op) {
  Slots& slots = slots_of(op);
  Buffer& buffer = slots.buffers[op.c % kBuffers];
  if (buffer.host == nullptr || !enter(buffer.context)) return;
  const StreamRef where = stream(op, op.b, buffer.context);
  if (where.none() || where.legacy || capture_of(slots, where) != nullptr) return;
  std::vector<CUdeviceptr> targets;
  std::vector<CUdeviceptr> sources;
  std::vector<std::size_t> sizes;
  std::vector<CUmemcpyAttributes> attributes;
  std::vector<std::size_t> firsts;
  unsigned orders = static_cast<unsigned>(op.size);
  const auto add = [&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool at_rest) {
    CUmemcpyAttributes attribute{};
    attribute.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    if (at_rest && orders % 3 == 1) {
      attribute.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    } else if (at_rest && orders % 3 == 2) {
      attribute.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    }
    orders /= 3;
    firsts.push_back(targets.size());
    targets.push_back(to);
    sources.push_back(from);
    sizes.push_back(bytes);
    attributes.push_back(attribute);
    return attribute.srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  };
  const auto usable = [&](unsigned slot) {
    const Block& block = slots.blocks[slot];
    return block.address != 0 && block.context == buffer.context && use(slots, slot, where);
  };
  const auto at_rest = [&](unsigned slot) {
    return slots.blocks[slot].users == 0 && !slots.blocks[slot].racy;
  };
  const auto at = [&](unsigned slot) {
    return slots.blocks[slot].address + slots.blocks[slot].offset;
  };
  const auto bytes_of = [&](unsigned slot) {
    return std::min<std::size_t>(slots.blocks[slot].words * 4, Buffer::kBytes / 2);
  };
  const auto host = reinterpret_cast<CUdeviceptr>(buffer.host);
  const unsigned slot[] = {op.a % kBlocks, (op.a + 1) % kBlocks, (op.a + 2) % kBlocks,
                           (op.a + 3) % kBlocks};
  bool buffer_used = false;
  const bool buffer_at_rest = buffer.pending.empty() && buffer.type != Buffer::managed;
  const bool rests[] = {at_rest(slot[1]), at_rest(slot[3])};
  if (usable(slot[0])) {
    buffer_used = add(at(slot[0]), host, bytes_of(slot[0]), buffer_at_rest);
    slots.blocks[slot[0]].known = false;
  }
  if (usable(slot[1]) && usable(slot[2])) {
    add(at(slot[2]), at(slot[1]), std::min(bytes_of(slot[1]), bytes_of(slot[2])), rests[0]);
    slots.blocks[slot[2]].known = false;
  }
  if (usable(slot[3])) {
    add(host + Buffer::kBytes / 2, at(slot[3]), bytes_of(slot[3]), rests[1]);
    buffer_used = true;
  }
  if (targets.empty()) return;
  if (buffer_used) use_buffer(slots, op.c % kBuffers, where);
  expect(cuMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(),
                            attributes.data(), firsts.data(), attributes.size(), where.handle),
         "cuMemcpyBatchAsync");
}

}  // namespace cupool::property
