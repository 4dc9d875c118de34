// SPDX-License-Identifier: Apache-2.0
// The registry of contexts alone: which context a thread is in and when the driver is asked for it,
// a handle that comes again, and what is said of all contexts and devices at once.
#include "engine/context/stream_contexts.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "engine/reclaim/device_use.h"
#include "engine_fake_pools.h"

namespace cupool::engine {
namespace {

class ContextRegistryTest : public testing::Test {
 protected:
  // The driver's view, by thread and by handle. What tests write is written by one thread alone.
  static inline thread_local CUcontext current = nullptr;
  static inline thread_local std::vector<CUcontext> below;  // on the thread's stack of contexts
  static inline std::map<CUcontext, int> ordinals;
  static inline std::map<CUstream, CUcontext> streams;
  static inline std::atomic<unsigned> asked{0};
  static inline CUresult current_result = CUDA_SUCCESS;
  static inline std::atomic<unsigned> refused_device{0};  // so often cuCtxGetDevice says no

  static CUresult get_current(CUcontext* context) {
    ++asked;
    *context = current;
    return current_result;
  }
  static CUresult push_current(CUcontext context) {
    below.push_back(current);
    current = context;
    return CUDA_SUCCESS;
  }
  static CUresult pop_current(CUcontext* context) {
    *context = current;
    current = below.back();
    below.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult get_device(CUdevice* device) {
    if (refused_device != 0) {
      --refused_device;
      return CUDA_ERROR_UNKNOWN;
    }
    *device = ordinals.at(current);
    return CUDA_SUCCESS;
  }
  static CUresult get_context_of_stream(CUstream stream, CUcontext* context) {
    const auto found = streams.find(stream);
    if (found == streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    *context = found->second;
    return CUDA_SUCCESS;
  }

  ContextRegistryTest() {
    driver_.cuCtxGetCurrent = get_current;
    driver_.cuCtxGetDevice = get_device;
    driver_.cuCtxPushCurrent_v2 = push_current;
    driver_.cuCtxPopCurrent_v2 = pop_current;
    driver_.cuStreamGetCtx = get_context_of_stream;
    test::pools->devices = 64;
    current = nullptr;
    below.clear();
    ordinals.clear();
    streams.clear();
    current_result = CUDA_SUCCESS;
    refused_device = 0;
    ContextRegistry::current_may_change();
    keep(&driver_);
    keep(&settings_);
    keep(&registry_);
  }
  ~ContextRegistryTest() override {
    current = nullptr;
    ContextRegistry::current_may_change();
  }
  // Reachable for ever, so that a leak detector takes it for what it is.
  static void keep(const void* object) {
    static auto* const kept = new std::vector<const void*>;
    kept->push_back(object);
  }

  // A handle that no test has had: what a thread remembers is not told apart by registry.
  static CUcontext new_handle(int ordinal = kDevice) {
    static std::uintptr_t last = std::uintptr_t{1} << 46;
    const auto handle = reinterpret_cast<CUcontext>(last += 4096);
    ordinals[handle] = ordinal;
    return handle;
  }
  // By a way that the hooks see, as every way should be.
  static void set_current(CUcontext handle) {
    current = handle;
    ContextRegistry::current_may_change();
  }
  Context* enter(CUcontext handle) {
    set_current(handle);
    Context* const context = registry_.current();
    keep(context);
    return context;
  }
  Context* enter_new(int ordinal = kDevice) { return enter(new_handle(ordinal)); }
  void end(Context& context) {
    const ContextEnd ending(context);
    registry_.forget_found();
    context.set_gone();
  }
  // How often `call` asks the driver for the current context.
  template <typename Call>
  unsigned asked_by(const Call& call) {
    const unsigned before = asked;
    call();
    return asked - before;
  }
  unsigned asked_by_current() {
    return asked_by([&] { registry_.current(); });
  }
  std::set<int> ordinals_of_devices() {
    std::set<int> found;
    for (const Device* device : registry_.devices().all()) found.insert(device->ordinal());
    return found;
  }
  static std::set<Context*> set_of(const std::vector<Context*>& contexts) {
    EXPECT_EQ(std::set<Context*>(contexts.begin(), contexts.end()).size(), contexts.size());
    return {contexts.begin(), contexts.end()};
  }
  // One that the process has not used, as only its first use is news; -1: all are.
  static int unused_ordinal() {
    int ordinal = stats::kMaxDevices - 1;
    while (ordinal >= 0 && device_in_use(ordinal)) --ordinal;
    return ordinal;
  }

  static constexpr int kDevice = 3;
  static constexpr int kOtherDevice = 5;
  // Contexts are never destroyed, and refer to these.
  cuda::Driver& driver_ = *new cuda::Driver(test::fake_driver_with_pools());
  config::Settings& settings_ = *new config::Settings(test::settings_of({}));
  ContextRegistry& registry_ = *new ContextRegistry(driver_, settings_);
  StreamContexts streams_{driver_, registry_};
  bool all_gone() {
    const std::vector<Context*> all = registry_.all();
    return std::all_of(all.begin(), all.end(), [](const Context* each) { return each->gone(); });
  }
};

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
  EXPECT_EQ(registry_.ask_for_current(second), second);
  EXPECT_EQ(asked_by_current(), 0u) << "they agree";
  current = first->handle();  // by a way that the hooks do not see
  EXPECT_EQ(registry_.current(), second);
  EXPECT_EQ(registry_.ask_for_current(second), first);
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
  EXPECT_EQ(registry_.ask_for_current(context), context);
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

TEST_F(ContextRegistryTest, AStreamBelongsToTheContextThatTheDriverSays) {
  Context* const first = enter_new();
  Context* const second = enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto unknown = reinterpret_cast<CUstream>(0x200);
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.context_of(stream), first);
  EXPECT_EQ(streams_.context_of(unknown), second);
  for (const CUstream its_own : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    streams[its_own] = first->handle();
    EXPECT_EQ(streams_.context_of(its_own), second) << "another one in each context";
  }
  streams[stream] = second->handle();
  EXPECT_EQ(streams_.context_of(stream), second);
  streams[stream] = new_handle();
  EXPECT_EQ(streams_.context_of(stream), second) << "a context that has not been seen";
  driver_.cuStreamGetCtx = nullptr;
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.context_of(stream), second) << "an older driver";
}

TEST_F(ContextRegistryTest, AStreamOfAHandleThatCameAgainIsTheNewLifes) {
  Context* const first = enter_new();
  Context* const second = enter_new();
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = first->handle();
  end(*first);
  EXPECT_EQ(streams_.context_of(stream), first);
  EXPECT_TRUE(first->usable()) << "the program has a stream in it: it is there again";
  EXPECT_EQ(current, second->handle()) << "as the program had it";
}

TEST_F(ContextRegistryTest, AStreamCapturesInOneContext) {
  Context* const first = enter_new();
  Context* const second = enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto begins = [] { return CUDA_SUCCESS; };
  const auto ended = [] { return false; };
  EXPECT_EQ(streams_.capturing_context(stream), nullptr);
  EXPECT_EQ(streams_.begin_capture(*first, stream, begins), CUDA_SUCCESS);
  EXPECT_EQ(streams_.begin_capture(*first, CU_STREAM_PER_THREAD, begins), CUDA_SUCCESS);
  EXPECT_EQ(streams_.capturing_context(stream), first);
  EXPECT_EQ(streams_.capturing_context(reinterpret_cast<CUstream>(0x200)), nullptr);
  EXPECT_EQ(streams_.capturing_context(CU_STREAM_PER_THREAD), nullptr) << "not in this context";
  set_current(first->handle());
  EXPECT_EQ(streams_.capturing_context(CU_STREAM_PER_THREAD), first);
  for (const CUstream each : {stream, CU_STREAM_PER_THREAD}) {
    first->ordering().captures().end(each, begins, ended);
    EXPECT_EQ(streams_.capturing_context(each), nullptr);
  }
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.begin_capture(*second, stream, [] { return CUDA_ERROR_UNKNOWN; }),
            CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(Serving::any_capture()) << "it has not begun";
}

TEST_F(ContextRegistryTest, ACaptureEndsWhereItBeganAndWithItsStream) {  // I3
  Context* const first = enter_new();
  enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  const auto succeed = [] { return CUDA_SUCCESS; };
  const auto refuse = [] { return CUDA_ERROR_UNKNOWN; };
  streams[stream] = first->handle();
  EXPECT_EQ(streams_.begin_capture(stream, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.begin_capture(stream, succeed), CUDA_SUCCESS);
  EXPECT_TRUE(first->ordering().captures().has(stream)) << "in the stream's context";
  EXPECT_EQ(streams_.end_capture(stream, refuse, [] { return true; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(streams_.capturing_context(stream), first) << "the driver says that it goes on";
  EXPECT_EQ(streams_.end_capture(stream, succeed, [] { return false; }), CUDA_SUCCESS);
  EXPECT_EQ(streams_.capturing_context(stream), nullptr);
  EXPECT_EQ(streams_.end_capture(stream, refuse, [] { return false; }), CUDA_ERROR_UNKNOWN)
      << "the driver's answer where nothing captures";
  streams_.begin_capture(stream, succeed);
  EXPECT_EQ(streams_.destroy(stream, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(streams_.capturing_context(stream), first) << "the stream is still there";
  EXPECT_EQ(streams_.destroy(stream, succeed), CUDA_SUCCESS);
  EXPECT_FALSE(Serving::any_capture());
}

TEST_F(ContextRegistryTest, AStreamsDestructionIsToldToItsContext) {
  Context* const first = enter_new();
  enter_new();  // the current one
  const auto stream = reinterpret_cast<CUstream>(0x100);
  streams[stream] = first->handle();
  test::gpu.work.store(test::FakeGpu::Work::held);
  HostWork& work = first->host_work();
  const auto wait_for_stream = [&] { work.end_stream_wait(stream, work.begin_wait()); };
  work.submitted(stream);
  EXPECT_EQ(streams_.destroy(stream, [] { return CUDA_ERROR_UNKNOWN; }), CUDA_ERROR_UNKNOWN);
  wait_for_stream();
  EXPECT_FALSE(work.maybe_pending()) << "the stream is still there, and was waited for";
  work.submitted(stream);
  const auto destroy = [&] {
    streams.erase(stream);  // the driver does not know whose it was afterwards
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(streams_.destroy(stream, destroy), CUDA_SUCCESS);
  wait_for_stream();
  EXPECT_TRUE(work.maybe_pending()) << "the handle is another stream's";
}

TEST_F(ContextRegistryTest, AStreamOfNoServedContextIsLeftToTheDriver) {
  const auto stream = reinterpret_cast<CUstream>(0x100);
  unsigned calls = 0;
  const auto call = [&] {
    ++calls;
    return CUDA_SUCCESS;
  };
  ASSERT_EQ(registry_.current(), nullptr);
  EXPECT_EQ(streams_.begin_capture(stream, call), CUDA_SUCCESS);
  EXPECT_FALSE(Serving::any_capture());
  EXPECT_EQ(streams_.end_capture(stream, call, [] { return false; }), CUDA_SUCCESS);
  EXPECT_EQ(streams_.destroy(stream, call), CUDA_SUCCESS);
  EXPECT_EQ(calls, 3u);
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
  context->device().orphans().add({orphan});
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
  context->device().orphans().add({address});
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
