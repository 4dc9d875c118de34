// SPDX-License-Identifier: Apache-2.0
// A registry of contexts alone, on a fake driver whose contexts and streams the test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <vector>

#include "engine/context/stream_contexts.h"
#include "engine/reclaim/device_use.h"
#include "engine_fake_pools.h"

namespace cupool::engine {

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
  template <typename Contexts>
  static std::set<Context*> set_of(const Contexts& contexts) {
    std::set<Context*> found;
    for (Context* const each : contexts) EXPECT_TRUE(found.insert(each).second);
    return found;
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
    const ContextList all = registry_.all();
    return std::all_of(all.begin(), all.end(), [](const Context* each) { return each->gone(); });
  }
};

}  // namespace cupool::engine
