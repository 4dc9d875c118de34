// SPDX-License-Identifier: Apache-2.0
// What a wait for the legacy stream covers (src/engine/reclaim/legacy_stream.h rests on it): a
// failure if it is less than work of all but non-blocking streams.
#pragma once

#include <atomic>
#include <cstring>
#include <thread>

#include "driver_facts.h"

// Work of another thread's per-thread default stream, 20 ms of it. The thread ends when `end` says.
inline std::thread busy_thread(CUcontext context, std::atomic<bool>* began,
                               const std::atomic<bool>* end) {
  return std::thread([=] {
    MUST(cuCtxSetCurrent(context));
    spin_on(CU_STREAM_PER_THREAD, 20'000'000);
    began->store(true);
    while (!end->load()) std::this_thread::yield();
  });
}

// How long a wait for the legacy stream takes while another stream has 20 ms of work.
inline void legacy_waits(CUcontext context) {
  const char* const kinds[] = {
      "blocking",       "blocking with a priority",   "destroyed blocking",
      "own per-thread", "living thread's per-thread", "ended thread's per-thread",
      "non-blocking"};
  for (const char* kind : kinds) {
    const auto is = [kind](const char* part) { return std::strstr(kind, part) != nullptr; };
    MUST(cuCtxSynchronize());
    CUstream busy = nullptr;
    std::atomic<bool> began{false};
    std::atomic<bool> end{!is("living")};
    std::thread other;
    if (is("thread's")) {
      other = busy_thread(context, &began, &end);
      while (!began.load()) std::this_thread::yield();
      if (end.load()) other.join();
    } else if (is("own")) {
      spin_on(CU_STREAM_PER_THREAD, 20'000'000);
    } else {
      const unsigned flags = is("non-blocking") ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
      MUST(is("priority") ? cuStreamCreateWithPriority(&busy, flags, -1)
                          : cuStreamCreate(&busy, flags));
      spin_on(busy, 20'000'000);
      if (is("destroyed")) MUST(cuStreamDestroy(busy));
    }
    const double begin = now_us();
    MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
    const double waited = now_us() - begin;
    end.store(true);
    if (other.joinable()) other.join();
    std::printf("a wait for the legacy stream, 20 ms of work on a stream that is %s: %.0f us\n",
                kind, waited);
    MUST(cuCtxSynchronize());
    if (busy != nullptr && !is("destroyed")) MUST(cuStreamDestroy(busy));
    if (waited < 15'000 && !is("non-blocking")) {
      std::printf("the engine takes that for a wait for the context: it is wrong here\n");
      std::exit(1);
    }
  }
}
