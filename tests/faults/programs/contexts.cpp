// SPDX-License-Identifier: Apache-2.0
// Two devices, several contexts on one of them, memory that is freed from elsewhere, copies between
// the devices, contexts that end with memory in them, and a reset (contract 7 and 10).
#include <cuda.h>

#include "tolerant.h"

namespace {

using faults::Block;
using faults::ledger;

bool allocate(size_t size, Block* block) {
  CUdeviceptr p = 0;
  if (!TRY(cuMemAlloc_v2, &p, size)) return false;
  *block = Block{p, size, -1};
  ledger().add(p, size);
  return true;
}

bool release(const Block& block) {
  ledger().remove(block);
  if (TRY(cuMemFree_v2, block.address)) return true;
  ledger().put_back(block);
  return false;
}

void fill(Block* block, int value, CUstream stream) {
  const auto byte = static_cast<unsigned char>(value);
  block->value = TRY(cuMemsetD8Async, block->address, byte, block->size, stream) ? value : -1;
}

void check(const Block& block, CUstream stream) {
  unsigned char* host = ledger().host_bytes(block.size);
  if (TRY(cuMemcpyDtoHAsync_v2, host, block.address, block.size, stream) &&
      TRY(cuStreamSynchronize, stream)) {
    ledger().check(host, block);
  }
}

void use(CUcontext context, int value) {
  if (context == nullptr || !TRY(cuCtxSetCurrent, context)) return;
  CUstream stream = nullptr;
  if (!TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING)) return;
  for (int i = 0; i < 8; ++i) {
    Block block;
    if (!allocate(size_t{900} << (2 * i % 13), &block)) continue;
    CUcontext of_pointer = nullptr;
    if (TRY(cuPointerGetAttribute, &of_pointer, CU_POINTER_ATTRIBUTE_CONTEXT, block.address) &&
        of_pointer != context) {
      ledger().wrong("context of a pointer");
    }
    fill(&block, value + i, stream);
    check(block, stream);
    fill(&block, 0xEE, stream);
    release(block);
  }
  TRY(cuStreamDestroy_v2, stream);
}

// A free that failed is made again; the context is about to go with what is left.
void release_again() {
  for (const Block& block : ledger().take_not_freed()) release(block);
  for (const Block& block : ledger().take_not_freed()) ledger().remove(block);
}

// A block that goes with its context: nobody owns it afterwards.
void destroy(CUcontext context) {
  if (context == nullptr) return;
  Block lost;
  const bool have = TRY(cuCtxSetCurrent, context) && allocate(1 << 20, &lost);
  if (!TRY(cuCtxDestroy_v2, context)) TRY(cuCtxDestroy_v2, context);
  if (have) ledger().remove(lost);
}

void contexts_of_one_device(CUdevice device, int round) {
  CUctxCreateParams parameters{};
  CUcontext a = nullptr;
  CUcontext b = nullptr;
  if (!TRY(cuCtxCreate_v4, &a, &parameters, 0, device)) a = nullptr;
  if (!TRY(cuCtxCreate_v4, &b, &parameters, 0, device)) b = nullptr;
  use(a, 10 + round);
  use(b, 60 + round);
  Block kept;
  if (a != nullptr && b != nullptr && TRY(cuCtxSetCurrent, a) && allocate(1 << 20, &kept)) {
    TRY(cuCtxSetCurrent, b);
    release(kept);  // freed while another context is current
  }
  release_again();
  destroy(a);
  use(b, 110 + round);
  release_again();
  destroy(b);
}

// Contract 7: without peer access, in both directions.
void copy_between(CUcontext from_context, CUcontext to_context, int value) {
  Block from;
  Block to;
  const bool have_from = TRY(cuCtxSetCurrent, from_context) && allocate(100'000, &from);
  const bool have_to = TRY(cuCtxSetCurrent, to_context) && allocate(100'000, &to);
  if (have_from && have_to) {
    // The stream that is waited for belongs to the context that is current.
    const bool filled =
        TRY(cuCtxSetCurrent, from_context) &&
        TRY(cuMemsetD8_v2, from.address, static_cast<unsigned char>(value), from.size) &&
        TRY(cuCtxSynchronize);
    // The host does not wait for a copy between devices.
    if (filled && TRY(cuMemcpyPeer, to.address, to_context, from.address, from_context, to.size) &&
        TRY(cuCtxSynchronize)) {
      to.value = value;
      if (TRY(cuCtxSetCurrent, to_context)) check(to, nullptr);
    }
  }
  if (have_to) release(to);
  if (have_from) release(from);
}

}  // namespace

int main() {
  CUdevice devices[2] = {};
  CUcontext primary[2] = {};
  if (!TRY(cuInit, 0) && !TRY(cuInit, 0)) return ledger().report();
  for (int i = 0; i < 2; ++i) {
    if (!TRY(cuDeviceGet, &devices[i], i)) return ledger().report();
    if (!TRY(cuDevicePrimaryCtxRetain, &primary[i], devices[i])) return ledger().report();
  }
  for (int round = 0; round < 2; ++round) {
    contexts_of_one_device(devices[0], round);
    use(primary[0], 160 + round);
    use(primary[1], 190 + round);
    copy_between(primary[0], primary[1], 0x41 + round);
    copy_between(primary[1], primary[0], 0x51 + round);
    release_again();
    TRY(cuCtxSetCurrent, primary[1]);
    Block lost;
    const bool have = allocate(5 << 20, &lost);
    if (TRY(cuDevicePrimaryCtxReset_v2, devices[1]) && have) ledger().remove(lost);
    if (!TRY(cuCtxSetCurrent, nullptr)) TRY(cuCtxSetCurrent, nullptr);
    TRY(cuDevicePrimaryCtxRetain, &primary[1], devices[1]);
  }
  return ledger().report();
}
