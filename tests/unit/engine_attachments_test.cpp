// SPDX-License-Identifier: Apache-2.0
// Attachments to contexts: which detach is the one that destroys (contract 10).
#include "engine/context/attachments.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "empty_heap.h"

namespace cupool::engine {
namespace {

class AttachmentsTest : public testing::Test {
 protected:
  const CUcontext one_ = reinterpret_cast<CUcontext>(0x1000);
  const CUcontext other_ = reinterpret_cast<CUcontext>(0x2000);
  Attachments attachments_;
};

TEST_F(AttachmentsTest, EachIsLeftUntilItsDetach) {
  EXPECT_FALSE(attachments_.any(one_));
  attachments_.add(one_);
  attachments_.add(one_);
  EXPECT_TRUE(attachments_.any(one_));
  EXPECT_FALSE(attachments_.any(other_)) << "each context has its own";
  attachments_.remove(one_);
  EXPECT_TRUE(attachments_.any(one_));
  attachments_.remove(one_);
  EXPECT_FALSE(attachments_.any(one_)) << "the next detach destroys";
}

TEST_F(AttachmentsTest, ADetachBeyondThemTakesNoneOfTheNext) {
  attachments_.remove(one_);
  attachments_.add(one_);
  EXPECT_TRUE(attachments_.any(one_));
  attachments_.remove(one_);
  EXPECT_FALSE(attachments_.any(one_));
}

TEST_F(AttachmentsTest, AContextThatIsGoneLeavesNoneToWhoeverHasItsHandle) {
  attachments_.add(one_);
  attachments_.add(one_);
  attachments_.add(other_);
  attachments_.forget(one_);
  EXPECT_FALSE(attachments_.any(one_));
  EXPECT_TRUE(attachments_.any(other_));
  attachments_.add(one_);
  attachments_.remove(one_);
  EXPECT_FALSE(attachments_.any(one_));
}

TEST_F(AttachmentsTest, ThreadsLoseNone) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) attachments_.add(one_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int n = 1; n < kThreads * kEach; ++n) attachments_.remove(one_);
  EXPECT_TRUE(attachments_.any(one_));
  attachments_.remove(one_);
  EXPECT_FALSE(attachments_.any(one_));
}

// A detach that is taken for the end of a living context would give its memory away; one that is
// not, where it is the end, would keep memory of a context that is gone.
TEST_F(AttachmentsTest, BeyondThePlacesEachContextHasItsOwnCount) {
  const auto context = [](std::size_t number) {
    return reinterpret_cast<CUcontext>((number + 1) << 12);
  };
  constexpr std::size_t kMany = Attachments::kUsual + 3;
  for (std::size_t i = 0; i < kMany; ++i) attachments_.add(context(i));
  attachments_.add(context(kMany - 1));
  for (std::size_t i = 0; i < kMany; ++i) {
    EXPECT_TRUE(attachments_.any(context(i)));
    attachments_.remove(context(i));
    EXPECT_EQ(attachments_.any(context(i)), i == kMany - 1);
  }
  attachments_.remove(context(kMany - 1));
  EXPECT_FALSE(attachments_.any(context(kMany - 1)));
}

TEST_F(AttachmentsTest, WithoutHostMemoryNoDetachIsTakenForTheLast) {
  const auto context = [](std::size_t number) {
    return reinterpret_cast<CUcontext>((number + 1) << 12);
  };
  const test::EmptyHeap empty;
  for (std::size_t i = 0; i < Attachments::kUsual; ++i) attachments_.add(context(i));
  attachments_.remove(context(3));
  EXPECT_FALSE(attachments_.any(context(3)));
  attachments_.add(context(Attachments::kUsual));
  EXPECT_TRUE(attachments_.any(context(Attachments::kUsual))) << "in the place of another one";
  EXPECT_FALSE(attachments_.any(context(3)));
  attachments_.add(context(3));
  attachments_.remove(context(3));
  EXPECT_TRUE(attachments_.any(context(3))) << "how many are left is not known";
}

TEST_F(AttachmentsTest, TheProcessHasOne) {
  Attachments::of_process().add(one_);
  EXPECT_TRUE(Attachments::of_process().any(one_));
  Attachments::of_process().forget(one_);
}

}  // namespace
}  // namespace cupool::engine
