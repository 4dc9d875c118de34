// SPDX-License-Identifier: Apache-2.0
// The proofs. A thread in the driver waits for the thread that runs host functions, whatever it
// asked for. That thread never goes on if it wants a lock whose owner is such a waiter, or if every
// thread of the process sleeps without a timeout until another one wakes it. Nor do the owners of
// locks go on that want each other's.
#include "driver/deadlock.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "driver/engine.h"

namespace cupool::sim {

thread_local Asked asked;

namespace {

pid_t this_task() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

std::string task_file(pid_t task, const char* name) {
  return "/proc/self/task/" + std::to_string(task) + "/" + name;
}

/// A thread that sleeps until another one wakes it.
struct Sleep {
  uintptr_t address = 0;
  unsigned operation = 0;
  uint32_t expected = 0;
  std::string picture;  ///< changes whenever the thread has been awake in between
};

/// False for a thread that runs, sleeps with a timeout or waits for something else.
bool asleep(pid_t task, Sleep* sleep) {
  std::string line;
  std::ifstream call(task_file(task, "syscall"));
  if (!std::getline(call, line)) return false;
  uint64_t number = 0;
  uint64_t timeout = 0;
  uint64_t expected = 0;
  uint64_t address = 0;
  uint64_t operation = 0;
  if (std::sscanf(line.c_str(), "%" SCNu64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &number,
                  &address, &operation, &expected, &timeout) != 5) {
    return false;  // "running"
  }
  const uint64_t command = operation & FUTEX_CMD_MASK;
  if (number != SYS_futex || timeout != 0 ||
      (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET)) {
    return false;
  }
  sleep->address = address;
  sleep->operation = static_cast<unsigned>(operation);
  sleep->expected = static_cast<uint32_t>(expected);
  sleep->picture = std::to_string(task) + ": " + line;
  std::ifstream status(task_file(task, "status"));
  while (std::getline(status, line)) {
    if (line.compare(0, 9, "voluntary") == 0) sleep->picture += " " + line;
  }
  return true;
}

/// Whether it is a thread of the tested library that sleeps until its time or a message comes. It
/// wakes no thread of the program.
bool only_watches(pid_t task) {
  std::string name;
  std::ifstream comm(task_file(task, "comm"));
  if (!std::getline(comm, name) || (name != "cupool-idle" && name != "cupool-channel")) {
    return false;
  }
  std::string line;
  std::ifstream call(task_file(task, "syscall"));
  uint64_t number = 0;
  uint64_t timeout = 0;
  if (!std::getline(call, line) ||
      std::sscanf(line.c_str(), "%" SCNu64 " %*x %*x %*x %" SCNx64, &number, &timeout) != 2) {
    return false;  // "running"
  }
#ifdef SYS_poll  // aarch64 has ppoll alone
  if (number == SYS_poll) return true;
#endif
  return number == SYS_ppoll || (number == SYS_futex && timeout != 0);
}

/// The owner of the mutex that a thread sleeps for; 0 if it is no mutex. glibc: a contended mutex
/// is a futex of value 2, with its owner's thread id eight bytes further on. Read through the
/// kernel, because the memory is the program's and may go at any time.
pid_t owner_of_lock(const Sleep& sleep) {
  if ((sleep.operation & FUTEX_CMD_MASK) != FUTEX_WAIT || sleep.expected != 2) return 0;
  int32_t words[3] = {0, 0, 0};
  const iovec here{words, sizeof words};
  const iovec there{reinterpret_cast<void*>(sleep.address), sizeof words};
  const ssize_t read = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  return read == static_cast<ssize_t>(sizeof words) && words[0] == 2 ? words[2] : 0;
}

std::set<pid_t> tasks() {
  std::set<pid_t> all;
  DIR* const folder = opendir("/proc/self/task");
  if (folder == nullptr) return all;
  while (const dirent* entry = readdir(folder)) {
    const int task = std::atoi(entry->d_name);
    if (task != 0) all.insert(task);
  }
  closedir(folder);
  return all;
}

/// Calls of the program under test that have not returned. Not under the world's lock: it is not
/// taken for every call.
struct ProgramCalls {
  std::mutex mutex;
  std::map<pid_t, const char*> of;
};

ProgramCalls& program_calls() {
  static auto* const calls = new ProgramCalls;
  return *calls;
}

std::string name_of(pid_t task) {
  ProgramCalls& calls = program_calls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const auto call = calls.of.find(task);
  std::string name = "thread " + std::to_string(task);
  return call == calls.of.end() ? name : name + " (its program called " + call->second + ")";
}

std::string wish_of(pid_t task, const Sleep& sleep, pid_t owner) {
  std::ostringstream text;
  text << "\n  " << name_of(task);
  if (owner == 0) {
    text << " sleeps at " << reinterpret_cast<void*>(sleep.address) << " until a thread wakes it";
  } else {
    text << " wants the lock " << reinterpret_cast<void*>(sleep.address) << " of thread " << owner;
  }
  return text.str();
}

std::string text_of(pid_t task, const Asked& asked) {
  std::ostringstream text;
  text << "thread " << task << " in " << asked.call << " waits for ";
  if (asked.what == nullptr) {
    text << "its context";
  } else {
    text << asked.what << " " << asked.handle;
  }
  return text.str();
}

}  // namespace

void note_program_call(const char* symbol) {
  ProgramCalls& calls = program_calls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  if (symbol == nullptr) {
    calls.of.erase(this_task());
  } else {
    calls.of[this_task()] = symbol;
  }
}

void Deadlocks::watches() {
  watcher_ = this_task();
}

void Deadlocks::waits(const Op& op) {
  waiters_[this_task()] = Waiter{++waits_, asked, &op};
}

void Deadlocks::waits_no_more() {
  waiters_.erase(this_task());
}

void Deadlocks::runs(const Op& op) {
  running_ = &op;
  runner_ = this_task();
  ++runs_;
  running_since_ns_ = now_ns();
}

// The host function wants a lock; its owner wants another one, and so on, and the last owner waits
// in the driver, or is one of those before.
bool Deadlocks::held_by_a_waiter(std::string* proof, std::string* picture) const {
  std::set<pid_t> seen;
  std::ostringstream text;
  for (pid_t task = runner_;;) {
    const auto waiter = waiters_.find(task);
    if (waiter != waiters_.end()) {
      *picture += " waiter " + std::to_string(waiter->second.number);
      *proof = text.str();
      return !waiter->second.op->done();
    }
    if (!seen.insert(task).second) return *proof = text.str(), true;
    Sleep sleep;
    if (!asleep(task, &sleep)) return false;
    const pid_t owner = owner_of_lock(sleep);
    if (owner == 0) return false;
    *picture += sleep.picture;
    text << "\n  thread " << task << (task == runner_ ? " (the host function)" : "")
         << " wants the lock " << reinterpret_cast<void*>(sleep.address) << " of thread " << owner;
    task = owner;
  }
}

// Somebody wants a lock, its owner wants another one, and so on, and the last owner is one of those
// before. Those that wait in the driver are held_by_a_waiter()'s.
bool Deadlocks::circle_of_locks(std::string* proof, std::string* picture) const {
  std::set<pid_t> judged;
  for (const pid_t first : tasks()) {
    std::vector<pid_t> path;
    std::map<pid_t, Sleep> sleeps;
    std::map<pid_t, pid_t> owners;
    pid_t task = first;
    while (owners.count(task) == 0 && judged.insert(task).second && waiters_.count(task) == 0) {
      Sleep sleep;
      if (!asleep(task, &sleep)) break;
      const pid_t owner = owner_of_lock(sleep);
      if (owner == 0) break;
      path.push_back(task);
      sleeps[task] = sleep;
      owners[task] = owner;
      task = owner;
    }
    if (owners.count(task) == 0) continue;
    std::ostringstream text;
    bool within = false;
    for (const pid_t each : path) {
      within = within || each == task;
      if (!within) continue;
      text << wish_of(each, sleeps[each], owners[each]);
      *picture += sleeps[each].picture;
    }
    return *proof = text.str(), true;
  }
  return false;
}

// Who sleeps on a futex without a timeout is woken by another thread of the process, or by another
// process if the futex is shared, as it is for those who wait for a thread's end.
bool Deadlocks::nobody_is_left(std::string* proof, std::string* picture) const {
  const std::set<pid_t> all = tasks();
  std::ostringstream text;
  for (const pid_t task : all) {
    if (task == watcher_) continue;
    const auto waiter = waiters_.find(task);
    if (waiter != waiters_.end()) {
      if (waiter->second.op->done()) return false;
      *picture += " waiter " + std::to_string(waiter->second.number);
      continue;
    }
    if (only_watches(task)) continue;
    Sleep sleep;
    if (!asleep(task, &sleep)) return false;
    const bool here = (sleep.operation & FUTEX_PRIVATE_FLAG) != 0 ||
                      all.count(static_cast<pid_t>(sleep.expected)) != 0;
    if (!here || sleep.address == reinterpret_cast<uintptr_t>(&world_lock_)) return false;
    *picture += sleep.picture;
    text << wish_of(task, sleep, owner_of_lock(sleep));
  }
  if (running_ == nullptr) {
    *proof = "\n  every thread of the process sleeps until one of them wakes another" + text.str();
    return true;
  }
  *proof = "\n  the host function's thread " + std::to_string(runner_) +
           " and every other thread of the process sleep until one of them wakes another" +
           text.str();
  return all.count(runner_) != 0;
}

bool Deadlocks::prove(std::string* proof, std::string* picture) const {
  const std::string run = "run " + std::to_string(runs_);
  *picture = run + " lock ";
  if (running_ != nullptr && held_by_a_waiter(proof, picture)) return true;
  *picture = "circle ";
  if (watcher_ != 0 && circle_of_locks(proof, picture)) return true;
  if (running_ == nullptr && watcher_ == 0) return false;
  *picture = run + " all ";
  return nobody_is_left(proof, picture);
}

void Deadlocks::look(uint64_t limit_ms) {
  std::string proof;
  std::string picture;
  if (!prove(&proof, &picture)) {
    last_picture_.clear();
    return;
  }
  const uint64_t now = now_ns();
  if (picture != last_picture_) {
    last_picture_ = picture;
    same_since_ns_ = now;
  } else if (now - same_since_ns_ >= limit_ms * 1000000) {
    report(proof);
  }
}

void Deadlocks::report(const std::string& proof) const {
  std::ostringstream text;
  text << "cupool sim judge: everyone waits for everyone: ";
  if (running_ == nullptr) {
    text << "no thread of a circle can go on";
  } else {
    text << running_->spec.name << " " << running_->spec.host_code << " (stream timeline "
         << running_->at.timeline << ", runs for " << (now_ns() - running_since_ns_) / 1000000
         << " ms) cannot return";
  }
  text << proof;
  for (const auto& entry : waiters_) {
    text << "\n  " << text_of(entry.first, entry.second.asked) << " (" << entry.second.op->spec.name
         << " of stream timeline " << entry.second.op->at.timeline << ")";
  }
  std::fprintf(stderr, "%s\n", text.str().c_str());
  std::abort();
}

}  // namespace cupool::sim
