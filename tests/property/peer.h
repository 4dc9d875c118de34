// SPDX-License-Identifier: Apache-2.0
// Another process that opens memory of the program's. It lives as long as the program's process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace cupool::property {

/// One order of the program, one answer of the other process.
struct PeerOrder {
  enum Verb : int { open, stamp, close };
  Verb verb = open;
  unsigned slot = 0;
  std::uint64_t words = 0;
  unsigned char handle[64] = {};
};
struct PeerAnswer {
  int code = 0;                       ///< of the CUDA call
  unsigned long long complaints = 0;  ///< of its judge
  char complaint[200] = {};
};

class Peer {
 public:
  ~Peer();
  /// False: there is no such process, or it has died.
  bool ask(const PeerOrder& order, PeerAnswer* answer);

 private:
  bool start();
  pid_t process_ = -1;
  int channel_ = -1;
};

/// In the other process: answers until the channel is closed.
int be_peer(int channel);

}  // namespace cupool::property
