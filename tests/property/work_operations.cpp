// SPDX-License-Identifier: Apache-2.0
// Work on streams. The program orders the uses of a block where it can, so that the contents are
// known. Races of an owner with itself are allowed, also by the judge.
#include <algorithm>

#include "machine.h"

namespace cupool::property {
namespace {

constexpr std::uint64_t kThreadStride = 1u << 20;  // above the numbers of created streams

}  // namespace

// None if the slot is empty or its stream belongs to another context.
StreamRef Machine::stream(const Operation& op, unsigned slot, int context) {
  const auto index = static_cast<unsigned>(context);
  StreamRef ref;
  slot %= kStreams;
  if (slot >= kFirstCreated) {
    ref = slots_of(op).streams[slot];
    if (ref.context != context) return StreamRef{};
  } else {
    ref.context = context;
    ref.legacy = slot == 0;
    ref.per_thread = slot == 1;
    ref.handle = ref.legacy ? nullptr : CU_STREAM_PER_THREAD;
    ref.number = ref.legacy ? 1 + index : thread_numbers_[op.thread] * kThreadStride + index;
  }
  ref.thread = thread_numbers_[op.thread];
  return ref;
}

// Called before each use of a block. False: skip it. In a capture nothing runs yet, so nothing is
// ordered.
bool Machine::use(Slots& slots, unsigned slot, const StreamRef& where) {
  Block& block = slots.blocks[slot];
  if (block.words == 0) return false;
  if (where.legacy && !legacy_allowed(where.context)) return false;
  // A pending check must not meet a write that is not ordered after it.
  if (block.racy && block.checked) return false;
  if (Capture* capture = capture_of(slots, where)) {
    capture->blocks.emplace_back(slot, block.owner);
    return true;
  }
  block.users |= 1u << where.context;
  const bool by_same_thread = block.last.thread == where.thread;
  const bool freed_behind = block.freed_behind && (by_same_thread || block.left_behind);
  block.freed_behind = block.left_behind = false;
  if (block.last.none() || block.last.number == where.number || freed_behind) {
    block.last = where;
    return true;
  }
  const bool reachable = (!block.last.per_thread || block.last.thread == where.thread) &&
                         capture_of(slots, block.last) == nullptr &&
                         (!block.last.legacy || legacy_allowed(block.last.context));
  CUevent order = nullptr;
  if (reachable && enter(block.last.context) &&
      expect(cuEventCreate(&order, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) {
    expect(cuEventRecord(order, block.last.handle), "cuEventRecord");
    enter(where.context);
    expect(cuStreamWaitEvent(where.handle, order, 0), "cuStreamWaitEvent");
    cuEventDestroy(order);
  } else {
    enter(where.context);
    block.racy = true;
    if (block.checked) return false;
  }
  block.last = where;
  return true;
}

void Machine::use_buffer(Slots& slots, unsigned slot, const StreamRef& where) {
  Buffer& buffer = slots.buffers[slot];
  if (Capture* capture = capture_of(slots, where)) {
    capture->buffers.emplace_back(slot, buffer.host);
  } else {
    buffer.pending.push_back(where.number);
  }
}

CUresult Machine::launch(CUfunction function, const StreamRef& where, void** arguments) {
  return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, where.handle, arguments, nullptr);
}

// It may begin before the kernel before it has ended.
CUresult Machine::launch_early(CUfunction function, const StreamRef& where, void** arguments) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig shape = {};
  shape.gridDimX = shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = 32;
  shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = where.handle;
  shape.attrs = &attribute;
  shape.numAttrs = 1;
  return cuLaunchKernelEx(&shape, function, arguments, nullptr);
}

// Of a block that nothing has used since it was allocated, the kernel before may go on meanwhile:
// it has nothing to do with it.
void Machine::stamp(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (block.address == 0 || !enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  const bool early = op.c != 0 && block.last.none() && !block.known && !block.shared;
  if (where.none() || !use(slots, op.a % kBlocks, where)) return;
  CUdeviceptr at = block.address + block.offset;
  auto value = static_cast<std::uint32_t>(++last_number_);
  void* arguments[] = {&at, &block.words, &value};
  CUfunction const kernel = contexts_[block.context].stamp;
  const CUresult result =
      early ? launch_early(kernel, where, arguments) : launch(kernel, where, arguments);
  if (!expect(result, "a kernel")) return;
  if (capture_of(slots, where) != nullptr) return;
  block.value = value;
  block.known = true;
}

void Machine::check(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (block.address == 0 || !block.known || block.racy || is_lent(slots, block)) return;
  if (!enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (!use(slots, op.a % kBlocks, where) || block.racy) return;
  CUdeviceptr at = block.address + block.offset;
  auto mismatches = reinterpret_cast<CUdeviceptr>(contexts_[block.context].mismatches);
  void* arguments[] = {&at, &block.words, &block.value, &mismatches};
  expect(launch(contexts_[block.context].check, where, arguments), "a kernel");
  block.checked = true;
}

void Machine::kernel_on_buffer(const Operation& op) {
  Slots& slots = slots_of(op);
  Buffer& buffer = slots.buffers[op.a % kBuffers];
  if (buffer.device == 0 || !enter(buffer.context)) return;
  const StreamRef where = stream(op, op.b, buffer.context);
  if (where.none() || (where.legacy && !legacy_allowed(buffer.context))) return;
  use_buffer(slots, op.a % kBuffers, where);
  std::uint64_t words = 64;
  std::uint32_t value = 7;
  void* arguments[] = {&buffer.device, &words, &value};
  expect(launch(contexts_[buffer.context].stamp, where, arguments), "a kernel");
}

// As on Linux: the host address of page-locked memory serves as its device address, and nobody has
// asked for that one.
void Machine::kernel_on_address(const Operation& op) {
  Slots& slots = slots_of(op);
  Buffer& buffer = slots.buffers[op.a % kBuffers];
  if (buffer.host == nullptr || !buffer.is_host_address() || !enter(buffer.context)) return;
  const StreamRef where = stream(op, op.b, buffer.context);
  if (where.none() || (where.legacy && !legacy_allowed(buffer.context))) return;
  use_buffer(slots, op.a % kBuffers, where);
  auto at = reinterpret_cast<CUdeviceptr>(buffer.host);
  std::uint64_t words = 64;
  std::uint32_t value = 7;
  void* arguments[] = {&at, &words, &value};
  expect(launch(contexts_[buffer.context].stamp, where, arguments), "a kernel");
}

void Machine::stream_create(const Operation& op) {
  const int context = static_cast<int>(op.c);
  StreamRef& slot = slots_of(op).streams[op.a % kStreams];
  if (op.a < kFirstCreated || !slot.none() || !enter(context)) return;
  StreamRef created;
  const unsigned flags = op.b == 1 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  if (!expect(cuStreamCreate(&created.handle, flags), "cuStreamCreate")) return;
  created.number = ++last_number_;
  created.context = context;
  created.non_blocking = op.b == 1;
  slot = created;
}

// With or without pending work, which continues. During a capture it ends the capture, so rarely.
void Machine::stream_destroy(const Operation& op) {
  Slots& slots = slots_of(op);
  StreamRef& slot = slots.streams[op.a % kStreams];
  if (op.a < kFirstCreated || slot.none() || !enter(slot.context)) return;
  if (Capture* capture = capture_of(slots, slot)) {
    if (op.c == 0 || capture->members.size() > 1) return;
    refused_ = true;
    if (!expect(cuStreamDestroy(slot.handle), "cuStreamDestroy")) return;
    lose_capture(slots, static_cast<unsigned>(capture - slots.captures));
  } else {
    expect(cuStreamDestroy(slot.handle), "cuStreamDestroy");
  }
  lose_stream(slots, slot);
}

// Nothing can be ordered after a stream that has been destroyed.
void Machine::lose_stream(Slots& slots, StreamRef& stream) {
  for (Block& block : slots.blocks) {
    if (block.last.number != stream.number) continue;
    block.last = StreamRef{};
    block.racy = true;
  }
  stream = StreamRef{};
}

void Machine::stream_synchronize(const Operation& op) {
  Slots& slots = slots_of(op);
  const StreamRef where = stream(op, op.a, slots.streams[op.a % kStreams].context);
  if (where.none() || !enter(where.context)) return;
  const bool rude = op.c == 1 && !concurrent_;
  if (!rude && (capture_of(slots, where) != nullptr || !unsafe_allowed(op.thread))) return;
  if (!rude && where.legacy && !legacy_allowed(where.context)) return;
  if (!expect(cuStreamSynchronize(where.handle), "cuStreamSynchronize")) return;
  for (Buffer& buffer : slots.buffers) {
    auto& pending = buffer.pending;
    pending.erase(std::remove(pending.begin(), pending.end(), where.number), pending.end());
  }
}

void Machine::context_synchronize(const Operation& op) {
  const int context = static_cast<int>(op.a % kContexts);
  if (!enter(context)) return;
  const bool rude = op.c == 1 && !concurrent_;
  if (!rude && !may_synchronize(context)) return;
  const CUresult result =
      op.b == 1 ? cuCtxSynchronize_v2(contexts_[context].handle) : cuCtxSynchronize();
  if (!expect(result, "cuCtxSynchronize")) return;
  settled(slots_of(op), context);
}

void Machine::event(const Operation& op) {
  Slots& slots = slots_of(op);
  Event& event = slots.events[op.a % kEvents];
  if (!enter(event.handle == nullptr ? 0 : event.context)) return;
  if (event.handle == nullptr) {
    if (!expect(cuEventCreate(&event.handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) return;
  }
  if (op.kind == Kind::event_query || op.kind == Kind::event_synchronize) {
    if ((op.c == 0 || concurrent_) && !unsafe_allowed(op.thread)) return;
    const CUresult result = op.kind == Kind::event_query ? cuEventQuery(event.handle)
                                                         : cuEventSynchronize(event.handle);
    expect(result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result,
           "cuEventQuery or cuEventSynchronize");
    return;
  }
  const StreamRef where = stream(op, op.b, event.context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (where.legacy && !legacy_allowed(event.context)) return;
  expect(op.kind == Kind::event_record ? cuEventRecord(event.handle, where.handle)
                                       : cuStreamWaitEvent(where.handle, event.handle, 0),
         "cuEventRecord or cuStreamWaitEvent");
}

}  // namespace cupool::property
