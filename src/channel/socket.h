// SPDX-License-Identifier: Apache-2.0
// The sockets between processes. Every call has a deadline. A forked child closes the sockets
// (util/descriptor.h), because an open copy would keep a lease alive.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "util/descriptor.h"

namespace cupool::channel {

/// Longest wait for the other process. An exporter answers from a dedicated thread, so one that
/// takes this long is stopped or dead.
constexpr std::uint64_t kPatienceNs = 5'000'000'000;

using util::Descriptor;
using util::KnownFile;

/// A socket that listens under `name`; invalid on failure (see errno).
Descriptor listen_at(std::uint64_t name);

Descriptor listen_at(const char* name);

/// A connection to the process that listens under `name`. Invalid: no such process, or the deadline
/// has passed (0: one attempt).
Descriptor connect_to(std::uint64_t name, std::uint64_t deadline_ns);
Descriptor connect_to(const char* name, std::uint64_t deadline_ns);

/// The next connection of a process of the same user, or an invalid one. `more` tells whether
/// another one may wait.
Descriptor accept_own(const Descriptor& listener, bool* more);

/// The process at the other end and its effective user, at the time it connected or listened.
struct Peer {
  pid_t process = 0;  ///< 0: not visible from here
  uid_t user = 0;
};
bool peer_of(int socket, Peer* peer);

/// A descriptor that becomes readable when the process ends. Invalid: see errno; ESRCH: already
/// ended.
Descriptor watch_process(pid_t process);

/// Whether a process of effective user `peer` may have memory of one of user `own`.
bool admits(uid_t own, uid_t peer);

enum class Transfer { done, late, ended };

/// Sends one message, with a descriptor if `file` is one. Transfer::late: it did not fit into the
/// socket by the deadline (0: one attempt).
Transfer send_message(int socket, const void* message, std::size_t bytes, int file,
                      std::uint64_t deadline_ns);

/// Receives one message of exactly `bytes`. If `file` is null, closes all descriptors that come
/// with it; otherwise a single descriptor goes to `*file`, which may stay invalid. A message of
/// another size, or with more than one descriptor, is Transfer::ended, and its descriptors are
/// closed.
Transfer receive_message(int socket, void* message, std::size_t bytes, Descriptor* file,
                         std::uint64_t deadline_ns);

/// Fills `bytes` from the kernel's generator. False: it has no random numbers.
bool fill_random(void* bytes, std::size_t count);

/// Whether the other end has closed the connection.
bool has_ended(int socket);

}  // namespace cupool::channel
