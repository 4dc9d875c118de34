// SPDX-License-Identifier: Apache-2.0
// The host threads of a program. They persist between programs. Thread 0 is the caller, so that a
// program of one thread needs no hand-over.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "program.h"

namespace cupool::property {

class Crew {
 public:
  Crew();
  ~Crew();

  /// Runs `work` on a thread and waits for it.
  void run(unsigned thread, const std::function<void()>& work);
  /// Starts `work` on a thread other than 0. finish() waits for it, if there is any.
  void start(unsigned thread, std::function<void()> work);
  void finish(unsigned thread);
  /// Ends a thread other than 0 and starts one in its place.
  void replace(unsigned thread);

 private:
  struct Member {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> work;
    bool busy = false;
    bool ends = false;
    std::thread thread;
  };
  static void live(Member* member);
  static void end(Member& member);

  std::unique_ptr<Member> members_[kThreads];
};

}  // namespace cupool::property
