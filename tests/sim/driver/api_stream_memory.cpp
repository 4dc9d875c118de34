// SPDX-License-Identifier: Apache-2.0
// Exported: stream memory operations that write. Those that wait, and captures of any, are not
// modelled.
#include <cstdint>

#include "driver/copy.h"

namespace cupool::sim {

namespace {

CUresult write_in(Entry& in, Stream& stream, CUdeviceptr to, uint64_t value, size_t bytes) {
  return fill(in, stream, Towards::host_goes_on, to, 0, value, bytes, 1, 1);
}

CUresult write(Entry& in, CUstream handle, CUdeviceptr to, uint64_t value, size_t bytes) {
  Stream* stream = nullptr;
  const CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return write_in(in, *stream, to, value, bytes);
}

bool is_write(const CUstreamBatchMemOpParams& operation) {
  return operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
         operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

CUresult batch(Entry& in, CUstream handle, unsigned count, CUstreamBatchMemOpParams* operations) {
  Stream* stream = nullptr;
  CUresult result = in.stream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_write(operations[i])) return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    const auto& one = operations[i].writeValue;
    const bool narrow = operations[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32;
    result = narrow ? write_in(in, *stream, one.address, one.value, 4)
                    : write_in(in, *stream, one.address, one.value64, 8);
  }
  return result;
}

}  // namespace

#define SIM_WRITE(symbol, twin, type)                                                  \
  SIM_TWINS(symbol, twin, (CUstream stream, CUdeviceptr to, type value, unsigned int), \
            write(in, stream, to, value, sizeof(type)))
#define SIM_BATCH(symbol, twin)                                                                  \
  SIM_TWINS(symbol, twin,                                                                        \
            (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* list, unsigned int), \
            batch(in, stream, count, list))

SIM_WRITE(cuStreamWriteValue32, cuStreamWriteValue32_ptsz, cuuint32_t)
SIM_WRITE(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, cuuint32_t)
SIM_WRITE(cuStreamWriteValue64, cuStreamWriteValue64_ptsz, cuuint64_t)
SIM_WRITE(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, cuuint64_t)
SIM_BATCH(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz)
SIM_BATCH(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz)

}  // namespace cupool::sim
