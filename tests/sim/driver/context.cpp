// SPDX-License-Identifier: Apache-2.0
// The implicit order of streams (CUDA Driver API, Stream synchronization behavior): the legacy
// stream waits for all blocking and per-thread default streams and holds them back; non-blocking
// ones never take part.
#include "driver/context.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "driver/capture.h"
#include "driver/green.h"
#include "driver/judge.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

void add(std::vector<OpRef>& ops, const OpRef& op) {
  if (op != nullptr && !op->done()) ops.push_back(op);
}

// What is done and known to the host; until then a synchronisation has it to tell.
void drop_done(std::vector<OpRef>& ops, Clock& clock) {
  auto done = [&](const OpRef& op) {
    if (!op->done() || !covers(world().engine.host_clock(), op->at)) return false;
    join(clock, op->clock);
    return true;
  };
  ops.erase(std::remove_if(ops.begin(), ops.end(), done), ops.end());
}

template <typename Visit>
void each_stream(Context& context, Visit visit) {
  visit(context.legacy);
  for (auto& entry : context.per_thread) visit(*entry.second);
  for (auto& entry : context.streams) visit(*entry.second);
}

void begin(Stream& stream) {
  const Instant at = world().engine.begin_timeline();
  stream.timeline = at.timeline;
  stream.number = stream.begin = at.number;
}

void end(const Stream& stream) {
  world().engine.end_timeline({stream.timeline, stream.number});
}

/// Visits the operations (null ones too) that work of this stream must come after.
template <typename Visit>
void each_predecessor(Stream& stream, Visit visit) {
  Context& context = *stream.context;
  visit(stream.last);
  if (stream.kind == Stream::Kind::legacy) {
    each_stream(context, [&](Stream& other) {
      if (other.blocking()) visit(other.last);
    });
  } else if (stream.blocking()) {
    visit(context.legacy.last);
  }
}

}  // namespace

unsigned long long this_thread() {
  static std::atomic<unsigned long long> threads{0};
  thread_local unsigned long long number = 0;
  if (number == 0) number = ++threads;
  return number;
}

int this_process() {
  return getpid();
}

Clock clock_of(Stream& stream) {
  Context& context = *stream.context;
  Clock clock = world().engine.host_clock();
  each_predecessor(stream, [&](const OpRef& op) {
    if (op != nullptr) join(clock, op->clock);
  });
  drop_done(context.barriers, context.barrier_clock);
  for (const OpRef& op : context.barriers) join(clock, op->clock);
  join(clock, context.barrier_clock);
  if (stream.kind == Stream::Kind::legacy) {
    drop_done(context.blocking_orphans, context.blocking_orphan_clock);
    for (const OpRef& op : context.blocking_orphans) join(clock, op->clock);
    join(clock, context.blocking_orphan_clock);
  }
  return clock;
}

namespace {

/// What has to be done before work that is submitted to the stream now.
struct Order {
  std::vector<OpRef> before;
  Clock clock;
};

Order order_of(Stream& stream) {
  Context& context = *stream.context;
  Order order;
  order.clock = clock_of(stream);
  each_predecessor(stream, [&](const OpRef& op) { add(order.before, op); });
  for (const OpRef& op : context.barriers) add(order.before, op);
  if (stream.kind == Stream::Kind::legacy) {
    for (const OpRef& op : context.blocking_orphans) add(order.before, op);
  }
  return order;
}

OpRef submit_in(Stream& stream, OpSpec spec, Order order) {
  const Instant at{stream.timeline, ++stream.number};
  World& w = world();
  w.judge.before_submit(spec, order.clock, at);
  stream.polls = 0;
  return w.engine.submit(*stream.context, std::move(spec), order.before, std::move(order.clock),
                         at);
}

/// A dependent launch comes behind what its stream has waited for; of an event of the context,
/// behind what that covers in other streams.
void also_behind(Stream& stream, const OpRef& op) {
  Overlap& overlap = stream.overlap;
  if (!overlap.possible || op->at.timeline == stream.timeline) return;
  const auto in_own = [&](const Clock& clock) -> uint64_t {
    return stream.timeline < clock.size() ? clock[stream.timeline] : 0;
  };
  const uint64_t overlapped = in_own(overlap.clock);
  drop_done(overlap.before, overlap.clock);
  Clock clock = op->clock;
  if (op->at.timeline != 0) {
    add(overlap.before, op);
  } else {
    for (const OpRef& earlier : op->before) {
      if (in_own(earlier->clock) <= overlapped) add(overlap.before, earlier);
    }
    if (stream.timeline < clock.size()) clock[stream.timeline] = overlapped;
  }
  join(overlap.clock, clock);
}

}  // namespace

OpRef submit(Stream& stream, OpSpec spec, const std::vector<OpRef>& also_after) {
  Order order = order_of(stream);
  for (const OpRef& op : also_after) {
    if (op == nullptr) continue;
    add(order.before, op);
    join(order.clock, op->clock);
    also_behind(stream, op);
  }
  stream.last = submit_in(stream, std::move(spec), std::move(order));
  return stream.last;
}

OpRef submit_aside(Stream& stream, OpSpec spec) {
  Order order = order_of(stream);
  return world().engine.submit_aside(*stream.context, std::move(spec), order.before,
                                     std::move(order.clock));
}

OpRef submit_kernel(Stream& stream, OpSpec spec) {
  Order order = order_of(stream);
  stream.overlap = {true, order.before, order.clock};
  stream.last = submit_in(stream, std::move(spec), std::move(order));
  return stream.last;
}

OpRef submit_dependent(Stream& stream, OpSpec spec) {
  if (!stream.overlap.possible || stream.last == nullptr)
    return submit_kernel(stream, std::move(spec));
  const OpRef overlapped = std::exchange(stream.last, nullptr);
  Order order = order_of(stream);
  for (const OpRef& op : stream.overlap.before) add(order.before, op);
  join(order.clock, stream.overlap.clock);
  const OpRef launch = submit_in(stream, std::move(spec), std::move(order));
  Order both{{overlapped, launch}, overlapped->clock};
  join(both.clock, launch->clock);
  stream.last = submit_in(stream, OpSpec{"the end of a dependent launch", {}, {}, {}, {}, 0},
                          std::move(both));
  return launch;
}

OpRef submit_after_everything(Context& context, OpSpec spec) {
  const Forgets forgets = world().settings.context_event_forgets;
  std::vector<OpRef> before;
  drop_done(context.barriers, context.barrier_clock);
  Clock clock = context.barrier_clock;
  each_stream(context, [&](Stream& stream) {
    const bool forgotten =
        (forgets == Forgets::non_blocking && stream.kind == Stream::Kind::non_blocking) ||
        (forgets == Forgets::per_thread && stream.kind == Stream::Kind::per_thread);
    if (stream.last != nullptr && !forgotten) before.push_back(stream.last);
  });
  for (const OpRef& op : context.barriers) before.push_back(op);
  if (forgets != Forgets::destroyed) {
    drop_done(context.orphans, context.orphan_clock);
    for (const OpRef& op : context.orphans) before.push_back(op);
    join(clock, context.orphan_clock);
  }
  for (const OpRef& op : before) join(clock, op->clock);
  return world().engine.submit(context, std::move(spec), before, std::move(clock), Instant{});
}

OpRef submit_after_everything(GreenContext& green, OpSpec spec) {
  const std::vector<OpRef> before = tails(green);
  Clock clock;
  for (const OpRef& op : before) join(clock, op->clock);
  return world().engine.submit(*green.primary, std::move(spec), before, std::move(clock),
                               Instant{});
}

std::vector<OpRef> tails(Stream& stream) {
  Context& context = *stream.context;
  std::vector<OpRef> ops;
  if (stream.last != nullptr) ops.push_back(stream.last);
  if (stream.kind == Stream::Kind::legacy) {
    each_predecessor(stream, [&](const OpRef& op) { add(ops, op); });
    for (const OpRef& op : context.blocking_orphans) add(ops, op);
  }
  return ops;
}

std::vector<OpRef> tails(Context& context) {
  std::vector<OpRef> ops;
  each_stream(context, [&](Stream& stream) {
    if (stream.last != nullptr) ops.push_back(stream.last);
  });
  drop_done(context.orphans, context.orphan_clock);
  for (const OpRef& op : context.orphans) ops.push_back(op);
  drop_done(context.barriers, context.barrier_clock);
  for (const OpRef& op : context.barriers) ops.push_back(op);
  return ops;
}

std::vector<Instant> latest(Context& context) {
  std::vector<Instant> instants;
  each_stream(context, [&](Stream& s) { instants.push_back({s.timeline, s.number}); });
  for (const OpRef& op : context.orphans) instants.push_back(op->at);
  return instants;
}

Stream& per_thread_stream(Context& context) {
  std::unique_ptr<Stream>& slot = context.per_thread[this_thread()];
  if (slot == nullptr) {
    slot = std::make_unique<Stream>();
    slot->context = &context;
    slot->kind = Stream::Kind::per_thread;
    begin(*slot);
    slot->id = ++world().last_id;
  }
  return *slot;
}

bool is_of(const Op& op, const Stream& stream) {
  return op.at.timeline == stream.timeline && op.at.number > stream.begin;
}

bool take_stream_memory(Context& context) {
  const size_t bytes = world().settings.stream_bytes;
  if (bytes == 0 || context.streams.size() <= context.stream_memory.size()) return true;
  const uintptr_t address = context.device->take(round_up(bytes, kChunkBytes));
  if (address != 0) context.stream_memory.push_back(address);
  return address != 0;
}

Stream& create_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->context = &context;
  stream->kind =
      (flags & CU_STREAM_NON_BLOCKING) != 0 ? Stream::Kind::non_blocking : Stream::Kind::blocking;
  stream->priority = priority;
  begin(*stream);
  stream->id = ++world().last_id;
  Stream* const raw = stream.get();
  context.streams.emplace(raw, std::move(stream));
  world().streams.insert(raw);
  world().destroyed_streams.erase(raw);
  return *raw;
}

void destroy_stream(Stream& stream) {
  Context& context = *stream.context;
  if (stream.capture != nullptr) world().captures.forget(stream);
  if (stream.last != nullptr) {
    context.orphans.push_back(stream.last);
    if (stream.blocking()) context.blocking_orphans.push_back(stream.last);
    if (stream.green != nullptr) stream.green->orphans.push_back(stream.last);
  }
  end(stream);
  world().streams.erase(&stream);
  world().destroyed_streams.insert(&stream);
  context.streams.erase(&stream);
}

void revive(Context& context) {
  World& w = world();
  context.alive = true;
  context.id = ++w.last_id;  // measured: another one each time
  context.sticky = CUDA_SUCCESS;
  context.legacy = Stream{};
  context.legacy.context = &context;
  context.legacy.kind = Stream::Kind::legacy;
  begin(context.legacy);
  context.legacy.id = ++w.last_id;
}

void empty(Lock& lock, Context& context) {
  World& w = world();
  context.alive = false;
  end_greens_of(context);
  w.captures.abandon(context);
  if (context.sticky == CUDA_SUCCESS) w.engine.complete(lock, tails(context));
  w.engine.cancel(context);
  w.judge.prune();
  each_stream(context, [](Stream& stream) { end(stream); });
  for (auto& entry : context.streams) w.streams.erase(entry.first);
  for (auto& entry : context.events) w.events.erase(entry.first);
  context.streams.clear();
  context.events.clear();
  context.per_thread.clear();
  context.orphans.clear();
  context.blocking_orphans.clear();
  context.barriers.clear();
  context.peers.clear();
  context.limits.clear();
  w.modules.unload_all(context);
  for (auto it = w.arrays.begin(); it != w.arrays.end();) {
    Array* const array = *it;
    it = array->context == &context ? w.arrays.erase(it) : std::next(it);
    if (array->context == &context) delete array;
  }
  for (const uintptr_t chunk : context.graph_memory) context.device->give(chunk, kChunkBytes);
  context.graph_memory.clear();
  const size_t stream_bytes = round_up(w.settings.stream_bytes, kChunkBytes);
  for (const uintptr_t memory : context.stream_memory) context.device->give(memory, stream_bytes);
  context.stream_memory.clear();
  w.addresses.forget_context(context);
  context.heap.release_all(*context.device);
  context.legacy.last = nullptr;
  context.legacy.overlap = {};
}

}  // namespace cupool::sim
