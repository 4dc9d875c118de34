// SPDX-License-Identifier: Apache-2.0
// Blocks that another process opens and works on (contract 8). Its work is late, too, and the
// judges of both processes see whose memory it touches. The program frees when it likes. Nothing
// orders the two processes' work, so what a block holds is unknown until the other one has closed
// it.
#include <cupool_sim.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "machine.h"

namespace cupool::property {

bool Machine::ask_peer(const PeerOrder& order, PeerAnswer* answer) {
  const std::lock_guard<std::mutex> lock(peer_mutex_);
  if (!peer_.ask(order, answer)) {
    fail("the other process died");
    return false;
  }
  if (answer->complaints != peer_complaints_) {
    peer_complaints_ = answer->complaints;
    fail(std::string("the other process's judge (contract 8): ") + answer->complaint);
  }
  return answer->code == 0;
}

void Machine::lend(const Operation& op) {
  Slots& slots = slots_of(op);
  Block& block = slots.blocks[op.a % kBlocks];
  LentBlock& lent = slots.lent_blocks[op.b % kLentBlocks];
  // Without cupool, a free of memory that another process has open is the program's mistake.
  if (concurrent_ || !late_ || captures_ || std::getenv("CUPOOL_TEST_ALONE") != nullptr) return;
  if (block.address == 0 || block.context != 0 || lent.address != 0) return;
  if (block.checked || !enter(0)) return;  // a pending check must not meet the other's writes
  PeerOrder order;
  CUipcMemHandle handle;
  const unsigned long long asked = cupoolSimCalls("cuIpcGetMemHandle");
  const CUresult result = cuIpcGetMemHandle(&handle, block.address);
  if (result == CUDA_ERROR_INVALID_VALUE) return;  // pool memory cannot be exported this way
  if (!expect(result, "cuIpcGetMemHandle")) return;
  block.shared = true;
  // Of plain memory the driver's handle: nobody knows of importers, as without cupool.
  if (cupoolSimCalls("cuIpcGetMemHandle") != asked) return;
  std::memcpy(order.handle, &handle, sizeof order.handle);
  order.slot = op.b % kLentBlocks;
  PeerAnswer answer;
  if (!ask_peer(order, &answer)) return;
  lent.address = block.address;
  lent.size = block.size;
  lent.owner = block.owner;
}

bool Machine::lend_once(CUdeviceptr address) {
  PeerOrder order;
  CUipcMemHandle handle;
  const unsigned long long asked = cupoolSimCalls("cuIpcGetMemHandle");
  if (cuIpcGetMemHandle(&handle, address) != CUDA_SUCCESS) return false;
  if (cupoolSimCalls("cuIpcGetMemHandle") != asked) return true;
  std::memcpy(order.handle, &handle, sizeof order.handle);
  PeerAnswer answer;
  if (!ask_peer(order, &answer)) return false;
  order.verb = PeerOrder::close;
  return ask_peer(order, &answer);
}

bool Machine::is_lent(const Slots& slots, const Block& block) {
  return std::any_of(std::begin(slots.lent_blocks), std::end(slots.lent_blocks),
                     [&](const LentBlock& lent) {
                       return lent.address == block.address && lent.owner == block.owner;
                     });
}

void Machine::lent_stamp(const Operation& op) {
  const LentBlock& lent = slots_of(op).lent_blocks[op.b % kLentBlocks];
  if (lent.address == 0 || lent.size < 4) return;
  PeerOrder order;
  order.verb = PeerOrder::stamp;
  order.slot = op.b % kLentBlocks;
  order.words = std::min<std::uint64_t>(lent.size / 4, 64);
  PeerAnswer answer;
  if (!ask_peer(order, &answer) && !failed()) fail("a kernel of the other process failed");
}

void Machine::lent_close(const Operation& op) {
  Slots& slots = slots_of(op);
  const unsigned slot = op.b % kLentBlocks;
  if (slots.lent_blocks[slot].address != 0) close_lent(slots, slot);
}

// The last close waits for the other process's work. So what the program writes next stays.
void Machine::close_lent(Slots& slots, unsigned slot) {
  LentBlock& lent = slots.lent_blocks[slot];
  PeerOrder order;
  order.verb = PeerOrder::close;
  order.slot = slot;
  PeerAnswer answer;
  if (!ask_peer(order, &answer) && !failed()) fail("the other process could not close a block");
  for (Block& block : slots.blocks) {
    if (block.address != 0 && block.owner == lent.owner) block.known = false;
  }
  lent = LentBlock{};
}

}  // namespace cupool::property
