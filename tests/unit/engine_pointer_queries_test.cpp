// SPDX-License-Identifier: Apache-2.0
// What pointer queries find, and how pool memory answers as memory of cuMemAlloc does (contract 6).
#include "engine/serve/pointer_queries.h"

#include <gtest/gtest.h>

#include "engine_pool_engine_fixture.h"

namespace cupool::engine {
namespace {

class PointerQueriesTest : public PoolEngineTest {
 protected:
  FoundMemory find(CUdeviceptr address) { return allocator_->queries().find(address); }
};

TEST_F(PointerQueriesTest, ABlockIsFoundByEveryByteOfTheRequest) {
  const CUdeviceptr address = allocate(700);
  for (const CUdeviceptr inside : {address, address + 1, address + 699}) {
    const FoundMemory found = find(inside);
    EXPECT_TRUE(found.served());
    EXPECT_FALSE(found.nobodys);
    ASSERT_NE(found.live, nullptr);
    EXPECT_EQ(found.live->address, address);
    EXPECT_EQ(found.requested(), 700u);
    EXPECT_EQ(found.context(), context_->handle());
  }
  EXPECT_TRUE(find(address + 700).nobodys) << "the block has more bytes than the program";
  EXPECT_FALSE(find(address + 700).served());
}

TEST_F(PointerQueriesTest, AFreedBlockIsNobodys) {
  const CUdeviceptr address = allocate(4096);
  free(address);
  for (const CUdeviceptr inside : {address, address + 100}) {
    EXPECT_TRUE(find(inside).nobodys);
    EXPECT_FALSE(find(inside).served());
  }
}

TEST_F(PointerQueriesTest, OtherMemoryIsTheDriversToAnswer) {
  CUdeviceptr passed = 0;
  Patience patience;
  ASSERT_EQ(allocator_->pass_through().allocate(
                4096, [] { return 4096; }, &passed, patience,
                [&] { return driver_->cuMemAlloc_v2(&passed, 4096); }),
            CUDA_SUCCESS);
  for (const CUdeviceptr other : {passed, passed + 4096, kForeign}) {
    EXPECT_FALSE(find(other).nobodys);
    EXPECT_FALSE(find(other).served());
  }
}

// The driver may refuse to say where memory begins.
TEST_F(PointerQueriesTest, WithoutTheDriverOnlyBlocksAreFoundByAByteInside) {
  const CUdeviceptr block = allocate(700);
  CUdeviceptr passed = 0;
  Patience patience;
  ASSERT_EQ(allocator_->pass_through().allocate(
                4096, [] { return 4096; }, &passed, patience,
                [&] { return driver_->cuMemAlloc_v2(&passed, 4096); }),
            CUDA_SUCCESS);
  driver_->cuMemGetAddressRange_v2 = [](CUdeviceptr*, std::size_t*, CUdeviceptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  };
  ASSERT_NE(find(block + 1).live, nullptr);
  EXPECT_EQ(find(block + 1).live->address, block);
  EXPECT_EQ(allocator_->queries().context_of_pool_memory(block + 1), context_->handle());
  EXPECT_FALSE(find(passed + 1).served()) << "the driver's to answer";
  EXPECT_FALSE(find(passed + 1).nobodys);
  EXPECT_EQ(allocator_->queries().context_of_pool_memory(passed + 1), nullptr);
}

TEST_F(PointerQueriesTest, MemoryOfAPoolAnswersAsLegacyMemory) {
  const FoundMemory found = find(allocate(700));
  CUcontext context = nullptr;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_CONTEXT, &context);
  EXPECT_EQ(context, context_->handle());
  std::size_t bytes = 1024;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_RANGE_SIZE, &bytes);
  EXPECT_EQ(bytes, 700u);
  auto pool = reinterpret_cast<CUmemoryPool>(0x10);
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, &pool);
  EXPECT_EQ(pool, nullptr);
  unsigned long long types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, &types);
  EXPECT_EQ(types, 0u);
  int shareable = 0;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, &shareable);
  EXPECT_EQ(shareable, 0) << "this driver gives no handles of pools";
  int ordinal = 7;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &ordinal);
  EXPECT_EQ(ordinal, 7) << "in this the two do not differ";
}

TEST_F(PointerQueriesTest, MemoryOfAnotherProcessAnswersAsLegacyMemory) {
  FoundMemory found;
  const auto importer = reinterpret_cast<CUcontext>(0x100);
  found.imported = IpcImports::Seen{importer, 4096};
  EXPECT_TRUE(found.served());
  CUcontext context = nullptr;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_CONTEXT, &context);
  EXPECT_EQ(context, importer);
  std::size_t bytes = 0;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_RANGE_SIZE, &bytes);
  EXPECT_EQ(bytes, 4096u);
  bool shareable = false;
  found.answer_as_legacy(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, &shareable);
  EXPECT_FALSE(shareable) << "it is the exporter's to share";
}

TEST_F(PointerQueriesTest, TheDriversAnswerForOtherMemoryStays) {
  const FoundMemory other = find(kForeign);
  std::size_t bytes = 1024;
  for (const auto attribute : {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT,
                               CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE}) {
    other.answer_as_legacy(attribute, &bytes);
    EXPECT_EQ(bytes, 1024u);
  }
}

TEST_F(PointerQueriesTest, RowsArePaddedAsTheDriverHasPaddedOne) {
  PointerQueries& queries = allocator_->queries();
  EXPECT_FALSE(queries.known_layout(700, 3)) << "the driver has not answered yet";
  queries.learn_pitch(100, kAlignment);
  const auto layout = queries.known_layout(700, 3);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->pitch, 2 * kAlignment);
  EXPECT_EQ(layout->bytes, 6 * kAlignment);
  EXPECT_FALSE(queries.known_layout(0, 3));
  EXPECT_FALSE(queries.known_layout(700, 0));
  EXPECT_FALSE(queries.known_layout(700, ~std::uint64_t{0})) << "more bytes than there are numbers";
  EXPECT_FALSE(queries.known_layout(~std::uint64_t{0}, 1));
  queries.learn_pitch(100, 128);
  EXPECT_FALSE(queries.known_layout(700, 3)) << "this driver pads in another way";
  queries.learn_pitch(100, kAlignment);
  EXPECT_FALSE(queries.known_layout(700, 3)) << "for good";
}

}  // namespace
}  // namespace cupool::engine
