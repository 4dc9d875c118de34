// SPDX-License-Identifier: Apache-2.0
// The three ways of running pending work. Late mode runs exactly the happens-before closure of
// what a wait names and nothing else: whatever a program forgot to order is then still pending.
#include "driver/engine.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "driver/context.h"
#include "driver/foreign.h"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cupool::sim {

namespace {

// What a kernel or a copy reads and writes is the device's doing, on whatever thread it runs here:
// the judge watches it. To the thread sanitizer it would be that thread's, and all of the device's
// memory would have its shadow.
class DeviceAccesses {
 public:
#if defined(__SANITIZE_THREAD__)
  DeviceAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~DeviceAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  DeviceAccesses(const DeviceAccesses&) = delete;
  DeviceAccesses& operator=(const DeviceAccesses&) = delete;
#endif
};

bool ready(const Op& op) {
  for (const OpRef& earlier : op.before) {
    if (!earlier->done()) return false;
  }
  return true;
}

}  // namespace

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

thread_local bool in_host_function = false;

OpRef Engine::submit(Context& context, OpSpec spec, const std::vector<OpRef>& before, Clock clock,
                     Instant at) {
  auto op = std::make_shared<Op>();
  op->id = ++last_id_;
  op->context = &context;
  op->spec = std::move(spec);
  op->clock = std::move(clock);
  join(op->clock, host_clock_);
  op->at = at;
  if (at.timeline != 0) {
    if (op->clock.size() <= at.timeline) op->clock.resize(at.timeline + 1);
    op->clock[at.timeline] = at.number;
  }
  for (const OpRef& earlier : before) {
    if (earlier != nullptr && !earlier->done()) op->before.push_back(earlier);
  }
  begin_foreign_uses(*op);
  pending_.emplace(op->id, op);
  if (op->spec.host || settings_.patience_ms != 0) need_service();
  if (settings_.mode == Mode::early && ready(*op)) {
    op->spec.host ? hand_to_host(op) : run(op);
  } else if (settings_.mode == Mode::timed) {
    schedule(op);
    advance();
  }
  return op;
}

OpRef Engine::submit_aside(Context& context, OpSpec spec, const std::vector<OpRef>& before,
                           Clock clock) {
  run_aside();
  aside_.push_back(submit(context, std::move(spec), before, std::move(clock), Instant{}));
  return aside_.back();
}

// None is behind another. (In timed mode they have a time of their own.)
void Engine::run_aside() {
  std::vector<OpRef> waiting;
  for (const OpRef& op : std::exchange(aside_, {})) {
    if (op->done()) continue;
    if (settings_.mode != Mode::timed && ready(*op)) {
      run(op);
    } else {
      waiting.push_back(op);
    }
  }
  aside_ = std::move(waiting);
}

void Engine::run(const OpRef& op) {
  Context& context = *op->context;
  if (context.sticky == CUDA_SUCCESS && op->spec.effect) {
    const CUresult result = [&] {
      [[maybe_unused]] const DeviceAccesses device;
      return op->spec.effect();
    }();
    if (result != CUDA_SUCCESS) context.sticky = result;
  }
  const bool failed = context.sticky != CUDA_SUCCESS;
  finish(op);
  if (failed) cancel(context);
}

void Engine::finish(const OpRef& op) {
  if (op->done()) return;
  op->state = Op::State::done;
  end_foreign_uses(*op);
  if (op->finish_known) {
    due_.erase({op->finish_ns, op->id});
  } else {
    op->finish_ns = now_ns();
    op->finish_known = true;
  }
  op->before.clear();
  op->spec.effect = nullptr;
  pending_.erase(op->id);
  changed_.notify_all();
}

void Engine::hand_to_host(const OpRef& op) {
  if (op->state != Op::State::pending) return;
  op->state = Op::State::handed_to_host;
  for_host_.push_back(op);
  service_wanted_.notify_one();
}

void Engine::run_ready() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const OpRef op = it->second;
    ++it;
    if (op->done() || !ready(*op)) continue;
    if (op->spec.host) {
      hand_to_host(op);
      continue;
    }
    const uint64_t id = op->id;
    run(op);
    it = pending_.upper_bound(id);  // running may have cancelled the neighbour
  }
}

template <typename Ready>
void Engine::wait_for_host_function(Lock& lock, const Op& op, Ready ready) {
  if (ready()) return;
  deadlocks_.waits(op);
  while (!ready()) {
    const uint64_t limit_ms = settings_.deadlock_ms;
    if (limit_ms == 0) {
      changed_.wait(lock);
    } else if (changed_.wait_for(lock, std::chrono::milliseconds(limit_ms / 8 + 1)) ==
               std::cv_status::timeout) {
      if (!ready()) deadlocks_.look(limit_ms);
    }
  }
  deadlocks_.waits_no_more();
}

bool Engine::force(Lock& lock, const OpRef& wanted, bool waits) {
  std::vector<OpRef> stack{wanted};
  while (!stack.empty()) {
    const OpRef op = stack.back();
    if (op->done()) {
      stack.pop_back();
      continue;
    }
    const size_t depth = stack.size();
    for (const OpRef& earlier : op->before) {
      if (!earlier->done()) stack.push_back(earlier);
    }
    if (stack.size() != depth) continue;
    if (op->spec.host) {
      hand_to_host(op);
      if (!waits) return false;
      wait_for_host_function(lock, *op, [&] { return op->done(); });
    } else {
      run(op);
    }
  }
  return true;
}

void Engine::sleep_for(Lock& lock, const OpRef& op) {
  advance();
  while (!op->done()) {
    if (op->finish_known) {
      const uint64_t until = op->finish_ns;
      lock.unlock();
      const uint64_t now = now_ns();
      if (until > now + 200000) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(until - now - 100000));
      }
      while (now_ns() < until) {
      }
      lock.lock();
    } else {
      wait_for_host_function(lock, *op, [&] { return op->finish_known || op->done(); });
    }
    advance();
  }
}

void Engine::complete(Lock& lock, const std::vector<OpRef>& ops) {
  for (const OpRef& op : ops) {
    if (op == nullptr) continue;
    switch (settings_.mode) {
      case Mode::late:
        force(lock, op, true);
        break;
      case Mode::early:
        run_ready();
        wait_for_host_function(lock, *op, [&] { return op->done(); });
        break;
      case Mode::timed:
        sleep_for(lock, op);
        break;
    }
  }
  observe(ops);
}

bool Engine::hasten(Lock& lock, const std::vector<OpRef>& ops) {
  for (const OpRef& op : ops) {
    if (op != nullptr && !force(lock, op, false)) return false;
  }
  return true;
}

bool Engine::host_knows(const Op& op) const {
  for (unsigned i = 1; i < op.clock.size(); ++i) {
    if (!covers(host_clock_, {i, op.clock[i]})) return false;
  }
  return op.done();
}

bool Engine::finished(const std::vector<OpRef>& ops) {
  run_aside();
  if (settings_.mode == Mode::timed) advance();
  for (const OpRef& op : ops) {
    if (op != nullptr && !op->done()) return false;
  }
  return true;
}

void Engine::observe(const std::vector<OpRef>& ops) {
  for (const OpRef& op : ops) {
    if (op == nullptr) continue;
    // What was ordered before a cancelled operation may be pending still, in another context.
    if (op->cancelled) {
      see(op->at);
    } else {
      join(host_clock_, op->clock);
    }
  }
}

void Engine::see(Instant at) {
  if (host_clock_.size() <= at.timeline) host_clock_.resize(at.timeline + 1);
  if (host_clock_[at.timeline] < at.number) host_clock_[at.timeline] = at.number;
}

Instant Engine::begin_timeline() {
  const auto seen = std::find_if(ended_.begin(), ended_.end(),
                                 [&](Instant last) { return covers(host_clock_, last); });
  if (seen == ended_.end()) return {++timelines_, 0};
  const Instant last = *seen;
  ended_.erase(seen);
  return last;
}

void Engine::cancel(Context& context) {
  std::vector<OpRef> dropped;
  for (auto& entry : pending_) {
    // A host function that is being called finishes by itself.
    if (entry.second->context == &context && entry.second->state == Op::State::pending) {
      dropped.push_back(entry.second);
      entry.second->cancelled = true;
    }
  }
  // Other contexts' work stays behind what the dropped work was behind.
  for (auto& entry : pending_) {
    std::set<OpRef> before;
    for (const OpRef& earlier : entry.second->before) {
      if (earlier->cancelled) {
        before.insert(earlier->before.begin(), earlier->before.end());
      } else {
        before.insert(earlier);
      }
    }
    entry.second->before.assign(before.begin(), before.end());
  }
  for (const OpRef& op : dropped) finish(op);
  for (const Instant at : latest(context)) see(at);
  if (settings_.mode == Mode::timed) schedule_held_back();
}

void Engine::change_mode(Lock& lock, Mode* mode, Mode wanted) {
  while (!pending_.empty()) complete(lock, {pending_.begin()->second});
  *mode = wanted;
}

std::vector<OpRef> Engine::pending_of(const Context& context) const {
  std::vector<OpRef> ops;
  for (const auto& entry : pending_) {
    if (entry.second->context == &context) ops.push_back(entry.second);
  }
  return ops;
}

bool Engine::schedule(const OpRef& op) {
  uint64_t start = now_ns();
  for (const OpRef& earlier : op->before) {
    if (!earlier->finish_known || (earlier->spec.host && !earlier->done())) return false;
    if (earlier->finish_ns > start) start = earlier->finish_ns;
  }
  op->finish_known = true;
  op->finish_ns = start + op->spec.duration_ns;
  due_.insert({op->finish_ns, op->id});
  return true;
}

void Engine::schedule_held_back() {
  for (const auto& entry : pending_) {
    const OpRef& op = entry.second;
    if (op->state == Op::State::pending && !op->finish_known) schedule(op);
  }
}

void Engine::advance() {
  const uint64_t now = now_ns();
  while (!due_.empty() && due_.begin()->first <= now) {
    const uint64_t id = due_.begin()->second;
    due_.erase(due_.begin());
    const auto it = pending_.find(id);
    if (it == pending_.end()) continue;
    const OpRef op = it->second;
    if (op->spec.host) {
      op->finish_known = false;  // it takes as long as the host function takes
      hand_to_host(op);
    } else {
      run(op);
    }
  }
}

void Engine::need_service() {
  if (serving_) {
    service_wanted_.notify_one();
    return;
  }
  serving_ = true;
  std::thread([this] { service(); }).detach();
}

void Engine::watch_for_deadlocks() {
  if (watching_) return;
  watching_ = true;
  std::thread([this] {
    for (bool first = true;; first = false) {
      uint64_t limit_ms = 0;
      {
        const Lock lock(mutex_);
        limit_ms = settings_.deadlock_ms;
        if (first) deadlocks_.watches();
        if (limit_ms != 0) deadlocks_.look(limit_ms);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(limit_ms / 8 + 1));
    }
  }).detach();
}

// Host functions run here, as the driver runs them on a thread of its own: a program may hold a
// lock while it waits that its own callback takes on another thread, and gets what it asked for.
void Engine::service() {
  Lock lock(mutex_);
  for (;;) {
    if (settings_.mode == Mode::timed) advance();
    if (!for_host_.empty()) {
      const OpRef op = for_host_.front();
      for_host_.pop_front();
      const bool healthy = op->context->sticky == CUDA_SUCCESS;
      deadlocks_.runs(*op);
      lock.unlock();
      if (healthy) {
        in_host_function = true;
        op->spec.host();
        in_host_function = false;
      }
      lock.lock();
      deadlocks_.runs_no_more();
      finish(op);
      if (settings_.mode == Mode::early) run_ready();
      if (settings_.mode == Mode::timed) schedule_held_back();
      continue;
    }
    if (settings_.mode == Mode::timed && !due_.empty()) {
      const uint64_t now = now_ns();
      const uint64_t until = due_.begin()->first;
      if (until > now) service_wanted_.wait_for(lock, std::chrono::nanoseconds(until - now));
    } else if (settings_.mode == Mode::late && settings_.patience_ms != 0) {
      const uint64_t newest = last_id_;
      service_wanted_.wait_for(lock, std::chrono::milliseconds(settings_.patience_ms));
      if (newest == last_id_ && for_host_.empty()) run_ready();
    } else {
      service_wanted_.wait(lock);
    }
  }
}

}  // namespace cupool::sim
