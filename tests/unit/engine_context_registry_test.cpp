// SPDX-License-Identifier: Apache-2.0
// The registry of contexts alone: which context a thread is in and when the driver is asked for it,
// a handle that comes again, and what is said of all contexts and devices at once.
#include "engine/context/context_registry.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "engine_context_registry_fixture.h"

namespace cupool::engine {
namespace {

TEST_F(ContextRegistryTest, AHandleIsOneContext) {
  const CUcontext first = new_handle();
  const CUcontext second = new_handle(kOtherDevice);
  Context* const of_first = enter(first);
  ASSERT_NE(of_first, nullptr);
  EXPECT_EQ(of_first->handle(), first);
  EXPECT_EQ(of_first->device().ordinal(), kDevice);
  Context* const of_second = enter(second);
  ASSERT_NE(of_second, nullptr);
  EXPECT_NE(of_first, of_second);
  EXPECT_EQ(of_second->device().ordinal(), kOtherDevice);
  EXPECT_EQ(enter(first), of_first);
  EXPECT_EQ(registry_.find(first), of_first);
  EXPECT_EQ(registry_.find(second), of_second);
}

TEST_F(ContextRegistryTest, AContextIsMadeWhereItIsCurrentAndNotByLookingForIt) {
  const CUcontext handle = new_handle();
  EXPECT_EQ(registry_.find(handle), nullptr);
  EXPECT_EQ(registry_.find(nullptr), nullptr);
  EXPECT_EQ(registry_.current(), nullptr);
  EXPECT_TRUE(registry_.devices().all().empty());
  Context* const made = enter(handle);
  EXPECT_EQ(registry_.find(handle), made);
  EXPECT_EQ(enter(nullptr), nullptr) << "the thread has left it";
}

TEST_F(ContextRegistryTest, TheDriverIsAskedWhenTheHooksHaveSeenAChange) {  // I5
  EXPECT_EQ(registry_.known_current(), nullptr);
  Context* const context = enter_new();
  EXPECT_EQ(registry_.known_current(), context);
  EXPECT_EQ(asked_by_current(), 0u);
  ContextRegistry::current_may_change();
  EXPECT_EQ(registry_.known_current(), nullptr);
  EXPECT_EQ(asked_by_current(), 1u);
  EXPECT_EQ(asked_by_current(), 0u);
  registry_.forget_found();
  EXPECT_EQ(registry_.known_current(), nullptr) << "a context is about to end";
  EXPECT_EQ(asked_by_current(), 1u);
  EXPECT_EQ(registry_.known_current(), context);
}

TEST_F(ContextRegistryTest, EachThreadIsInItsOwnContext) {
  Context* const mine = enter_new();
  const CUcontext others = new_handle();
  std::thread([&] {
    EXPECT_EQ(registry_.known_current(), nullptr);
    EXPECT_EQ(registry_.current(), nullptr);
    Context* const its = enter(others);
    EXPECT_NE(its, mine);
    EXPECT_EQ(registry_.known_current(), its);
  }).join();
  EXPECT_EQ(registry_.known_current(), mine);
}

TEST_F(ContextRegistryTest, OneDisagreementWithTheDriverEndsTheTrustInTheHooks) {  // I5
  Context* const first = enter_new();
  Context* const second = enter_new();
  EXPECT_EQ(registry_.ask_for_current(*second), second);
  EXPECT_EQ(asked_by_current(), 0u) << "they agree";
  current = first->handle();  // by a way that the hooks do not see
  EXPECT_EQ(registry_.current(), second);
  EXPECT_EQ(registry_.ask_for_current(*second), first);
  current = second->handle();
  EXPECT_EQ(registry_.current(), second) << "asked each time";
  EXPECT_EQ(registry_.known_current(), nullptr);
}

TEST_F(ContextRegistryTest, ForCertainIsWhatTheDriverSays) {
  Context* const first = enter_new();
  Context* const second = enter_new();
  EXPECT_EQ(registry_.current_for_certain(), second);
  current = first->handle();
  EXPECT_EQ(registry_.current_for_certain(), first);
  set_current(nullptr);
  EXPECT_EQ(registry_.current_for_certain(), nullptr);
}

TEST_F(ContextRegistryTest, WhereTheDriverDoesNotSayTheHooksHold) {
  Context* const context = enter_new();
  current_result = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(registry_.ask_for_current(*context), context);
  EXPECT_EQ(registry_.current(), context);
  ContextRegistry::current_may_change();
  EXPECT_EQ(registry_.current(), nullptr) << "nothing is known any more";
  current_result = CUDA_SUCCESS;
  EXPECT_EQ(registry_.current(), context);
  EXPECT_EQ(asked_by_current(), 0u) << "no answer is no disagreement";
}

TEST_F(ContextRegistryTest, ADriverThatMayShutDownIsAskedEachTime) {  // I6
  Context* const context = enter_new();
  EXPECT_EQ(asked_by_current(), 0u);
  registry_.distrust_hooks();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(asked_by_current(), 1u);
  EXPECT_EQ(registry_.current(), context);
  EXPECT_EQ(registry_.known_current(), nullptr);
}

TEST_F(ContextRegistryTest, ADeviceThatTheDriverDoesNotTellIsAskedForAgain) {
  const CUcontext handle = new_handle();
  refused_device = 2;
  EXPECT_EQ(enter(handle), nullptr) << "it cannot be served";
  EXPECT_EQ(registry_.find(handle), nullptr);
  refused_device = 1;
  EXPECT_NE(enter(handle), nullptr) << "a refusal may pass";
}

TEST_F(ContextRegistryTest, DevicesBeyondTheLastAreNotServed) {
  EXPECT_EQ(enter_new(stats::kMaxDevices), nullptr);
  EXPECT_EQ(enter_new(-1), nullptr);
  EXPECT_TRUE(registry_.devices().all().empty());
  EXPECT_NE(enter_new(stats::kMaxDevices - 1), nullptr);
}

TEST_F(ContextRegistryTest, ADeviceIsThereOnceForAllOfItsContexts) {
  Context* const first = enter_new();
  Context* const second = enter_new();
  Context* const other = enter_new(kOtherDevice);
  EXPECT_EQ(&first->device(), &second->device());
  EXPECT_NE(&first->device(), &other->device());
  EXPECT_EQ(registry_.devices().all().size(), 2u);
  EXPECT_EQ(ordinals_of_devices(), (std::set<int>{kDevice, kOtherDevice}));
  end(*other);
  EXPECT_EQ(ordinals_of_devices(), (std::set<int>{kDevice, kOtherDevice}))
      << "it has served: its figures are reported";
}

TEST_F(ContextRegistryTest, TheContextsOfADeviceAreThoseThatAreNotGone) {
  Context* const first = enter_new();
  Context* const second = enter_new();
  Context* const other = enter_new(kOtherDevice);
  EXPECT_EQ(set_of(registry_.contexts_of(kDevice)), (std::set<Context*>{first, second}));
  EXPECT_EQ(set_of(registry_.contexts_of(kOtherDevice)), std::set<Context*>{other});
  EXPECT_TRUE(registry_.contexts_of(kDevice + 1).empty());
  end(*first);
  EXPECT_EQ(set_of(registry_.contexts_of(kDevice)), std::set<Context*>{second});
  second->set_poisoned();
  EXPECT_EQ(set_of(registry_.contexts_of(kDevice)), std::set<Context*>{second}) << "it is there";
}

TEST_F(ContextRegistryTest, AllAreGoneWhenTheLastIs) {
  EXPECT_TRUE(all_gone()) << "none was seen";
  Context* const first = enter_new();
  Context* const second = enter_new(kOtherDevice);
  EXPECT_FALSE(all_gone());
  end(*first);
  EXPECT_FALSE(all_gone());
  end(*second);
  EXPECT_TRUE(all_gone());
  enter(first->handle());
  EXPECT_FALSE(all_gone());
}

// A primary context after a reset.
TEST_F(ContextRegistryTest, AHandleThatComesAgainIsServedByTheSameObject) {  // contract 10
  Context* const context = enter_new();
  const std::uint64_t incarnation = context->incarnation();
  end(*context);
  EXPECT_EQ(registry_.find(context->handle()), context);
  EXPECT_FALSE(context->usable());
  EXPECT_EQ(registry_.known_current(), nullptr) << "its thread looks again";
  EXPECT_EQ(registry_.current(), context);
  EXPECT_TRUE(context->usable());
  EXPECT_EQ(context->incarnation(), incarnation + 1);
  EXPECT_EQ(enter(context->handle()), context);
  EXPECT_EQ(context->incarnation(), incarnation + 1);
}

TEST_F(ContextRegistryTest, AHandleThatComesAgainOnAnotherDeviceIsAnotherContext) {
  Context* const old_context = enter_new();
  end(*old_context);
  ordinals[old_context->handle()] = kOtherDevice;
  Context* const context = enter(old_context->handle());
  ASSERT_NE(context, nullptr);
  EXPECT_NE(context, old_context);
  EXPECT_EQ(context->device().ordinal(), kOtherDevice);
  EXPECT_TRUE(old_context->gone());
  EXPECT_EQ(registry_.find(context->handle()), context);
}

// A driver that gives its handles to contexts of both devices in turn: no record more for each.
TEST_F(ContextRegistryTest, AHandleHasOneContextForEachDevice) {  // contract 10
  Context* const first = enter_new();
  const CUcontext handle = first->handle();
  end(*first);
  ordinals[handle] = kOtherDevice;
  Context* const other = enter(handle);
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t life = first->incarnation();
    end(*other);
    ordinals[handle] = kDevice;
    EXPECT_EQ(enter(handle), first);
    EXPECT_TRUE(first->usable());
    EXPECT_EQ(first->incarnation(), life);
    EXPECT_TRUE(other->gone()) << "it has not come again";
    EXPECT_EQ(set_of(registry_.all()), std::set<Context*>{first});
    end(*first);
    ordinals[handle] = kOtherDevice;
    EXPECT_EQ(enter(handle), other);
    EXPECT_TRUE(other->usable());
    EXPECT_TRUE(first->gone());
  }
}

// By a way that the hooks do not see: the record has blocks of memory that is gone.
TEST_F(ContextRegistryTest, AContextWhoseEndNobodySawDoesNotComeAgain) {  // contract 10
  Context* const unseen = enter_new();
  const CUcontext handle = unseen->handle();
  ordinals[handle] = kOtherDevice;
  registry_.forget_found();  // yet another context has ended
  Context* const other = enter(handle);
  ASSERT_NE(other, unseen);
  end(*other);
  ordinals[handle] = kDevice;
  Context* const next = enter(handle);
  EXPECT_NE(next, unseen);
  EXPECT_EQ(next->device().ordinal(), kDevice);
}

// A thread has not left it: its record stays as it is, for nobody.
TEST_F(ContextRegistryTest, WhoeverHasADroppedContextsHandleIsAnotherOne) {
  Context* const dropped = enter_new();
  dropped->set_gone_untouched();
  registry_.drop(*dropped);
  registry_.forget_found();
  EXPECT_EQ(registry_.find(dropped->handle()), nullptr);
  Context* const next = enter(dropped->handle());
  EXPECT_NE(next, dropped);
  EXPECT_TRUE(dropped->gone());
  registry_.drop(*dropped);
  EXPECT_EQ(registry_.find(next->handle()), next) << "the handle is another one's";
}

// Nobody waits at a gate who is inside another one (I8).
TEST_F(ContextRegistryTest, AContextThatIsEndingIsNobodysForWhoVisitsAnother) {
  Context* const ending = enter_new();
  Context* const visited = enter_new();
  registry_.forget_found();
  const ContextEnd end(*ending);
  std::thread([&] {
    const ContextVisit visit(*visited);
    EXPECT_EQ(enter(ending->handle()), nullptr);
    EXPECT_EQ(enter(visited->handle()), visited);
  }).join();
}

TEST_F(ContextRegistryTest, MemoryOfCupoolsOwnIsInternal) {
  Context* const context = enter_new();
  const CUdeviceptr chunk = test::gpu.next_address;
  context->small_chunk().open();
  const CUdeviceptr barrier = test::gpu.next_address;
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams_.begin_capture(*context, stream, [] { return CUDA_SUCCESS; });
  context->ordering().captures().end(
      stream, [] { return CUDA_SUCCESS; }, [] { return false; });
  const CUdeviceptr orphan = test::gpu.next_address;
  context->device().orphans().add(orphan);
  enter_new(kOtherDevice);  // from wherever it is asked
  for (const CUdeviceptr internal : {chunk, barrier, orphan}) {
    EXPECT_TRUE(registry_.is_internal(internal));
    EXPECT_FALSE(registry_.is_internal(internal + kAlignment));
  }
  EXPECT_FALSE(registry_.is_internal(0));
  context->set_gone_untouched();
  EXPECT_FALSE(registry_.is_internal(chunk)) << "its addresses may be anybody's";
  EXPECT_FALSE(registry_.is_internal(barrier));
  EXPECT_TRUE(registry_.is_internal(orphan)) << "pools outlive contexts";
}

TEST_F(ContextRegistryTest, WhatOutlivedAContextGoesBackInTheNextOneOfItsDevice) {
  Context* const context = enter_new();
  CUdeviceptr address = 0;
  ASSERT_EQ(context->device().backend().allocate(*context, kAlignment, &address), CUDA_SUCCESS);
  end(*context);
  context->device().orphans().add(address);
  enter_new(kOtherDevice);
  EXPECT_TRUE(registry_.is_internal(address));
  EXPECT_NE(test::pools->pool_of(address), nullptr);
  enter_new();
  EXPECT_FALSE(registry_.is_internal(address));
  EXPECT_EQ(test::pools->pool_of(address), nullptr);
}

TEST_F(ContextRegistryTest, PlainMemoryIsForAllDevicesTheLaterOnesToo) {
  Context* const before = enter_new();
  EXPECT_EQ(before->device().backend().source(), BlockSource::pool);
  registry_.devices().use_plain_memory();
  EXPECT_EQ(before->device().backend().source(), BlockSource::malloc);
  EXPECT_EQ(enter_new(kOtherDevice)->device().backend().source(), BlockSource::malloc);
}

TEST_F(ContextRegistryTest, PoolsOfLaterDevicesAreLeftToAThread) {
  Device& before = enter_new()->device();
  EXPECT_TRUE(before.pool_start().is_done());
  registry_.devices().start_pools_later(true);
  EXPECT_TRUE(before.pool_start().is_done()) << "it is in use already";
  Device& after = enter_new(kOtherDevice)->device();
  EXPECT_FALSE(after.pool_start().is_done());
  registry_.devices().start_pools_later(false);
  EXPECT_TRUE(after.pool_start().is_done());
  EXPECT_TRUE(enter_new(kOtherDevice + 1)->device().pool_start().is_done());
}

TEST_F(ContextRegistryTest, ADeviceThatComesIntoUseIsAdmittedToThePoolsOfOthers) {  // contract 7
  const int peer = unused_ordinal();
  if (peer < 0) GTEST_SKIP() << "every device has come into use before";
  Context* const context = enter_new();
  CUdeviceptr address = 0;
  ASSERT_EQ(context->device().backend().allocate(*context, kAlignment, &address), CUDA_SUCCESS);
  ASSERT_EQ(test::pools->all().size(), 1u);
  EXPECT_EQ(test::pools->all().front().admitted.count(peer), 0u);
  registry_.devices().device_in_use(peer);
  EXPECT_EQ(test::pools->all().front().admitted.count(peer), 1u);
  EXPECT_EQ(test::pools->all().front().admitted.count(kDevice), 0u) << "its own device always may";
}

// The first call of each thread of a program, all at once.
TEST_F(ContextRegistryTest, ThreadsThatMeetAContextTogetherHaveOne) {
  constexpr int kThreads = 2;
  constexpr int kContexts = 1000;
  std::vector<CUcontext> handles;
  for (int i = 0; i < kContexts; ++i) handles.push_back(new_handle(i % 2 == 0 ? 7 : 8));
  std::array<std::vector<Context*>, kThreads> found;
  std::atomic<int> arrived{0};
  std::vector<std::thread> threads;
  for (std::vector<Context*>& its : found) {
    threads.emplace_back([&] {
      int due = 0;
      for (const CUcontext handle : handles) {
        due += kThreads;
        ++arrived;
        for (unsigned looks = 1; arrived < due; ++looks) {
          if (looks % 1024 == 0) std::this_thread::yield();
        }
        set_current(handle);
        its.push_back(registry_.current());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Context*>& its : found) {
    EXPECT_EQ(its, found.front());
    for (const Context* context : its) keep(context);
  }
  EXPECT_EQ(set_of(found.front()).size(), std::size_t{kContexts});
  EXPECT_EQ(registry_.devices().all().size(), 2u);
}

}  // namespace
}  // namespace cupool::engine
