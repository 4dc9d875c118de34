// SPDX-License-Identifier: Apache-2.0
// Descriptors that cupool keeps open in a process that does not know of them: the program may close
// them, and a forked child must not keep them.
#pragma once

#include <sys/types.h>

#include <array>

namespace cupool::util {

/// A descriptor's number, and which file it stood for when it was noted. Programs close descriptors
/// that they do not know, and their next file is given the number: whoever uses or closes one of
/// ours asks first whether it still is.
class KnownFile {
 public:
  KnownFile() = default;
  /// Notes what `number` (negative: none) stands for now.
  explicit KnownFile(int number);

  int number() const { return behind_ - 1; }
  /// Whether the number stands for the same file. Touches no lock and no heap.
  bool is_there() const;

 private:
  int behind_ =
      0;  ///< the number and one: a table of them is zeros, and no part of the library's file
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::array<char, 24>
      kind_{};  ///< of files that share one inode: the kernel's name for their kind
};

/// Owns a descriptor, and has it closed in forked children, unless the number stands for another
/// file by then. Movable. Not thread-safe by itself.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over `file` (negative: none). If the table for forked children is full it is closed.
  explicit Descriptor(int file);
  Descriptor(Descriptor&& other) noexcept : place_(other.place_) { other.place_ = nullptr; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }

  int get() const { return known().number(); }
  bool valid() const { return place_ != nullptr; }
  /// Whether it is valid and the number still its own. One that is not is given up.
  bool keeps();
  const KnownFile& known() const;
  void reset();

 private:
  struct Place;
  static std::array<Place, 1024> places_;
  friend void close_in_child();
  Place* place_ = nullptr;
};

/// Closes what the parent had open. For a handler of fork(): touches no lock and no heap.
void close_in_child();

}  // namespace cupool::util
