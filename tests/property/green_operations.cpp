// SPDX-License-Identifier: Apache-2.0
// Green contexts: streams and current contexts whose memory and code are the primary context's.
#include "machine.h"

namespace cupool::property {

// With all multiprocessors: which ones run a kernel is no matter here.
bool Machine::make_green() {
  CUdevResource all{};
  CUdevResourceDesc description = nullptr;
  return expect(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM),
                "cuDeviceGetDevResource") &&
         expect(cuDevResourceGenerateDesc(&description, &all, 1), "cuDevResourceGenerateDesc") &&
         expect(cuGreenCtxCreate(&green_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
                "cuGreenCtxCreate");
}

bool Machine::enter_green() {
  CUcontext converted = nullptr;
  return expect(cuCtxFromGreenCtx(&converted, green_), "cuCtxFromGreenCtx") &&
         expect(cuCtxSetCurrent(converted), "cuCtxSetCurrent");
}

void Machine::green_stream(const Operation& op) {
  StreamRef& slot = slots_of(op).streams[op.a % kStreams];
  if (captures_ || op.a < kFirstCreated || !slot.none() || !enter(0)) return;
  if (green_ == nullptr && !make_green()) return;
  StreamRef created;
  if (!expect(cuGreenCtxStreamCreate(&created.handle, green_, CU_STREAM_NON_BLOCKING, 0),
              "cuGreenCtxStreamCreate")) {
    return;
  }
  created.number = ++last_number_;
  created.non_blocking = true;
  slot = created;
}

// What a free waits for with a green context current is not documented: nothing is drawn from it.
void Machine::green_memory(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  if (green_ == nullptr || op.size == 0 || !enter(0)) return;
  if (block.address != 0 && (block.context != 0 || !await_guests(slots, block))) return;
  if (!enter_green()) return;
  if (block.address != 0) {
    disown(block);
    if (!expect(cuMemFree(block.address), "cuMemFree")) return own_again(block);
    block = Block{};
  }
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, op.size);
  const bool none = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (expect(none ? CUDA_SUCCESS : result, "cuMemAlloc") && !none) {
    adopt(block, address, op.size, 0);
  }
  enter(0);
}

// It covers the work of the green context alone (cuda.h): nothing is drawn from it.
void Machine::green_synchronize() {
  if (green_ == nullptr || !enter(0) || !enter_green()) return;
  expect(cuCtxSynchronize(), "cuCtxSynchronize");
  enter(0);
}

// Its streams go first: what names one later is refused.
void Machine::green_end() {
  if (green_ == nullptr || failed() || !enter(0)) return;
  for (Slots& slots : slots_) {
    for (StreamRef& stream : slots.streams) {
      CUgreenCtx owner = nullptr;
      if (stream.none() || stream.context != 0 ||
          cuStreamGetGreenCtx(stream.handle, &owner) != CUDA_SUCCESS || owner == nullptr) {
        continue;
      }
      expect(cuStreamDestroy(stream.handle), "cuStreamDestroy");
      lose_stream(slots, stream);
    }
  }
  expect(cuGreenCtxDestroy(green_), "cuGreenCtxDestroy");
  green_ = nullptr;
}

}  // namespace cupool::property
