// Work on streams. A block's uses are ordered one after the other where the program can, so that
// its contents are known; races of an owner with itself are its own affair, and the judge's as
// well.
#include <algorithm>
#include <chrono>

#include "machine.h"

namespace cupool::property {
namespace {

// Holds a host function up until the program lets it go, but never for long.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  bool open = true;
};
Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}
constexpr std::uint64_t kThreadStride = 1u << 20;  // apart from the numbers of created streams
constexpr auto kLongestHold = std::chrono::milliseconds(5);

void stand_at_gate(void*) {
  Gate& g = gate();
  std::unique_lock<std::mutex> lock(g.mutex);
  g.reached = true;
  g.changed.notify_all();
  g.changed.wait_for(lock, kLongestHold, [&] { return g.open; });
}

}  // namespace

// None if the slot is empty or its stream is another context's.
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

// Before each use of a block. False: leave it. In a capture nothing runs yet, so nothing is
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
  if (block.last.none() || block.last.number == where.number) {
    block.last = where;
    return true;
  }
  const bool reachable = (!block.last.per_thread || block.last.thread == where.thread) &&
                         capture_of(slots, block.last) == nullptr &&
                         (!block.last.legacy || legacy_allowed(where.context));
  CUevent order = nullptr;
  if (reachable && expect(cuEventCreate(&order, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) {
    expect(cuEventRecord(order, block.last.handle), "cuEventRecord");
    expect(cuStreamWaitEvent(where.handle, order, 0), "cuStreamWaitEvent");
    cuEventDestroy(order);
  } else {
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

void Machine::stamp(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (block.address == 0 || !enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  if (where.none() || !use(slots, op.a % kBlocks, where)) return;
  CUdeviceptr at = block.address + block.offset;
  auto value = static_cast<std::uint32_t>(++last_number_);
  void* arguments[] = {&at, &block.words, &value};
  if (!expect(launch(contexts_[block.context].stamp, where, arguments), "a kernel")) return;
  if (capture_of(slots, where) != nullptr) return;
  block.value = value;
  block.known = true;
}

void Machine::check(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (block.address == 0 || !block.known || block.racy || !enter(block.context)) return;
  const StreamRef where = stream(op, op.b, block.context);
  if (where.none() || capture_of(slots, where) != nullptr) return;
  if (!use(slots, op.a % kBlocks, where) || block.racy) return;
  CUdeviceptr at = block.address + block.offset;
  auto mismatches = reinterpret_cast<CUdeviceptr>(contexts_[block.context].mismatches);
  void* arguments[] = {&at, &block.words, &block.value, &mismatches};
  expect(launch(contexts_[block.context].check, where, arguments), "a kernel");
  block.checked = true;
}

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

void Machine::callback(const Operation& op) {
  if (!enter(0)) return;
  const StreamRef where = stream(op, op.b, 0);
  if (where.none() || (where.legacy && !legacy_allowed(0))) return;
  expect(cuLaunchHostFunc(
             where.handle, [](void*) {}, nullptr),
         "cuLaunchHostFunc");
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

// With work pending or not: the work goes on. Mid-capture it ends the capture, so rarely.
void Machine::stream_destroy(const Operation& op) {
  Slots& slots = slots_of(op);
  StreamRef& slot = slots.streams[op.a % kStreams];
  if (op.a < kFirstCreated || slot.none() || !enter(slot.context)) return;
  if (Capture* capture = capture_of(slots, slot)) {
    if (op.c == 0 || capture->members.size() > 1) return;
    *capture = Capture{};
    refused_ = true;
  }
  expect(cuStreamDestroy(slot.handle), "cuStreamDestroy");
  for (Block& block : slots.blocks) {
    if (block.last.number != slot.number) continue;
    block.last = StreamRef{};  // nothing can be ordered after it any more
    block.racy = true;
  }
  slot = StreamRef{};
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

// The context has been synchronised: all its blocks are at rest.
void Machine::settled(Slots& slots, int context) {
  for (Block& block : slots.blocks) {
    if (block.context != context) continue;
    block.last = StreamRef{};
    if (block.racy) block.known = false;
    block.racy = false;
    block.checked = false;
  }
  host_is_safe(slots, context);
}

void Machine::context_synchronize(const Operation& op) {
  const int context = static_cast<int>(op.a % 2);
  if (!enter(context)) return;
  const bool rude = op.c == 1 && !concurrent_;
  // Running freely, another thread's capture could begin at any time.
  if (!rude && (concurrent_ ? captures_ : captures_in(context))) return;
  const CUresult result =
      op.b == 1 ? cuCtxSynchronize_v2(contexts_[context].handle) : cuCtxSynchronize();
  if (!expect(result, "cuCtxSynchronize")) return;
  settled(slots_of(op), context);
}

// A synchronisation of the context that lasts while other threads go on: what they free meanwhile
// it does not cover. Where frees may wait for the callback it would only cost time.
void Machine::slow_synchronize(const Operation& op) {
  if (op.thread == 0 || syncing_thread_ >= 0 || !late_ || free_mode_ != FreeMode::ordered) return;
  if (captures_ || !alive(0)) return;
  Gate& g = gate();
  {
    const std::lock_guard<std::mutex> lock(g.mutex);
    g.reached = false;
    g.open = false;
  }
  syncing_thread_ = static_cast<int>(op.thread);
  crew_.start(op.thread, [this, op] {
    if (!enter(0)) return;
    const StreamRef where = stream(op, op.b, 0);
    if (where.none()) return;
    expect(cuLaunchHostFunc(where.handle, stand_at_gate, nullptr), "cuLaunchHostFunc");
    expect(cuCtxSynchronize(), "cuCtxSynchronize");
  });
  std::unique_lock<std::mutex> lock(g.mutex);
  g.changed.wait_for(lock, kLongestHold, [&] { return g.reached; });
}

void Machine::open_gate() {
  if (syncing_thread_ < 0) return;
  Gate& g = gate();
  {
    const std::lock_guard<std::mutex> lock(g.mutex);
    g.open = true;
  }
  g.changed.notify_all();
  crew_.finish(static_cast<unsigned>(syncing_thread_));
  syncing_thread_ = -1;
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
    if (result != CUDA_ERROR_NOT_READY) expect(result, "cuEventQuery or cuEventSynchronize");
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
