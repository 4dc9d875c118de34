// SPDX-License-Identifier: Apache-2.0
// The judge and agents that the owner's context knows nothing of: kernels and copies of another
// device. Rules: contract 2 (whatever agent the work is of); CUDA Driver API, cuCtxRecordEvent;
// measured with two GPUs.
#include "fixture.h"

#include <cstring>
#include <functional>

namespace cupool::sim::test {

const Variables variables{{"CUPOOL_SIM_DEVICES", "2"}, {"CUPOOL_SIM_MEMORY", "256M"}};

class ForeignDevice : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    mine = stream();
    my_event = event();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    on_peer([&] {
      ASSERT_EQ(cuCtxEnablePeerAccess(context, 0), CUDA_SUCCESS);
      ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
      theirs = stream();
      their_event = event();
      their_memory = alloc(4096);
    });
    anchor = alloc(512);  // keeps the chunk, so that what is freed can be handed out again
    p = alloc(4096);
    own(1);
  }
  void TearDown() override {
    cupoolSimSet("judge", "0");
    cuDevicePrimaryCtxReset(1);
    cuDevicePrimaryCtxRelease(1);
    Sim::TearDown();
  }

  void on_peer(const std::function<void()>& body) {
    ASSERT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
    std::swap(module, peers_module);
    body();
    std::swap(module, peers_module);
    ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  }
  void own(unsigned long long owner) { cupoolSimOwner(pointer(p), 4096, owner); }

  void peer_kernel() {
    on_peer([&] { ASSERT_EQ(stamp(theirs, p, 16, 1), CUDA_SUCCESS); });
  }
  void peer_copy() {
    on_peer([&] {
      ASSERT_EQ(cuMemcpyPeerAsync(their_memory, second, p, context, 64, theirs), CUDA_SUCCESS);
    });
  }

  /// The block is freed, handed out again at once, and written by its new owner.
  void hand_out_again() {
    own(0);
    ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
    ASSERT_EQ(alloc(4096), p);
    own(2);
    ASSERT_EQ(stamp(mine, p, 16, 2), CUDA_SUCCESS);
  }

  CUcontext second = nullptr;
  CUmodule peers_module = nullptr;
  CUstream mine = nullptr;
  CUstream theirs = nullptr;
  CUevent my_event = nullptr;
  CUevent their_event = nullptr;
  CUdeviceptr their_memory = 0;
  CUdeviceptr anchor = 0;
  CUdeviceptr p = 0;
};

// "A kernel of device 1 writing legacy memory of device 0 while that is freed: legacy cudaFree does
// not wait for it."
TEST_F(ForeignDevice, AKernelOnMemoryThatIsHandedOutAgainIsFound) {
  peer_kernel();
  hand_out_again();
  EXPECT_EQ(complaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "foreign access"), nullptr);
}

TEST_F(ForeignDevice, SoIsACopyThatReads) {
  peer_copy();
  hand_out_again();
  EXPECT_EQ(complaints(), 1u);
}

TEST_F(ForeignDevice, SoIsAPeerThatIsTheNewOwner) {
  ASSERT_EQ(stamp(mine, p, 16, 1), CUDA_SUCCESS);
  own(2);
  peer_kernel();
  EXPECT_EQ(complaints(), 1u);
}

TEST_F(ForeignDevice, WaitingForTheOwnersContextDoesNotHelp) {
  peer_kernel();
  ASSERT_EQ(cuCtxRecordEvent(context, my_event), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(my_event), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  hand_out_again();
  EXPECT_EQ(complaints(), 1u);
}

TEST_F(ForeignDevice, WaitingForThePeerHelps) {
  const std::function<void()> waits[] = {
      [&] { ASSERT_EQ(cuStreamSynchronize(theirs), CUDA_SUCCESS); },
      [&] {
        on_peer([&] { ASSERT_EQ(cuEventRecord(their_event, theirs), CUDA_SUCCESS); });
        ASSERT_EQ(cuEventSynchronize(their_event), CUDA_SUCCESS);
      },
      [&] {
        ASSERT_EQ(cuCtxRecordEvent(second, their_event), CUDA_SUCCESS);
        ASSERT_EQ(cuEventSynchronize(their_event), CUDA_SUCCESS);
      },
      [&] { on_peer([] { ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); }); },
      [&] {
        on_peer([&] { ASSERT_EQ(cuEventRecord(their_event, theirs), CUDA_SUCCESS); });
        ASSERT_EQ(cuStreamWaitEvent(mine, their_event, 0), CUDA_SUCCESS);
      },
      // Their work is ordered before ours, and the free waits for ours.
      [&] {
        on_peer([&] { ASSERT_EQ(cuEventRecord(their_event, theirs), CUDA_SUCCESS); });
        ASSERT_EQ(cuStreamWaitEvent(stream(), their_event, 0), CUDA_SUCCESS);
      },
  };
  for (size_t i = 0; i < sizeof waits / sizeof waits[0]; ++i) {
    own(1);
    peer_kernel();
    peer_copy();
    waits[i]();
    hand_out_again();
    EXPECT_EQ(complaints(), 0u) << i << ": " << cupoolSimLastComplaint();
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
}

TEST_F(ForeignDevice, APoolBlockThatIsGivenBackIsFound) {
  CUmemoryPool pool = nullptr;
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  for (const bool waits : {true, false}) {
    ASSERT_EQ(cuMemAllocAsync(&p, 4096, mine), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(mine), CUDA_SUCCESS);
    peer_kernel();
    peer_copy();
    if (waits) {
      ASSERT_EQ(cuStreamSynchronize(theirs), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuMemFreeAsync(p, mine), CUDA_SUCCESS);
    EXPECT_EQ(complaints(), waits ? 0u : 2u) << "the kernel and the copy";
  }
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "freed to the pool"), nullptr);
}

}  // namespace cupool::sim::test
