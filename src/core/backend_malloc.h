// The backend over the real cuMemAlloc: for devices without memory pools, and for programs whose
// peers need plain memory (CUPOOL_BACKEND=malloc).
#pragma once

#include "core/backend.h"
#include "cuda/driver.h"

namespace cupool::core {

class MallocBackend final : public Backend {
 public:
  explicit MallocBackend(const cuda::Driver& driver) : driver_(driver) {}

  BlockSource source() const override { return BlockSource::malloc; }
  CUresult allocate(Context& context, std::uint64_t capacity, CUdeviceptr* address) override;
  bool release(Context& context, CUdeviceptr address) override;

 private:
  const cuda::Driver& driver_;
};

}  // namespace cupool::core
