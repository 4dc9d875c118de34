// Sockets and other descriptors of IPC: closed at exec by their flag, in a forked child by a table
// of them (a child that kept a connection open would keep a lease alive), and never blocking
// without end: every call has a deadline.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace cupool::core::ipc {

/// How long a process waits for the other one before it gives up. An exporter answers from a thread
/// that does nothing else; if it takes this long it is stopped or dead.
constexpr std::uint64_t kPatienceNs = 5'000'000'000;

/// Owns a descriptor, and has it closed in forked children. Movable. Not thread-safe by itself.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over `file` (negative: none). If the table for forked children is full it is closed.
  explicit Descriptor(int file);
  Descriptor(Descriptor&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }

  int get() const { return file_; }
  bool valid() const { return file_ >= 0; }
  void reset();
  /// Gives up what somebody else has closed: the number may be another file's by now.
  void forget();

 private:
  int file_ = -1;
};

/// Closes what the parent had open. For a handler of fork(): touches no lock and no heap.
void close_in_child();

/// A socket that listens under `name`; invalid on failure (errno says why).
Descriptor listen_at(std::uint64_t name);

/// A connection to the process that listens under `name`. Invalid: nobody does, or the deadline
/// has passed.
Descriptor connect_to(std::uint64_t name, std::uint64_t deadline_ns);

/// The process at the other end and its effective user, as it was when it connected or listened.
struct Peer {
  pid_t process = 0;  ///< 0: not to be seen from here
  uid_t user = 0;
};
bool peer_of(int socket, Peer* peer);

/// A descriptor that becomes readable when the process has ended. Invalid: errno says why, ESRCH
/// that it has ended already.
Descriptor watch_process(pid_t process);

/// Whether a process of effective user `peer` may have memory of one of `own`.
bool admits(uid_t own, uid_t peer);

enum class Transfer { done, late, ended };

/// Sends one message, and with it a descriptor if `file` is one. late: it did not fit in until the
/// deadline (0: at once).
Transfer send_message(int socket, const void* message, std::size_t bytes, int file,
                      std::uint64_t deadline_ns);

/// Receives one message of exactly `bytes`. Descriptors that come with it are dropped if `file` is
/// null; else the first is in `*file`, which may stay invalid. A message of another size is
/// `ended`.
Transfer receive_message(int socket, void* message, std::size_t bytes, Descriptor* file,
                         std::uint64_t deadline_ns);

/// Whether the other end has closed the connection.
bool has_ended(int socket);

}  // namespace cupool::core::ipc
