// SPDX-License-Identifier: Apache-2.0
// Primary contexts (contract 10, I8): the program's references are counted, and the context of a
// device ends with the driver's last one, under a lock that keeps other calls out.
#include "engine/context/primary_contexts.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/serve/context_ending.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

constexpr CUdevice kFirst = 0;
constexpr CUdevice kOther = 1;

// The driver's view: one primary context on each device, alive while it has references.
struct FakePrimaries {
  unsigned references[2] = {};
  CUcontext handles[2] = {reinterpret_cast<CUcontext>(0x1000), reinterpret_cast<CUcontext>(0x2000)};
  unsigned states_refused = 0;  // so often cuDevicePrimaryCtxGetState says no
  unsigned states_asked = 0;
  unsigned retains = 0;
  bool retain_refused = false;
  CUresult release_result = CUDA_SUCCESS;
};
FakePrimaries fake_primaries;

CUresult get_fake_state(CUdevice device, unsigned int* flags, int* active) {
  ++fake_primaries.states_asked;
  if (fake_primaries.states_refused != 0) {
    --fake_primaries.states_refused;
    return CUDA_ERROR_UNKNOWN;
  }
  *flags = 0;
  *active = fake_primaries.references[device] != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult retain_fake(CUcontext* context, CUdevice device) {
  ++fake_primaries.retains;
  if (fake_primaries.retain_refused) return CUDA_ERROR_OUT_OF_MEMORY;
  *context = fake_primaries.handles[device];
  ++fake_primaries.references[device];
  return CUDA_SUCCESS;
}
CUresult release_fake(CUdevice device) {
  if (fake_primaries.release_result != CUDA_SUCCESS) return fake_primaries.release_result;
  if (fake_primaries.references[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --fake_primaries.references[device];
  return CUDA_SUCCESS;
}
CUresult reset_fake(CUdevice device) {
  fake_primaries.references[device] = 0;
  return CUDA_SUCCESS;
}

void use_fake_primaries(cuda::Driver& driver) {
  fake_primaries = FakePrimaries{};
  driver.cuDevicePrimaryCtxGetState = get_fake_state;
  driver.cuDevicePrimaryCtxRetain = retain_fake;
  driver.cuDevicePrimaryCtxRelease = release_fake;
}

class PrimaryContextsTest : public testing::Test {
 protected:
  PrimaryContextsTest() { use_fake_primaries(driver_); }

  CUresult retain_by_program(CUdevice device = kFirst) {
    CUcontext context = nullptr;
    return primaries_.retain(device, &context, [&] { return retain_fake(&context, device); });
  }
  CUresult release_by_program(CUdevice device = kFirst) {
    return primaries_.release(device, [&] { return release_fake(device); });
  }

  cuda::Driver driver_;
  PrimaryContexts primaries_;
};

TEST_F(PrimaryContextsTest, TheLastReferenceIsTheOneThatNoOtherIsLeftBeside) {
  EXPECT_TRUE(primaries_.at_last_reference(kFirst)) << "none was counted";
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  EXPECT_TRUE(primaries_.at_last_reference(kFirst));
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  EXPECT_FALSE(primaries_.at_last_reference(kFirst));
  EXPECT_TRUE(primaries_.at_last_reference(kOther)) << "each device has its own";
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_TRUE(primaries_.at_last_reference(kFirst));
}

TEST_F(PrimaryContextsTest, WhatTheDriverRefusesIsNotCounted) {
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  fake_primaries.retain_refused = true;
  EXPECT_EQ(retain_by_program(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(primaries_.at_last_reference(kFirst));
  fake_primaries.retain_refused = false;
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  fake_primaries.release_result = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(release_by_program(), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(primaries_.at_last_reference(kFirst));
}

// A library may have retained it by a way that no hook sees.
TEST_F(PrimaryContextsTest, AReleaseBeyondTheCountLeavesItAtNone) {
  fake_primaries.references[kFirst] = 1;
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  EXPECT_FALSE(primaries_.at_last_reference(kFirst)) << "two are held";
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_TRUE(primaries_.at_last_reference(kFirst));
}

TEST_F(PrimaryContextsTest, AStateThatTheDriverDoesNotTellIsAskedForAgain) {
  fake_primaries.references[kFirst] = 1;
  EXPECT_TRUE(PrimaryContexts::is_active(driver_, kFirst));
  EXPECT_EQ(fake_primaries.states_asked, 1u);
  fake_primaries.states_refused = 1;
  EXPECT_TRUE(PrimaryContexts::is_active(driver_, kFirst)) << "a refusal may pass";
  fake_primaries.states_refused = 2;
  EXPECT_FALSE(PrimaryContexts::is_active(driver_, kFirst));
  EXPECT_FALSE(PrimaryContexts::is_active(driver_, kOther));
}

TEST_F(PrimaryContextsTest, AHandleThatAHookReturnedCostsNoReference) {
  EXPECT_EQ(primaries_.known(kFirst), nullptr);
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  EXPECT_EQ(primaries_.known(kFirst), fake_primaries.handles[kFirst]);
  EXPECT_EQ(primaries_.known(kOther), nullptr);
  EXPECT_EQ(primaries_.active(driver_, kFirst), fake_primaries.handles[kFirst]);
  EXPECT_EQ(fake_primaries.retains, 1u) << "the program's";
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_EQ(primaries_.active(driver_, kFirst), nullptr) << "it is known, and has ended";
  EXPECT_EQ(primaries_.known(kFirst), fake_primaries.handles[kFirst]);
}

TEST_F(PrimaryContextsTest, WhereTheDriverDoesNotTellItIsTheKnownOne) {
  EXPECT_EQ(retain_by_program(), CUDA_SUCCESS);
  fake_primaries.states_refused = 2;
  EXPECT_EQ(primaries_.active(driver_, kFirst), fake_primaries.handles[kFirst])
      << "which may be about to end";
  fake_primaries.states_refused = 2;
  EXPECT_EQ(primaries_.active(driver_, kOther), nullptr) << "and none is made to be asked";
}

TEST_F(PrimaryContextsTest, AContextThatNoHookReturnedIsRetainedBriefly) {
  fake_primaries.references[kOther] = 1;
  EXPECT_EQ(primaries_.active(driver_, kOther), fake_primaries.handles[kOther]);
  EXPECT_EQ(fake_primaries.retains, 1u);
  EXPECT_EQ(fake_primaries.references[kOther], 1u);
  EXPECT_TRUE(primaries_.at_last_reference(kOther)) << "cupool's reference is not the program's";
  driver_.cuDevicePrimaryCtxRelease_v2 = release_fake;
  driver_.cuDevicePrimaryCtxRelease = nullptr;
  EXPECT_EQ(primaries_.active(driver_, kOther), fake_primaries.handles[kOther]);
  EXPECT_EQ(fake_primaries.references[kOther], 1u) << "by the newer function where there is one";
  fake_primaries.retain_refused = true;
  EXPECT_EQ(primaries_.active(driver_, kOther), nullptr);
  fake_primaries.retain_refused = false;
  EXPECT_EQ(primaries_.active(driver_, kFirst), nullptr);
  EXPECT_EQ(fake_primaries.references[kFirst], 0u) << "a query makes no context";
}

TEST_F(PrimaryContextsTest, DevicesBeyondTheLastAreCountedAndNotKnown) {
  for (const CUdevice beyond : {CUdevice{-1}, CUdevice{stats::kMaxDevices}}) {
    CUcontext context = fake_primaries.handles[kFirst];
    primaries_.retain(beyond, &context, [] { return CUDA_SUCCESS; });
    EXPECT_EQ(primaries_.known(beyond), nullptr);
  }
  EXPECT_FALSE(primaries_.at_last_reference(-1)) << "they share a count";
  for (CUdevice device = 0; device < stats::kMaxDevices; ++device) {
    EXPECT_TRUE(primaries_.at_last_reference(device));
    EXPECT_EQ(primaries_.known(device), nullptr);
  }
}

TEST_F(PrimaryContextsTest, TheLockIsADevicesOwn) {  // I8
  std::atomic<bool> entered{false};
  std::thread same;
  {
    const auto held = primaries_.lock(kFirst);
    std::thread([&] { EXPECT_TRUE(primaries_.lock(kOther).owns_lock()); }).join();
    same = std::thread([&] {
      const auto lock = primaries_.lock(kFirst);
      entered = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(entered);
  }
  same.join();
  EXPECT_TRUE(entered);
}

TEST_F(PrimaryContextsTest, TheProcessHasOne) {
  EXPECT_EQ(&PrimaryContexts::of_process(), &PrimaryContexts::of_process());
  EXPECT_NE(&PrimaryContexts::of_process(), &primaries_);
}

// The engine's context is the primary context of the first device.
class PrimaryEndingTest : public FastPathTest {
 protected:
  void SetUp() override {
    FastPathTest::SetUp();
    use_fake_primaries(*driver_);
    fake_primaries.handles[kFirst] = context_->handle();
    primaries_ = &PrimaryContexts::of_process();
  }
  void TearDown() override {
    while (!primaries_->at_last_reference(kFirst)) {
      primaries_->release(kFirst, [] { return CUDA_SUCCESS; });
    }
    primaries_->release(kFirst, [] { return CUDA_SUCCESS; });
    FastPathTest::TearDown();
  }
  void retain_by_program() {
    CUcontext context = nullptr;
    primaries_->retain(kFirst, &context, [&] { return retain_fake(&context, kFirst); });
  }
  // Whether `release` waits for a thread inside the context.
  template <typename Release>
  bool waits_for_visitor(const Release& release) {
    std::atomic<bool> released{false};
    bool waited = false;
    std::thread other;
    {
      const ContextVisit visit(*context_);
      EXPECT_TRUE(visit);
      other = std::thread([&] {
        release();
        released = true;
      });
      for (int i = 0; i < 100 && !released; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      waited = !released;
    }
    other.join();
    return waited;
  }
  CUresult release_by_program() {
    return allocator_->endings().release_primary(kFirst, [] { return release_fake(kFirst); });
  }

  PrimaryContexts* primaries_ = nullptr;
};

TEST_F(PrimaryEndingTest, TheLastReleaseEndsTheContextWithNobodyInside) {
  retain_by_program();
  EXPECT_TRUE(waits_for_visitor([&] { EXPECT_EQ(release_by_program(), CUDA_SUCCESS); }));
  EXPECT_TRUE(context_->gone());
}

TEST_F(PrimaryEndingTest, AReleaseThatLeavesReferencesKeepsNobodyOut) {
  retain_by_program();
  retain_by_program();
  EXPECT_FALSE(waits_for_visitor([&] { EXPECT_EQ(release_by_program(), CUDA_SUCCESS); }));
  EXPECT_FALSE(context_->gone());
  EXPECT_TRUE(primaries_->at_last_reference(kFirst));
}

// The driver has references that no hook saw.
TEST_F(PrimaryEndingTest, AContextThatTheDriverKeepsIsNotGone) {
  retain_by_program();
  ++fake_primaries.references[kFirst];
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_FALSE(context_->gone());
}

TEST_F(PrimaryEndingTest, AReleaseBeforeTheLastCountedOneMayBeTheDriversLast) {
  retain_by_program();
  retain_by_program();
  --fake_primaries.references[kFirst];  // by a way that no hook sees
  EXPECT_FALSE(primaries_->at_last_reference(kFirst));
  EXPECT_EQ(release_by_program(), CUDA_SUCCESS);
  EXPECT_TRUE(context_->gone());
}

TEST_F(PrimaryEndingTest, ARefusedReleaseEndsNothing) {
  retain_by_program();
  const auto refuse = [] {
    fake_primaries.references[kFirst] = 0;  // for another reason
    return CUDA_ERROR_UNKNOWN;
  };
  EXPECT_EQ(allocator_->endings().release_primary(kFirst, refuse), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(context_->gone());
}

TEST_F(PrimaryEndingTest, AResetEndsTheContextWhateverItsReferences) {
  retain_by_program();
  retain_by_program();
  EXPECT_TRUE(waits_for_visitor([&] {
    EXPECT_EQ(allocator_->endings().reset_primary(kFirst, [] { return reset_fake(kFirst); }),
              CUDA_SUCCESS);
  }));
  EXPECT_TRUE(context_->gone());
}

TEST_F(PrimaryEndingTest, TheDriversCallIsMadeUnderTheLockOfItsDevice) {  // I8
  retain_by_program();
  retain_by_program();
  for (int i = 0; i < 2; ++i) {
    std::atomic<bool> entered{false};
    std::thread other;
    allocator_->endings().release_primary(kFirst, [&] {
      other = std::thread([&] {
        const auto lock = primaries_->lock(kFirst);
        entered = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(entered);
      return release_fake(kFirst);
    });
    other.join();
  }
}

TEST_F(PrimaryEndingTest, ADestroyedContextIsGoneIfTheDriverDestroyedIt) {
  const auto destroy = [&](CUcontext handle, CUresult result) {
    return allocator_->endings().destroy(handle, [&] { return result; });
  };
  EXPECT_EQ(destroy(context_->handle(), CUDA_ERROR_UNKNOWN), CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(context_->gone());
  EXPECT_EQ(destroy(reinterpret_cast<CUcontext>(0x3000), CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_FALSE(context_->gone()) << "another one, which is not served";
  EXPECT_EQ(destroy(context_->handle(), CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_TRUE(context_->gone());
}

}  // namespace
}  // namespace cupool::engine
