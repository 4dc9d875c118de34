// SPDX-License-Identifier: Apache-2.0
// Both ends of the channel. The other process is this program again, under the same library.
#include "peer.h"

#include <cupool_sim.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "calls.h"
#include "program.h"

namespace cupool::property {

Peer::~Peer() {
  if (process_ <= 0) return;
  close(channel_);
  waitpid(process_, nullptr, 0);
}

bool Peer::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  process_ = fork();
  if (process_ == 0) {
    fcntl(ends[1], F_SETFD, 0);
    const std::string channel = std::to_string(ends[1]);
    execl("/proc/self/exe", "property_programs", "--peer", channel.c_str(), nullptr);
    _exit(99);
  }
  close(ends[1]);
  channel_ = ends[0];
  return process_ > 0;
}

bool Peer::ask(const PeerOrder& order, PeerAnswer* answer) {
  if (process_ <= 0 && !start()) return false;
  return send(channel_, &order, sizeof order, MSG_NOSIGNAL) == sizeof order &&
         recv(channel_, answer, sizeof *answer, 0) == sizeof *answer;
}

int be_peer(int channel) {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction stamp = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr blocks[kLentBlocks] = {};
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuModuleLoadData(&module, "") != CUDA_SUCCESS ||
      cuModuleGetFunction(&stamp, module, "stamp_u32") != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return 1;
  }
  PeerOrder order;
  while (recv(channel, &order, sizeof order, 0) == sizeof order) {
    PeerAnswer answer;
    CUdeviceptr& block = blocks[order.slot % kLentBlocks];
    CUresult result = CUDA_SUCCESS;
    if (order.verb == PeerOrder::open) {
      CUipcMemHandle handle;
      std::memcpy(&handle, order.handle, sizeof handle);
      result = cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    } else if (order.verb == PeerOrder::stamp) {
      std::uint32_t value = 7;
      void* arguments[] = {&block, &order.words, &value};
      result = cuLaunchKernel(stamp, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
    } else {
      result = cuIpcCloseMemHandle(block);
    }
    answer.code = static_cast<int>(result);
    answer.complaints = cupoolSimComplaints();
    std::snprintf(answer.complaint, sizeof answer.complaint, "%s", cupoolSimLastComplaint());
    if (send(channel, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) break;
  }
  return 0;
}

}  // namespace cupool::property
