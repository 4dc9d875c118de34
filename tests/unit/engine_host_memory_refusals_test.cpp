// SPDX-License-Identifier: Apache-2.0
// Page-locked memory where something is in the way: calls that cupool leaves to the driver, memory
// that came or went by a route that it does not see, contexts that end during a call, and a full
// cache (contract 14).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/reclaim/lane.h"
#include "engine/reclaim/pending_work.h"
#include "engine/reclaim/pinned_memory.h"
#include "engine/serve/host_memory.h"
#include "engine_host_fixture.h"

namespace cupool::engine {
namespace {

TEST_F(HostRefusalTest, WhatIsUncommonIsTheDrivers) {
  for (const unsigned kind : {host_kind(kWriteCombined), kNoHostKind}) {
    allocate_host(kMiB, kind);
  }
  EXPECT_EQ(known(), 0u);
  EXPECT_EQ(host().try_allocate(0, 0), nullptr);
  EXPECT_EQ(host().try_allocate(kLargestHostBlock + 1, 0), nullptr);
  EXPECT_EQ(host().try_allocate(kMiB, kNoHostKind), nullptr);
  allocate_host(kLargestHostBlock + 1);
  EXPECT_EQ(known(), 0u);
  const auto real = [](std::size_t) { return CUDA_SUCCESS; };
  EXPECT_EQ(host().allocate(nullptr, kMiB, 0, real), CUDA_SUCCESS) << "the driver answers null";
  EXPECT_EQ(known(), 0u);
}

TEST_F(HostRefusalTest, WithoutAContextTheDriverServes) {
  pinned.has_context = false;
  ContextRegistry::current_may_change();
  void* const address = allocate_host(kMiB);
  EXPECT_EQ(known(), 0u);
  EXPECT_EQ(host().try_allocate(kMiB, 0), nullptr);
  EXPECT_EQ(host().try_free(address), std::nullopt);
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_ERROR_INVALID_VALUE; }),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostRefusalTest, InAHostFunctionTheDriverAnswers) {  // contract 3
  void* const live = allocate_host(kMiB);
  void* const idle = allocate_host(kMiB);
  EXPECT_EQ(host().try_free(idle), CUDA_SUCCESS);
  in_thread([&] {
    pinned.current = CUDA_ERROR_NOT_PERMITTED;
    EXPECT_EQ(host().try_allocate(kMiB, 0), nullptr);
    EXPECT_EQ(host().try_free(live), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(host().try_free(idle), CUDA_ERROR_NOT_PERMITTED) << "before all else";
    pinned.current = CUDA_SUCCESS;
  });
  EXPECT_EQ(host().try_free(live), CUDA_SUCCESS);
  EXPECT_EQ(host().try_free(live), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostRefusalTest, FreedMemoryIsNotTheDriversToFreeAgain) {  // contract 3
  void* const address = allocate_host(kMiB);
  EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  int asked = 0;
  const auto real = [&] {
    ++asked;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(host().free_by_driver(address, real), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(asked, 0) << "the driver would take it out of the cache";
}

TEST_F(HostRefusalTest, MemoryKnownOutsideGoesBackToTheDriver) {  // contract 8
  void* const address = allocate_host(kMiB);
  host().blocks().mark_shared_outside(reinterpret_cast<CUdeviceptr>(address) + 5);
  host().blocks().mark_shared_outside(0x5000);  // not cupool's
  EXPECT_EQ(host().try_free(address), std::nullopt);
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(known(), 0u);
}

TEST_F(HostRefusalTest, WhatTheDriverDoesNotFreeStaysKnown) {
  void* const address = allocate_host(kMiB);
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_ERROR_UNKNOWN; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(known(), kMiB);
  EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
}

// The program has freed it by a route that cupool does not see, and the driver hands it out again.
TEST_F(HostRefusalTest, MemoryThatCameBackUnseenIsTheNewOwners) {  // I1
  void* const live = allocate_host(kMiB);
  allocate_at(live, 2 * kMiB);
  EXPECT_EQ(known(), 2 * kMiB);
  EXPECT_EQ(host().try_free(live), CUDA_SUCCESS);
  // Now it is cached, and comes back once more, somewhat larger and so of the same class.
  constexpr std::uint64_t kLarger = 2 * kMiB + 8 * 4096;
  allocate_at(live, kLarger);
  EXPECT_EQ(known(), kLarger);
  EXPECT_NE(allocate_host(2 * kMiB), live) << "it is not idle any more";
  EXPECT_EQ(host().try_free(live), CUDA_SUCCESS);
}

TEST_F(HostRefusalTest, AContextThatEndsDuringTheDriversCallsTakesItsMemoryAlong) {  // contract 10
  void* const freed = allocate_host(kMiB);
  void* address = nullptr;
  const auto ends = [&](std::size_t bytes) {
    context_->set_gone();
    address = fresh(bytes);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, ends), CUDA_SUCCESS);
  EXPECT_EQ(known(), kMiB) << "the new memory is not taken for living";
  // The same in a free that the driver refuses.
  start({{"CUPOOL_HOST_MAX_CACHED", "4M"}});
  void* const second = allocate_host(kMiB);
  EXPECT_EQ(host().free_by_driver(second,
                                  [&] {
                                    context_->set_gone();
                                    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
                                  }),
            CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(known(), 0u);
  EXPECT_NE(second, freed);
}

// The record of the block is reused for another context's before what follows from the end.
TEST_F(HostRefusalTest, AFreeBesideTheEndOfItsContextLeavesNoRecordBehind) {  // contract 10
  for (const bool in_a_wait : {true, false}) {
    SCOPED_TRACE(in_a_wait);
    start({{"CUPOOL_FREE_MODE", in_a_wait ? "sync" : "auto"}});
    if (!in_a_wait) allocator_->pass_through().zero_copy_requested(0x5000);
    void* const address = allocate_host(kMiB);
    const Block* const record = host().blocks().find(address);
    ASSERT_NE(record, nullptr);
    gpu.work.store(in_a_wait ? Work::held : Work::none);
    PendingWork::submitted();
    pinned.ends = context_;
    pinned.ends_in_a_wait = in_a_wait;
    const std::optional<CUresult> freed = host().try_free(address);
    EXPECT_EQ(pinned.ends, nullptr) << "it has ended";
    EXPECT_EQ(freed, in_a_wait ? std::nullopt : std::optional(CUDA_SUCCESS));
    Block* const next = new_block();
    ASSERT_EQ(next, record);
    next->address = reinterpret_cast<CUdeviceptr>(address) + kMiB;
    next->context = nullptr;
    EXPECT_EQ(host().blocks().find(address), nullptr);
    host().context_gone(*context_, true);
    EXPECT_EQ(host().blocks().find(address), nullptr);
    EXPECT_EQ(known(), 0u);
    EXPECT_FALSE(PinnedMemory::holds(reinterpret_cast<std::uintptr_t>(address)));
    delete_block(next);
    gpu.work.store(Work::none);
  }
}

// The driver's free of page-locked memory acts in all contexts, and may tell the error of another.
TEST_F(HostRefusalTest, WhereThereAreSeveralContextsAFenceTellsWhoseErrorItIs) {  // I7
  static ContextGate* gate = nullptr;
  static CUresult state = CUDA_SUCCESS;
  gate = &context_->gate();
  driver_->cuCtxRecordEvent = [](CUcontext context, CUevent event) {
    EXPECT_NE(ContextVisit::of_this_thread(*gate), 0u) << "its end is held off";
    return state == CUDA_SUCCESS ? test::fake::record(context, event) : state;
  };
  void* const address = allocate_host(kMiB);
  Lane::context_seen(context_->handle());
  Lane::context_seen(reinterpret_cast<CUcontext>(0x100));
  ASSERT_TRUE(several_contexts());
  const auto free_fails = [&] {
    const auto fail = [] { return CUDA_ERROR_LAUNCH_FAILED; };
    EXPECT_EQ(host().free_by_driver(address, fail), CUDA_ERROR_LAUNCH_FAILED);
  };
  const std::uint64_t fences = gpu.recorded.load();
  Serving::capture_begins();
  free_fails();
  EXPECT_EQ(gpu.recorded.load(), fences) << "contract 9";
  Serving::captures_end(1);
  EXPECT_TRUE(context_->usable()) << "nobody knows";
  free_fails();
  EXPECT_GT(gpu.recorded.load(), fences);
  EXPECT_TRUE(context_->usable()) << "it was another one's";
  state = CUDA_ERROR_LAUNCH_FAILED;
  free_fails();
  EXPECT_FALSE(context_->usable());
  Lane::reset();
}

// Nothing tells whose it is, so nothing may hide it.
TEST_F(HostRefusalTest, WhereNoFenceCanBeRecordedTheErrorIsTheCurrentContexts) {  // I7
  for (const bool has_function : {false, true}) {
    start({});
    driver_->cuCtxRecordEvent = [](CUcontext, CUevent) { return CUDA_ERROR_NOT_SUPPORTED; };
    if (!has_function) {
      no_context_events = true;
      start({});
      no_context_events = false;
    }
    Lane::context_seen(context_->handle());
    Lane::context_seen(reinterpret_cast<CUcontext>(0x100));
    ASSERT_TRUE(several_contexts());
    const auto fail = [] { return CUDA_ERROR_LAUNCH_FAILED; };
    EXPECT_EQ(host().free_by_driver(nullptr, fail), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_FALSE(context_->usable());
    Lane::reset();
  }
}

TEST_F(HostRefusalTest, NothingGoesBackInAContextThatHasFailed) {  // I7
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  context_->set_poisoned();
  Patience patience(0);
  EXPECT_FALSE(host().give_back(patience));
  EXPECT_FALSE(host().give_back_unneeded());
  EXPECT_TRUE(pinned.freed.empty());
}

TEST_F(HostRefusalTest, NothingGoesBackDuringACaptureByDecay) {  // contract 9
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  Serving::capture_begins();
  EXPECT_FALSE(host().give_back_unneeded());
  Serving::captures_end(1);
  EXPECT_TRUE(pinned.freed.empty());
}

TEST_F(HostRefusalTest, ACallThatRanOutOfMemoryIsMadeAgainOnceSomeWentBack) {  // contract 4
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  int calls = 0;
  void* address = nullptr;
  const auto real = [&](std::size_t bytes) {
    if (++calls == 1) return CUDA_ERROR_OUT_OF_MEMORY;
    address = fresh(bytes);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, real), CUDA_SUCCESS);
  EXPECT_EQ(pinned.freed.size(), 1u);
  // Now there is none, but another thread gives some back meanwhile.
  std::atomic<bool> giving{false};
  std::thread other;
  calls = 0;
  const auto refused_beside_another = [&](std::size_t bytes) {
    if (++calls != 1) {
      address = fresh(bytes);
      return CUDA_SUCCESS;
    }
    other = std::thread([&] {
      GivingBack part(allocator_->idle().give_backs());
      part.gave_back = true;
      giving = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    while (!giving) std::this_thread::yield();
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, refused_beside_another), CUDA_SUCCESS);
  other.join();
  EXPECT_EQ(calls, 2);
  // And nobody does.
  calls = 0;
  const auto refused = [&](std::size_t) {
    ++calls;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, refused), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls, 1);
}

TEST_F(HostRefusalTest, AFullCacheGivesOlderBlocksBack) {
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(allocate_host(kMiB));
  for (void* address : all) EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  EXPECT_EQ(pinned.freed.size(), 4u);
  EXPECT_EQ(known(), 4 * kMiB);
  // One that is larger than the cache is the driver's.
  void* const large = allocate_host(5 * kMiB);
  EXPECT_EQ(host().try_free(large), std::nullopt);
  EXPECT_EQ(host().free_by_driver(large, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
}

TEST_F(HostRefusalTest, AFullCacheKeepsItsBlocksIfTheGpuHasFailed) {  // I7
  std::vector<void*> all;
  for (int i = 0; i < 5; ++i) all.push_back(allocate_host(kMiB));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(host().try_free(all[static_cast<std::size_t>(i)]), CUDA_SUCCESS);
  gpu.work.store(Work::held);
  PendingWork::submitted();
  pinned.wait = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(host().try_free(all[4]), std::nullopt) << "the driver answers";
  EXPECT_FALSE(context_->usable());
  EXPECT_TRUE(pinned.freed.empty());
}

TEST_F(HostRefusalTest, AFreeThatCannotWaitLeavesItsBlockToTheDriver) {  // I7
  start({{"CUPOOL_FREE_MODE", "sync"}});
  void* const address = allocate_host(kMiB);
  gpu.work.store(Work::held);
  PendingWork::submitted();
  pinned.wait = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(host().try_free(address), std::nullopt);
  EXPECT_FALSE(context_->usable());
  EXPECT_EQ(host().free_by_driver(address, [] { return CUDA_ERROR_LAUNCH_FAILED; }),
            CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(known(), kMiB) << "it was not freed";
}

// The GPU is busy again and again though no work was seen: something submits it unseen.
TEST_F(HostRefusalTest, UnseenWorkEndsTheTrustThatNothingIsPending) {
  start({{"CUPOOL_FREE_MODE", "ordered"}});
  void* address = allocate_host(kMiB);
  const auto free_again = [&] {
    EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
    gpu.finish();
    address = allocate_host(kMiB);
  };
  PendingWork::Claim().settle();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(PendingWork::is_trusted()) << round;
    gpu.work.store(Work::held);
    for (int i = 0; i < 300 && PendingWork::none(); ++i) free_again();
    gpu.work.store(Work::none);
    if (PendingWork::is_trusted()) PendingWork::Claim().settle();
  }
  EXPECT_FALSE(PendingWork::is_trusted());
}

TEST_F(HostRefusalTest, RetiredMemoryIsBounded) {
  start({{"CUPOOL_HOST_MAX_CACHED", "1G"}, {"CUPOOL_FREE_MODE", "ordered"}});
  std::vector<void*> all;
  for (int i = 0; i < 10; ++i) all.push_back(allocate_host(16 * kMiB));
  gpu.work.store(Work::held);
  PendingWork::submitted();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(host().try_free(all[static_cast<std::size_t>(i)]), CUDA_SUCCESS);
  EXPECT_EQ(count(Counter::host_free_waits_total), 0u);
  EXPECT_EQ(host().try_free(all[4]), CUDA_SUCCESS);
  EXPECT_EQ(count(Counter::host_free_waits_total), 1u) << "beyond 64 MiB";
  // Unless the GPU is seen to be done by then.
  for (int i = 5; i < 9; ++i)
    EXPECT_EQ(host().try_free(all[static_cast<std::size_t>(i)]), CUDA_SUCCESS);
  gpu.work.store(Work::none);
  EXPECT_EQ(host().try_free(all[9]), CUDA_SUCCESS);
  EXPECT_EQ(count(Counter::host_free_waits_total), 1u);
}

TEST_F(HostRefusalTest, AnAllocationInAHostFunctionIsTheDrivers) {  // contract 3
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  in_thread([&] {
    registry_current();
    pinned.current = CUDA_ERROR_NOT_PERMITTED;
    void* address = nullptr;
    const auto refuse = [](std::size_t bytes) {
      EXPECT_EQ(bytes, kMiB) << "not rounded up, as for a block";
      return CUDA_ERROR_NOT_PERMITTED;
    };
    EXPECT_EQ(host().allocate(&address, kMiB, 0, refuse), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(address, nullptr) << "no idle memory";
    pinned.current = CUDA_SUCCESS;
  });
}

// By a call that no hook sees.
TEST_F(HostRefusalTest, WithoutTheContextThatItHadTheDriverServes) {
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  pinned.has_context = false;
  allocate_host(4 * kMiB);
  EXPECT_EQ(known(), kMiB) << "that is not cupool's";
}

// The driver's free would wait for work that nobody knows of.
TEST_F(HostRefusalTest, NothingGoesBackBesideAContextThatIsNotKnown) {
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  Patience patience(0);
  Lane::context_seen(context_->handle());
  Lane::context_seen(reinterpret_cast<CUcontext>(0x770000));
  EXPECT_FALSE(host().give_back(patience));
  Lane::context_ends(nullptr, reinterpret_cast<CUcontext>(0x770000));
  for (std::uintptr_t i = 0; i < 1000; ++i) {
    Lane::context_seen(reinterpret_cast<CUcontext>(0x780000 + 0x1000 * i));
  }
  for (std::uintptr_t i = 0; i < 1000; ++i) {
    Lane::context_ends(nullptr, reinterpret_cast<CUcontext>(0x780000 + 0x1000 * i));
  }
  EXPECT_FALSE(host().give_back(patience)) << "too many were there";
  EXPECT_TRUE(pinned.freed.empty());
  Lane::reset();
  EXPECT_TRUE(host().give_back(patience));
}

TEST_F(HostRefusalTest, AFreeThatTheDriverRefusesOnceIsMadeAgain) {
  void* const address = allocate_host(kMiB);
  EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  pinned.frees_refused = 1;
  Patience patience(0);
  EXPECT_TRUE(host().give_back(patience));
  EXPECT_EQ(pinned.freed, std::vector<void*>{address});
}

TEST_F(HostRefusalTest, MemoryBeyondWhatWasAskedForIsNobodys) {  // contract 6
  const auto address = reinterpret_cast<CUdeviceptr>(allocate_host(kMiB + 5));
  EXPECT_FALSE(host().blocks().find_around(address + kMiB + 4).nobodys);
  const FoundMemory found = host().blocks().find_around(address + kMiB + 4);
  ASSERT_TRUE(found.served());
  EXPECT_EQ(found.context(), context_->handle());
  EXPECT_EQ(found.requested(), kMiB + 5);
  EXPECT_TRUE(host().blocks().find_around(address + kMiB + 5).nobodys);
}

TEST_F(HostRefusalTest, AFullCacheKeepsItsBlocksDuringACapture) {  // contract 9
  std::vector<void*> all;
  for (int i = 0; i < 5; ++i) all.push_back(allocate_host(kMiB));
  void* const last = all.back();
  all.pop_back();
  for (void* address : all) EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  Serving::capture_begins();
  EXPECT_EQ(host().try_free(last), std::nullopt);
  Serving::captures_end(1);
  EXPECT_TRUE(pinned.freed.empty());
  EXPECT_EQ(host().try_free(last), CUDA_SUCCESS);
}

// The next free of the driver's would wait for work that came since.
TEST_F(HostRefusalTest, AFullCacheGivesNothingMoreBackOnceTheGpuIsBusy) {
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(allocate_host(kMiB));
  void* const large = allocate_host(3 * kMiB);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(host().try_free(all[i]), CUDA_SUCCESS);
  for (std::uint32_t i = 0; i <= HostCache::kDecaySteps; ++i) host().end_decay_step();
  for (std::size_t i = 2; i < 4; ++i) EXPECT_EQ(host().try_free(all[i]), CUDA_SUCCESS);
  pinned.busy_after_a_free = true;
  EXPECT_EQ(host().try_free(large), std::nullopt) << "the driver's";
  EXPECT_EQ(pinned.freed.size(), 1u);
}

TEST_F(HostRefusalTest, WorkThatComesDuringALookIsNoUnseenWork) {
  start({{"CUPOOL_FREE_MODE", "ordered"}});
  pinned.busy_at_a_query = true;
  gpu.work.store(Work::held);
  for (int i = 0; i < 1000; ++i) {
    PendingWork::Claim().settle();
    void* const address = allocate_host(kMiB);
    EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
    gpu.finish();
  }
  pinned.busy_at_a_query = false;
  PendingWork::Claim().settle();
  EXPECT_TRUE(PendingWork::is_trusted());
}

// In visits of a millisecond each.
TEST_F(HostRefusalTest, IdleMemoryWaitsForTheGpuAsLongAsThereIsPatience) {
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  gpu.work.store(Work::held);
  pinned.idle_at_ns = util::now_ns() + 10'000'000;
  PendingWork::submitted();
  Patience patience(4'000'000'000);
  EXPECT_TRUE(host().give_back(patience));
  EXPECT_EQ(pinned.freed.size(), 1u);
  EXPECT_TRUE(PendingWork::none()) << "the wait has seen it, and nothing came since";
}

// What it waited for is complete, but there is more, which may wait for this thread in turn.
TEST_F(HostRefusalTest, IdleMemoryStaysIfTheGpuIsBusyAgainWithWhatMayWaitForTheHost) {
  struct Case {
    const char* what;
    const char* mode;
    std::function<void()> begin;
    bool begins_again = false;  // host work, while the first is waited for
  };
  const Case cases[] = {
      {"kernels may read host memory", "auto",
       [&] { allocator_->pass_through().zero_copy_requested(0x5000); }},
      {"a callback", "auto", [] {}, true},
      {"such work is not noted", "ordered", [] {}},
      {"nothing is known", "auto", [] { PendingWork::distrust(); }},
      {"another device", "auto",
       [&] {
         Lane::context_seen(context_->handle());
         Lane::context_seen(reinterpret_cast<CUcontext>(0x770000), Lane::Seen::held);
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    SetUp();
    start({{"CUPOOL_HOST_MAX_CACHED", "4M"}, {"CUPOOL_FREE_MODE", each.mode}});
    EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
    gpu.takes_ns.store(2'000'000);
    gpu.work.store(Work::timed);
    each.begin();
    static HostWork* with_host = nullptr;
    with_host = each.begins_again ? &context_->host_work() : nullptr;
    driver_->cuEventQuery = [](CUevent event) {
      if (with_host != nullptr) with_host->submitted_unseen();
      PendingWork::submitted();
      return test::fake::query(event);
    };
    PendingWork::submitted();
    Patience patience(20'000'000);
    EXPECT_FALSE(host().give_back(patience));
    EXPECT_TRUE(patience.over());
    EXPECT_TRUE(pinned.freed.empty());
    gpu.work.store(Work::none);
    Lane::reset();
  }
}

// Nothing counts as complete beside a call under way, and a launch may compile its kernel for
// seconds.
TEST_F(HostRefusalTest, IdleMemoryGoesBackBesideACallThatTakesLong) {  // contract 4
  start({{"CUPOOL_HOST_MAX_CACHED", "4M"}, {"CUPOOL_FREE_MODE", "ordered"}});
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  gpu.takes_ns.store(2'000'000);
  gpu.work.store(Work::timed);
  const CallsUnderWay::Call of_another_thread;
  PendingWork::submitted();
  Patience patience(1'000'000'000);
  EXPECT_TRUE(host().give_back(patience));
  EXPECT_EQ(pinned.freed.size(), 1u);
  EXPECT_FALSE(PendingWork::none());
}

// As once a second context allocates: what came since the look would be waited for.
TEST_F(HostRefusalTest, IdleMemoryStaysIfTheGpuGetsWorkAndNobodyMayWait) {
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  PendingWork::submitted();
  driver_->cuEventQuery = [](CUevent event) {
    const CUresult result = test::fake::query(event);
    gpu.work.store(Work::held);
    PendingWork::submitted();
    return result;
  };
  Patience only_look(0);
  EXPECT_FALSE(host().give_back(only_look));
  EXPECT_TRUE(pinned.freed.empty());
  EXPECT_EQ(gpu.work.load(), Work::held) << "it was idle at the first look";
}

// Kernels end by themselves: the driver's free waits for those that came meanwhile.
TEST_F(HostRefusalTest, IdleMemoryGoesBackThoughOtherThreadsKeepTheGpuBusy) {  // contract 4
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(allocate_host(kMiB));
  for (void* address : all) EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  gpu.takes_ns.store(1'000'000);
  gpu.work.store(Work::timed);
  pinned.busy_at_a_query = true;
  PendingWork::submitted();
  Patience only_look(0);
  EXPECT_FALSE(host().give_back(only_look)) << "without a wait";
  EXPECT_TRUE(pinned.freed.empty());
  Patience patience(4'000'000'000);
  patience.wants(kMiB);
  EXPECT_TRUE(host().give_back(patience));
  EXPECT_EQ(pinned.freed.size(), 1u) << "one after the other, each behind a wait";
  // And a call is repeated until it succeeds.
  void* address = nullptr;
  int calls = 0;
  const auto real = [&](std::size_t bytes) {
    ++calls;
    if (pinned.freed.size() < 4) return CUDA_ERROR_OUT_OF_MEMORY;
    address = fresh(bytes);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, real), CUDA_SUCCESS);
  EXPECT_EQ(calls, 3) << "two blocks make up for it, and then the last one";
  // Nothing is left to give back: refused at once.
  const auto refused = [&](std::size_t) {
    ++calls;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  EXPECT_EQ(host().allocate(&address, 2 * kMiB, 0, refused), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls, 4);
}

TEST_F(HostRefusalTest, AContextThatWasNeverCurrentHasNoWork) {  // contract 4
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  Lane::context_seen(context_->handle());
  Lane::context_seen(reinterpret_cast<CUcontext>(0x770000), Lane::Seen::held);
  ASSERT_TRUE(several_contexts());
  Patience patience(0);
  EXPECT_TRUE(host().give_back(patience));
  EXPECT_EQ(pinned.freed.size(), 1u);
}

// The driver may have room for what was asked for, but not for whole pages.
TEST_F(HostRefusalTest, ARequestThatFitsIsNotRefusedForItsRounding) {  // contract 4
  constexpr std::uint64_t kBytes = kMiB + 5;
  void* address = nullptr;
  std::vector<std::size_t> asked;
  const auto real = [&](std::size_t bytes) {
    asked.push_back(bytes);
    if (bytes > kBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    address = fresh(bytes);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(host().allocate(&address, kBytes, 0, real), CUDA_SUCCESS);
  EXPECT_EQ(asked, (std::vector<std::size_t>{kMiB + 4096, kBytes}));
  EXPECT_EQ(known(), 0u) << "no block: what lies behind it is nobody's to hand out";
  EXPECT_EQ(host().try_free(address), std::nullopt);
}

TEST_F(HostRefusalTest, NothingGoesBackIfTheWaitForTheGpuFails) {  // I7
  EXPECT_EQ(host().try_free(allocate_host(kMiB)), CUDA_SUCCESS);
  gpu.work.store(Work::held);
  PendingWork::submitted();
  driver_->cuEventQuery = [](CUevent) { return CUDA_ERROR_LAUNCH_FAILED; };
  Patience patience(0);
  EXPECT_FALSE(host().give_back(patience));
  EXPECT_TRUE(pinned.freed.empty());
  EXPECT_FALSE(context_->usable());
}

// Kernels may still have it: it stays on record.
TEST_F(HostRefusalTest, AZeroCopyBlockWhoseDevicePointerIsNotToldIsFreed) {
  void* const address = allocate_host(kMiB);
  const auto device = reinterpret_cast<CUdeviceptr>(address);
  allocator_->pass_through().zero_copy_requested(device);
  ASSERT_TRUE(allocator_->pass_through().is_zero_copy(device));
  EXPECT_EQ(host().try_free(address), CUDA_SUCCESS);
  EXPECT_TRUE(allocator_->pass_through().is_zero_copy(device));
}

// A thread without a context: under unified addressing the pointers are the same.
TEST_F(HostRefusalTest, ZeroCopyMemoryEndsWithItsRegistration) {  // contract 2
  constexpr CUdeviceptr kDevice = 0x55000;
  PassThrough& pass_through = allocator_->pass_through();
  const auto unregisters = [&](CUresult device_pointer, CUresult answer) {
    pinned.device_pointer = device_pointer;
    return pass_through.unregister_host(reinterpret_cast<void*>(kDevice), [&] { return answer; });
  };
  for (const CUresult known : {CUDA_SUCCESS, CUDA_ERROR_INVALID_CONTEXT}) {
    pass_through.zero_copy_requested(kDevice);
    EXPECT_EQ(unregisters(CUDA_ERROR_UNKNOWN, CUDA_SUCCESS), CUDA_SUCCESS);
    EXPECT_TRUE(pass_through.is_zero_copy(kDevice)) << "it is not known which";
    EXPECT_EQ(unregisters(known, CUDA_ERROR_UNKNOWN), CUDA_ERROR_UNKNOWN);
    EXPECT_TRUE(pass_through.is_zero_copy(kDevice)) << "it is still registered";
    EXPECT_EQ(unregisters(known, CUDA_SUCCESS), CUDA_SUCCESS);
    EXPECT_FALSE(pass_through.is_zero_copy(kDevice));
  }
}

}  // namespace
}  // namespace cupool::engine
