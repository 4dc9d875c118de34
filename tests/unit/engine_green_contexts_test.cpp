// SPDX-License-Identifier: Apache-2.0
// A green context is its primary one, as far as contexts are told by their handle (contract 10).
#include "engine/context/green_contexts.h"

#include <gtest/gtest.h>

#include "engine_context_registry_fixture.h"

namespace cupool::engine {
namespace {

const auto green = reinterpret_cast<void*>(0x10);
const auto converted = reinterpret_cast<CUcontext>(0x20);
const auto primary = reinterpret_cast<CUcontext>(0x30);

TEST(GreenContextsTest, OneIsKnownUntilItEnds) {
  GreenContexts greens;
  EXPECT_EQ(greens.primary_of(converted), converted);
  EXPECT_TRUE(greens.add(green, {converted, primary, 3}));
  EXPECT_EQ(greens.primary_of(converted), primary);
  EXPECT_EQ(greens.primary_of(primary), primary);
  EXPECT_FALSE(greens.find(primary).has_value());
  const auto known = greens.find(green);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->device, 3);
  greens.remove(green);
  EXPECT_EQ(greens.primary_of(converted), converted);
  EXPECT_FALSE(greens.find(green).has_value());
}

TEST(GreenContextsTest, OneEndsWithItsPrimaryContextButItsReferenceStays) {
  GreenContexts greens;
  greens.add(green, {converted, primary, 3});
  greens.primary_ended(converted);
  EXPECT_EQ(greens.primary_of(converted), primary);
  greens.primary_ended(primary);
  EXPECT_EQ(greens.primary_of(converted), converted) << "another context's by now";
  EXPECT_EQ(greens.primary_of(nullptr), nullptr) << "no context is current";
  EXPECT_TRUE(greens.find(green).has_value());
}

using GreenContextTest = ContextRegistryTest;

TEST_F(GreenContextTest, ItsMemoryIsThatOfThePrimaryContext) {
  Context* const own = enter_new();
  const CUcontext handle = new_handle();
  GreenContexts::of_process().add(green, {handle, own->handle(), 0});
  set_current(handle);
  EXPECT_EQ(registry_.current(), own);
  EXPECT_EQ(registry_.current_for_certain(), own);
  set_current(enter_new()->handle());
  EXPECT_EQ(registry_.find_living(handle), own) << "by a stream";
  GreenContexts::of_process().remove(green);
  registry_.forget_found();
  set_current(handle);
  EXPECT_NE(registry_.current(), own) << "the handle has come again";
}

}  // namespace
}  // namespace cupool::engine
