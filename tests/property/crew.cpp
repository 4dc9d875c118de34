// SPDX-License-Identifier: Apache-2.0
// Hand-over between threads by one flag each: it provides sequence, not speed.
#include "crew.h"

#include <utility>

namespace cupool::property {

Crew::Crew() {
  for (unsigned i = 1; i < kThreads; ++i) replace(i);
}

Crew::~Crew() {
  for (auto& member : members_) {
    if (member != nullptr) end(*member);
  }
}

void Crew::run(unsigned thread, const std::function<void()>& work) {
  if (thread == 0) return work();
  start(thread, work);
  finish(thread);
}

void Crew::start(unsigned thread, std::function<void()> work) {
  finish(thread);
  Member& member = *members_[thread];
  {
    const std::lock_guard<std::mutex> lock(member.mutex);
    member.work = std::move(work);
    member.busy = true;
  }
  member.changed.notify_all();
}

void Crew::finish(unsigned thread) {
  if (thread == 0) return;
  Member& member = *members_[thread];
  std::unique_lock<std::mutex> lock(member.mutex);
  member.changed.wait(lock, [&] { return !member.busy; });
}

void Crew::replace(unsigned thread) {
  if (members_[thread] != nullptr) end(*members_[thread]);
  members_[thread] = std::make_unique<Member>();
  Member* const member = members_[thread].get();
  member->thread = std::thread([member] { live(member); });
}

void Crew::live(Member* member) {
  std::unique_lock<std::mutex> lock(member->mutex);
  for (;;) {
    member->changed.wait(lock, [&] { return member->busy || member->ends; });
    if (!member->busy) return;
    lock.unlock();
    member->work();
    lock.lock();
    member->busy = false;
    member->changed.notify_all();
  }
}

void Crew::end(Member& member) {
  {
    const std::lock_guard<std::mutex> lock(member.mutex);
    member.ends = true;
  }
  member.changed.notify_all();
  member.thread.join();
}

}  // namespace cupool::property
