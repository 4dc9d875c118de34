// SPDX-License-Identifier: Apache-2.0
// The backend over the real cuMemAlloc: for devices without memory pools, and for programs whose
// peers need plain memory (CUPOOL_BACKEND=malloc).
#pragma once

#include "cuda/driver.h"
#include "engine/backend/backend.h"

namespace cupool::engine {

class MallocBackend final : public Backend {
 public:
  explicit MallocBackend(const cuda::Driver& driver) : driver_(driver) {}

  BlockSource source() const override { return BlockSource::malloc; }
  CUresult allocate(StreamSource& context, std::uint64_t capacity, CUdeviceptr* address) override;
  /// No further attempt: the driver has no more memory.
  CUresult allocate_last(StreamSource&, std::uint64_t, CUdeviceptr*) override {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  bool release(StreamSource& context, CUdeviceptr address) override;
  bool release_in_stream(StreamSource& context, CUdeviceptr address) override;

 private:
  const cuda::Driver& driver_;
};

}  // namespace cupool::engine
