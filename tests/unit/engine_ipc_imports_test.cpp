// SPDX-License-Identifier: Apache-2.0
// Memory of other processes, against exporters of every kind: such as refuse, answer nonsense, come
// late, or hang up; and releases that the GPU, the driver or another thread holds up (contract 8).
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <set>
#include <vector>

#include "empty_heap.h"
#include "engine/context/context.h"
#include "engine/ipc/imports.h"
#include "engine_fake_driver.h"

namespace cupool::engine {
namespace {

using channel::Transfer;
using ipc::Reply;
using ipc::Request;
using ipc::Status;
using ipc::Verb;
using util::Descriptor;

// What the fake driver answers to an importer, and what it was asked for.
struct ImportersDriver {
  std::atomic<std::uint64_t> next_address{0x7000'0000};
  int owner = 0;  ///< device of imported memory
  int devices = 1;
  std::set<int> no_peer;       ///< devices that cannot access the owner's memory
  std::set<int> unknown_peer;  ///< devices for which the question fails
  std::set<int> refused;       ///< devices that get no access
  std::vector<int> admitted;
  std::vector<CUdeviceptr> freed;
  int pools_destroyed = 0;
  CUresult free_result = CUDA_SUCCESS;
  std::atomic<CUresult> wait_result{CUDA_SUCCESS};
  std::atomic<bool> waiting{false};  ///< a thread waits for the GPU
  std::atomic<bool> holding{false};  ///< and goes on when this is false
};
ImportersDriver importers;

cuda::Driver driver_of_importers() {
  cuda::Driver driver = test::fake_driver();
  driver.cuCtxPushCurrent_v2 = [](CUcontext) { return CUDA_SUCCESS; };
  driver.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
  driver.cuEventSynchronize = [](CUevent event) {
    importers.waiting = true;
    while (importers.holding) std::this_thread::yield();
    if (importers.wait_result != CUDA_SUCCESS) return importers.wait_result.load();
    return test::fake::wait(event);
  };
  driver.cuMemPoolImportFromShareableHandle = [](CUmemoryPool* pool, void*,
                                                 CUmemAllocationHandleType, unsigned long long) {
    *pool = reinterpret_cast<CUmemoryPool>(0x500);
    return CUDA_SUCCESS;
  };
  driver.cuMemPoolImportPointer = [](CUdeviceptr* address, CUmemoryPool, CUmemPoolPtrExportData*) {
    *address = importers.next_address += 0x10000;
    return CUDA_SUCCESS;
  };
  driver.cuMemPoolSetAccess = [](CUmemoryPool, const CUmemAccessDesc* access, std::size_t) {
    const int device = access->location.id;
    if (importers.refused.count(device) != 0) return CUDA_ERROR_INVALID_DEVICE;
    importers.admitted.push_back(device);
    return CUDA_SUCCESS;
  };
  driver.cuMemPoolDestroy = [](CUmemoryPool) {
    ++importers.pools_destroyed;
    return CUDA_SUCCESS;
  };
  driver.cuPointerGetAttribute = [](void* value, CUpointer_attribute, CUdeviceptr) {
    *static_cast<int*>(value) = importers.owner;
    return CUDA_SUCCESS;
  };
  driver.cuDeviceGetCount = [](int* count) {
    *count = importers.devices;
    return CUDA_SUCCESS;
  };
  driver.cuDeviceCanAccessPeer = [](int* can, CUdevice device, CUdevice) {
    *can = importers.no_peer.count(device) != 0 ? 0 : 1;
    return importers.unknown_peer.count(device) != 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
  };
  driver.cuMemFree_v2 = [](CUdeviceptr address) {
    if (importers.free_result == CUDA_SUCCESS) importers.freed.push_back(address);
    return importers.free_result;
  };
  return driver;
}

// Contexts are never destroyed, and refer to these; reachable for ever for a leak detector.
template <typename T, typename... Arguments>
T& kept(Arguments&&... arguments) {
  static auto* const all = new std::vector<T*>;
  all->push_back(new T(std::forward<Arguments>(arguments)...));
  return *all->back();
}

class IpcImporter : public testing::Test {
 protected:
  IpcImporter() {
    importers.owner = 0;
    importers.devices = 1;
    for (auto* const each : {&importers.no_peer, &importers.unknown_peer, &importers.refused}) {
      each->clear();
    }
    importers.admitted.clear();
    importers.freed.clear();
    importers.pools_destroyed = 0;
    importers.free_result = CUDA_SUCCESS;
    importers.wait_result = CUDA_SUCCESS;
    importers.waiting = false;
    importers.holding = false;
    EXPECT_TRUE(channel::fill_random(&handle_.exporter, sizeof handle_.exporter));
    handle_.block = 7;
    handle_.secret[0] = 1;
    listener_ = channel::listen_at(handle_.exporter);
    EXPECT_TRUE(listener_.valid());
    file_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  ~IpcImporter() override { test::gpu.work.store(test::FakeGpu::Work::none); }

  static std::uint64_t deadline() { return util::now_ns() + channel::kPatienceNs; }

  // The exporter's side.
  void accept() {
    pollfd polled{listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 5000), 1);
    bool more = false;
    connection_ = channel::accept_own(listener_, &more);
    ASSERT_TRUE(connection_.valid());
  }
  Request receive(std::uint64_t deadline_ns) {
    Request request;
    request.sequence = 0;
    EXPECT_EQ(
        channel::receive_message(connection_.get(), &request, sizeof request, nullptr, deadline_ns),
        Transfer::done);
    return request;
  }
  Request receive() { return receive(deadline()); }
  Transfer send(const Reply& reply, bool with_file) {
    return channel::send_message(connection_.get(), &reply, sizeof reply,
                                 with_file ? file_.get() : -1, deadline());
  }
  static Reply granted(std::uint64_t sequence) {
    Reply reply;
    reply.status = Status::granted;
    reply.sequence = sequence;
    reply.pool = 3;
    reply.requested = 700;
    return reply;
  }
  static Reply refusal(Status why, std::uint64_t sequence) {
    Reply reply;
    reply.status = why;
    reply.sequence = sequence;
    return reply;
  }

  // The importer's. The exporter's answers are given meanwhile.
  std::future<CUresult> opens(const ipc::Handle& handle, Context& context, CUdeviceptr* address) {
    return std::async(std::launch::async,
                      [&, address] { return imports_.open(handle, context, address); });
  }
  // One that is granted.
  CUdeviceptr open_granted(const ipc::Handle& handle, Context& context) {
    CUdeviceptr address = 0;
    auto opening = opens(handle, context, &address);
    if (!connection_.valid()) accept();
    Request request = receive();
    while (request.verb == Verb::close) request = receive();  // of an earlier lease
    EXPECT_EQ(send(granted(request.sequence), true), Transfer::done);
    EXPECT_EQ(opening.get(), CUDA_SUCCESS);
    return address;
  }
  CUdeviceptr open_granted() { return open_granted(handle_, context_); }

  cuda::Driver& driver_ = kept<cuda::Driver>(driver_of_importers());
  config::Settings& settings_ = kept<config::Settings>();
  Device& device_ = kept<Device>(driver_, 0, settings_);
  Context& context_ = kept<Context>(driver_, test::fake::context(), device_);
  IpcImports imports_{driver_};
  ipc::Handle handle_;
  Descriptor listener_;
  Descriptor connection_;
  Descriptor file_;
};

TEST_F(IpcImporter, ARefusedConnectionIsNoMemory) {  // before the question was read
  CUdeviceptr address = 0;
  auto opening = opens(handle_, context_, &address);
  accept();
  send(refusal(Status::busy, 0), false);
  connection_.reset();
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(imports_.close(address), std::nullopt);
}

TEST_F(IpcImporter, AnotherVersionIsNoMemory) {
  CUdeviceptr address = 0;
  auto opening = opens(handle_, context_, &address);
  accept();
  send(refusal(Status::other_version, receive().sequence), false);
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
}

// As with an importer that has no descriptor left.
TEST_F(IpcImporter, ALeaseWithoutItsFileIsGivenBack) {
  CUdeviceptr address = 0;
  auto opening = opens(handle_, context_, &address);
  accept();
  send(granted(receive().sequence), false);
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
  const Request close = receive();
  EXPECT_EQ(close.verb, Verb::close);
  EXPECT_EQ(close.block, handle_.block);
}

TEST_F(IpcImporter, NonsenseIsNoMemory) {
  CUdeviceptr address = 0;
  auto opening = opens(handle_, context_, &address);
  accept();
  Reply nonsense = granted(receive().sequence);
  nonsense.magic = 1;
  send(nonsense, true);
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(address, 0u);
}

// Another block's secret opens nothing, not even what this process has open.
TEST_F(IpcImporter, AnOpenBlockIsOpenedAgainWithItsSecretOnly) {
  const CUdeviceptr address = open_granted();
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, context_, &again), CUDA_SUCCESS) << "nobody is asked";
  EXPECT_EQ(again, address);
  ipc::Handle wrong = handle_;
  wrong.secret[15] ^= 1;
  CUdeviceptr other = 0;
  auto opening = opens(wrong, context_, &other);
  const Request asked = receive();
  EXPECT_TRUE(ipc::equal(asked.secret, wrong.secret));
  send(refusal(Status::unknown, asked.sequence), false);
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_TRUE(importers.freed.empty()) << "it is open once more";
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address});
}

// The answer to an open that was given up comes before the one to the next open, and its lease
// must not stay.
TEST_F(IpcImporter, ALateAnswerIsNobodys) {
  CUdeviceptr address = 0;
  auto opening = opens(handle_, context_, &address);
  accept();
  const Request first = receive();
  EXPECT_EQ(opening.get(), CUDA_ERROR_MAP_FAILED);
  send(granted(first.sequence), true);
  auto again = opens(handle_, context_, &address);
  EXPECT_EQ(receive().verb, Verb::close);
  const Request second = receive();
  EXPECT_NE(second.sequence, first.sequence);
  Reply reply = granted(second.sequence);
  reply.requested = 900;
  send(reply, true);
  EXPECT_EQ(again.get(), CUDA_SUCCESS);
  EXPECT_EQ(imports_.find(address)->requested, 900u);
}

// An exporter that answers and does not read, until its socket is full.
TEST_F(IpcImporter, ClosesThatDoNotFitIntoTheSocketComeInOrderBeforeTheNextOpen) {
  ipc::Handle handle = handle_;
  CUdeviceptr address = open_granted();
  std::uint64_t sequence = 1;  // of each open by itself
  CUresult result = CUDA_SUCCESS;
  std::uint64_t given_up = 0;
  for (int i = 0; i < 2000 && given_up == 0; ++i) {
    EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
    handle.block += 1;
    ASSERT_EQ(send(granted(++sequence), true), Transfer::done);
    result = imports_.open(handle, context_, &address);
    if (result != CUDA_SUCCESS) given_up = handle.block;
  }
  ASSERT_NE(given_up, 0u) << "the socket never was full";
  EXPECT_EQ(result, CUDA_ERROR_MAP_FAILED);
  // Read now: each block was opened and closed but the last one, whose lease may have come.
  const auto expect_closes = [&](std::uint64_t from, std::uint64_t to) {
    std::uint64_t closed = from;
    while (closed < to) {
      const Request request = receive();
      if (testing::Test::HasFailure()) return;
      if (request.verb == Verb::close) {
        EXPECT_EQ(request.block, closed++);
      }
    }
  };
  Request request;
  std::uint64_t read = handle_.block;  // the next close
  while (channel::receive_message(connection_.get(), &request, sizeof request, nullptr, 0) ==
         Transfer::done) {
    if (request.verb == Verb::close) {
      EXPECT_EQ(request.block, read++);
    }
  }
  EXPECT_LT(read, given_up + 1) << "some did not fit in";
  handle.block = given_up + 1;
  auto opening = opens(handle, context_, &address);
  expect_closes(read, given_up + 1);
  request = receive();
  EXPECT_EQ(request.verb, Verb::open);
  EXPECT_EQ(request.block, handle.block);
  send(granted(request.sequence), true);
  EXPECT_EQ(opening.get(), CUDA_SUCCESS);
}

TEST_F(IpcImporter, EachPeerOfTheOwnerGetsAccess) {  // contract 7
  importers.owner = 1;
  importers.devices = 6;
  importers.no_peer = {2};
  importers.unknown_peer = {3};
  importers.refused = {4};
  open_granted();
  EXPECT_EQ(importers.admitted, (std::vector<int>{0, 5})) << "the context's own device comes first";
}

TEST_F(IpcImporter, AContextWhoseDeviceGetsNoAccessHasNotOpenedIt) {
  const CUdeviceptr address = open_granted();
  Device& other_device = kept<Device>(driver_, 1, settings_);
  Context& other = kept<Context>(driver_, reinterpret_cast<CUcontext>(0x9100), other_device);
  importers.refused = {1};
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, other, &again), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address}) << "one reference was all";
}

TEST_F(IpcImporter, AContextWhoseDeviceGetsNoAccessDoesNotKeepItOpen) {
  const CUdeviceptr address = open_granted();
  Device& other_device = kept<Device>(driver_, 1, settings_);
  Context& other = kept<Context>(driver_, reinterpret_cast<CUcontext>(0x9150), other_device);
  importers.refused = {1};
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, other, &again), CUDA_ERROR_MAP_FAILED);
  imports_.context_gone(context_);
  EXPECT_EQ(imports_.find(address), std::nullopt) << "only the first context had opened it";
}

TEST_F(IpcImporter, MemoryIsOpenAsLongAsOneOfItsContextsLives) {
  const CUdeviceptr address = open_granted();
  Context& other = kept<Context>(driver_, reinterpret_cast<CUcontext>(0x9200), device_);
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, other, &again), CUDA_SUCCESS);
  EXPECT_EQ(imports_.find(address)->context, context_.handle());
  imports_.context_gone(context_);
  ASSERT_TRUE(imports_.find(address).has_value());
  EXPECT_EQ(imports_.find(address)->context, other.handle());
  imports_.context_gone(other);
  EXPECT_EQ(imports_.find(address), std::nullopt);
  EXPECT_TRUE(imports_.holds(address)) << "the driver has it still";
}

TEST_F(IpcImporter, WhatTheDriverDoesNotTakeBackIsClosedForTheProgram) {
  const CUdeviceptr address = open_granted();
  EXPECT_EQ(imports_.find(address + 1), std::nullopt);
  EXPECT_EQ(imports_.close(address + 1), std::nullopt);
  importers.free_result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_EQ(imports_.find(address), std::nullopt);
  EXPECT_TRUE(imports_.holds(address));
  EXPECT_EQ(imports_.close(address), CUDA_ERROR_INVALID_VALUE) << "twice";
  // The next open gives it back.
  importers.free_result = CUDA_SUCCESS;
  ipc::Handle handle = handle_;
  handle.block = 8;
  open_granted(handle, context_);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address});
}

// I7, and I4: no wait for the second context, nothing freed; a later call tries again.
TEST_F(IpcImporter, AWaitThatFailsHoldsTheLease) {
  const CUdeviceptr address = open_granted();
  Context& other = kept<Context>(driver_, reinterpret_cast<CUcontext>(0x9300), device_);
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, other, &again), CUDA_SUCCESS);
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  test::gpu.work.store(test::FakeGpu::Work::held);
  importers.wait_result = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(imports_.close(address), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(importers.freed.empty());
  EXPECT_TRUE(imports_.holds(address));
  test::gpu.work.store(test::FakeGpu::Work::none);
  importers.wait_result = CUDA_SUCCESS;
  ipc::Handle handle = handle_;
  handle.block = 8;
  open_granted(handle, context_);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address});
}

// A lease that nobody ends would keep the exporter's memory for as long as this process lives.
TEST_F(IpcImporter, OutOfHostMemoryNoLeaseIsAskedFor) {
  CUdeviceptr address = 0;
  {
    const test::EmptyHeap none;
    EXPECT_EQ(imports_.open(handle_, context_, &address), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(address, 0u);
  pollfd polled{listener_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "no connection either";
  EXPECT_NE(open_granted(), 0u);
}

TEST_F(IpcImporter, WhatIsClosedOutOfHostMemoryGoesBackLater) {
  const CUdeviceptr address = open_granted();
  {
    const test::EmptyHeap none;
    EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  }
  EXPECT_FALSE(imports_.find(address).has_value()) << "closed for the program";
  EXPECT_TRUE(imports_.holds(address)) << "and held for the exporter";
  ipc::Handle other = handle_;
  other.block = 8;
  open_granted(other, context_);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address});
  EXPECT_FALSE(imports_.holds(address));
}

// A close waits for the GPU while another thread opens the memory again, and looks for closed ones.
TEST_F(IpcImporter, MemoryThatIsOpenedAgainDuringItsCloseStays) {
  const CUdeviceptr address = open_granted();
  test::gpu.work.store(test::FakeGpu::Work::held);
  importers.holding = true;
  auto closing = std::async(std::launch::async, [&] { return imports_.close(address); });
  while (!importers.waiting) std::this_thread::yield();
  EXPECT_EQ(imports_.find(address), std::nullopt);
  EXPECT_EQ(imports_.close(address), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr again = 0;
  EXPECT_EQ(imports_.open(handle_, context_, &again), CUDA_SUCCESS);
  EXPECT_EQ(again, address);
  importers.holding = false;
  EXPECT_EQ(closing.get(), CUDA_SUCCESS);
  EXPECT_TRUE(importers.freed.empty());
  EXPECT_TRUE(imports_.find(address).has_value());
  test::gpu.work.store(test::FakeGpu::Work::none);
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_EQ(importers.freed, std::vector<CUdeviceptr>{address});
}

TEST_F(IpcImporter, ThePoolsOfAnExporterThatHasGoneGoWithTheNextOpen) {
  const CUdeviceptr address = open_granted();
  connection_.reset();
  ipc::Handle handle = handle_;
  handle.block = 8;
  const CUdeviceptr second = open_granted(handle, context_);
  EXPECT_EQ(importers.pools_destroyed, 0) << "one of its blocks is open";
  EXPECT_EQ(imports_.close(address), CUDA_SUCCESS);
  EXPECT_EQ(imports_.close(second), CUDA_SUCCESS);
  connection_.reset();
  handle.block = 9;
  open_granted(handle, context_);
  EXPECT_EQ(importers.pools_destroyed, 1);
}

}  // namespace
}  // namespace cupool::engine
