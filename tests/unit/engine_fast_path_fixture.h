// SPDX-License-Identifier: Apache-2.0
// An engine of its own for each test, against a driver whose GPU the test moves by hand, called as
// the hooks call it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/serve/hot_path.h"
#include "engine_fake_driver.h"
#include "engine_network.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using stats::Counter;
using stats::Gauge;
using test::gpu;
using Work = test::FakeGpu::Work;

class FastPathTest : public testing::Test {
 protected:
  void SetUp() override {
    test::leave_network();
    gpu.work.store(Work::none);
    gpu.recorded.store(0);
    gpu.completed.store(0);
    start({});
  }
  // What this thread still has here would be told to the figures of the next test, when it gives
  // the cache up.
  void TearDown() override {
    if (!context_->gone()) context_->threads().drain(Drain::all);
  }

  virtual cuda::Driver make_driver() { return test::fake_driver(); }

  // An engine of its own, never destroyed, as in a process.
  void start(std::map<std::string, std::string> options) {
    driver_ = new cuda::Driver(make_driver());
    gpu.capacity.store(std::uint64_t{64} << 30);
    options.emplace("CUPOOL_FREE_MODE", "ordered");
    std::vector<std::string> lines;
    for (const auto& option : options) lines.push_back(option.first + "=" + option.second);
    std::vector<const char*> environment;
    for (const std::string& line : lines) environment.push_back(line.c_str());
    environment.push_back(nullptr);
    settings_ = new config::Settings(config::parse(environment.data(), nullptr, nullptr));
    stats::reset_after_fork();
    ContextRegistry::current_may_change();
    allocator_ = new Allocator(*driver_, *settings_);
    // Reachable for ever, so that a leak detector takes them for what they are.
    static auto* const engines = new std::vector<std::array<const void*, 3>>;
    engines->push_back({driver_, settings_, allocator_});
    context_ = allocator_->registry().current();
    ASSERT_NE(context_, nullptr);
  }

  // As the hooks do it.
  CUdeviceptr allocate(std::uint64_t bytes) {
    CUdeviceptr address = allocate_hot(*context_, bytes);
    if (address != 0) return address;
    if (!allocator_->allocations().try_allocate_cached(*context_, bytes, &address)) {
      Patience patience;
      EXPECT_EQ(allocator_->allocations().try_allocate(bytes, &address, patience), CUDA_SUCCESS);
    }
    return address;
  }
  void free(CUdeviceptr address) {
    const auto freed = free_hot(*allocator_, address);
    const util::Uncancelled throughout;
    EXPECT_EQ(freed ? *freed : *allocator_->frees().try_free(address), CUDA_SUCCESS);
  }
  void pairs(int count, std::uint64_t bytes) {
    for (int i = 0; i < count; ++i) free(allocate(bytes));
  }
  std::vector<CUdeviceptr> allocate_several(int count, std::uint64_t bytes) {
    std::vector<CUdeviceptr> addresses;
    for (int i = 0; i < count; ++i) addresses.push_back(allocate(bytes));
    return addresses;
  }
  void free_all(const std::vector<CUdeviceptr>& addresses) {
    for (const CUdeviceptr address : addresses) free(address);
  }
  template <typename Body>
  void in_thread(const Body& body) {
    std::thread(body).join();
  }
  std::uint64_t count(Counter counter) {
    allocator_->figures().fold();
    return context_->stats().value(counter);
  }
  std::int64_t now(Gauge gauge) {
    allocator_->figures().fold();
    return context_->stats().value(gauge).current;
  }
  // Application, retired and cached bytes are all that is held.
  void expect_identity() {
    EXPECT_EQ(now(Gauge::application_bytes) + now(Gauge::rounding_bytes) +
                  now(Gauge::retired_bytes) + now(Gauge::cached_bytes),
              now(Gauge::held_bytes));
  }

  cuda::Driver* driver_ = nullptr;
  config::Settings* settings_ = nullptr;
  Allocator* allocator_ = nullptr;
  Context* context_ = nullptr;
};

}  // namespace cupool::engine
