// SPDX-License-Identifier: Apache-2.0
// cudaFreeAsync of cupool's memory (contract 12): which streams are refused, and what happens to
// the block if nothing can be ordered behind the stream. And the modes that a free policy goes
// through (contract 8).
#include <gtest/gtest.h>

#include "cuda/scopes.h"
#include "engine/serve/free_policy.h"
#include "engine_fast_path_fixture.h"

namespace cupool::engine {
namespace {

class StreamOrderedFreeTest : public FastPathTest {
 protected:
  static constexpr std::uint64_t kBlock = 64 << 10;
  static inline std::vector<CUresult> answers;  // of the driver about the stream; then success
  static inline bool has_context = true;
  static inline CUresult synchronised = CUDA_SUCCESS;
  static inline CUresult stream_state = CUDA_SUCCESS;
  static inline int queries = 0;
  static inline const CUstream kStream = reinterpret_cast<CUstream>(0x70000);

  void SetUp() override {
    answers.clear();
    has_context = true;
    synchronised = CUDA_SUCCESS;
    stream_state = CUDA_SUCCESS;
    queries = 0;
    FastPathTest::SetUp();
    block_ = allocate(kBlock);
  }
  static CUresult next_answer() {
    if (answers.empty()) return CUDA_SUCCESS;
    const CUresult answer = answers.front();
    answers.erase(answers.begin());
    return answer;
  }
  cuda::Driver make_driver() override {
    cuda::Driver driver = test::fake_driver();
    driver.cuCtxGetCurrent = [](CUcontext* context) {
      *context = has_context ? test::fake::context() : nullptr;
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetCtx = [](CUstream, CUcontext* context) {
      *context = test::fake::context();
      return next_answer();
    };
    driver.cuStreamSynchronize = [](CUstream) { return synchronised; };
    driver.cuStreamQuery = [](CUstream) {
      ++queries;
      EXPECT_TRUE(cuda::RelaxedCaptureScope::is_open());
      EXPECT_TRUE(ContextVisit::any_of_this_thread()) << "its end is held off";
      return stream_state;
    };
    return driver;
  }
  std::optional<CUresult> free_in(CUstream stream) {
    return allocator_->frees().try_free_in_stream(block_, stream);
  }
  CUdeviceptr block_ = 0;
};

TEST_F(StreamOrderedFreeTest, TheStreamsRefusalIsTheAnswerAndTheBlockStays) {  // contract 3
  const CUresult refusals[] = {CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT,
                               CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED};
  for (const CUresult refusal : refusals) {
    answers = {refusal, refusal};
    EXPECT_EQ(free_in(kStream), refusal);
    EXPECT_EQ(now(Gauge::application_bytes), static_cast<std::int64_t>(kBlock));
  }
  EXPECT_EQ(count(Counter::free_rejected_total), std::size(refusals));
  EXPECT_EQ(free_in(kStream), CUDA_SUCCESS);
  EXPECT_EQ(now(Gauge::application_bytes), 0);
  expect_identity();
}

TEST_F(StreamOrderedFreeTest, ARefusalMayPassOrSayNothingOfTheStream) {
  answers = {CUDA_ERROR_INVALID_HANDLE};
  EXPECT_EQ(free_in(kStream), CUDA_SUCCESS) << "asked once more";
  block_ = allocate(kBlock);
  answers = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
  EXPECT_EQ(free_in(kStream), CUDA_SUCCESS) << "nothing is known against it";
}

// The stream may be one of another context than the block.
TEST_F(StreamOrderedFreeTest, AStreamOfAFailedContextAnswersItsError) {  // I7
  ASSERT_EQ(free_in(kStream), CUDA_SUCCESS);
  block_ = allocate(kBlock);
  stream_state = CUDA_ERROR_LAUNCH_FAILED;
  context_->set_poisoned();
  for (const CUstream stream : {kStream, CUstream{nullptr}}) {
    EXPECT_EQ(free_in(stream), CUDA_ERROR_LAUNCH_FAILED);
  }
  EXPECT_EQ(now(Gauge::application_bytes), static_cast<std::int64_t>(kBlock));
}

TEST_F(StreamOrderedFreeTest, NoStreamOfAFailedContextIsAskedDuringACapture) {  // contract 9
  context_->set_poisoned();
  Serving::capture_begins();
  EXPECT_EQ(free_in(kStream), CUDA_SUCCESS) << "the driver's answer about the block";
  Serving::captures_end(1);
  EXPECT_EQ(queries, 0);
}

TEST_F(StreamOrderedFreeTest, ADefaultStreamNeedsAContext) {  // contract 3
  has_context = false;
  EXPECT_EQ(free_in(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(free_in(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(free_in(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
  has_context = true;
  EXPECT_EQ(free_in(nullptr), CUDA_SUCCESS);
}

TEST_F(StreamOrderedFreeTest, MemoryThatIsNotCupoolsIsTheDrivers) {
  block_ = 0x1000;
  answers = {CUDA_ERROR_INVALID_HANDLE};
  EXPECT_EQ(free_in(kStream), std::nullopt);
  EXPECT_EQ(answers.size(), 1u) << "nothing is asked about the stream";
}

// The block cannot be proven unused any more.
TEST_F(StreamOrderedFreeTest, ABlockBehindAStreamThatNobodyCanWaitForIsSetAside) {  // I1
  answers = std::vector<CUresult>(4, CUDA_ERROR_UNKNOWN);  // nor is the stream's context told
  synchronised = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(free_in(kStream), CUDA_SUCCESS);
  context_->threads().drain(Drain::all);
  Patience patience;
  allocator_->out_of_memory().give_back_idle(*context_, patience);
  EXPECT_EQ(now(Gauge::retired_bytes), static_cast<std::int64_t>(kBlock)) << "for good";
  EXPECT_EQ(allocator_->frees().try_free(block_), CUDA_ERROR_INVALID_VALUE) << "it was freed";
}

using Others = FreePolicy::Others;

TEST(FreePolicyTest, OthersDecideWhatAutoMeans) {
  FreePolicy policy(config::FreeMode::automatic);
  EXPECT_FALSE(policy.knows_of_others());
  EXPECT_TRUE(policy.awaits_messages());
  EXPECT_TRUE(policy.waits_for_host_work());
  policy.let_see(Others::by_messages_unseen);
  EXPECT_EQ(policy.mode(), config::FreeMode::sync) << "until a call of MPI was seen";
  EXPECT_TRUE(policy.awaits_messages());
  EXPECT_TRUE(policy.knows_of_others());
  policy.let_see(Others::by_messages);
  EXPECT_EQ(policy.mode(), config::FreeMode::automatic);
  EXPECT_FALSE(policy.awaits_messages());
  EXPECT_TRUE(policy.knows_of_others());
  EXPECT_TRUE(policy.waits_for_host_work());
  policy.let_see(Others::at_any_time);
  EXPECT_EQ(policy.mode(), config::FreeMode::sync);
  EXPECT_FALSE(policy.awaits_messages());
  EXPECT_FALSE(policy.waits_for_host_work());
  policy.let_see(Others::by_messages);
  EXPECT_EQ(policy.mode(), config::FreeMode::sync) << "for good";
}

TEST(FreePolicyTest, OthersDoNotDecideWhereTheUserHas) {
  FreePolicy ordered(config::FreeMode::ordered);
  ordered.let_see(Others::at_any_time);
  EXPECT_EQ(ordered.mode(), config::FreeMode::ordered);
  EXPECT_FALSE(ordered.awaits_messages());
  EXPECT_FALSE(ordered.knows_of_others());
  FreePolicy sync(config::FreeMode::sync);
  sync.let_see(Others::by_messages);
  EXPECT_EQ(sync.mode(), config::FreeMode::sync);
  EXPECT_TRUE(sync.knows_of_others());
}

}  // namespace
}  // namespace cupool::engine
