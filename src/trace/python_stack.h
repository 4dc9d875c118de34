// SPDX-License-Identifier: Apache-2.0
// The Python functions that led to a call, by the interpreter's own C interface, found by name in
// the process (from 3.9 on; 3.11 has been run): nothing is linked. Only where the calling thread
// holds the interpreter's lock; to wait for it could block for ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stats/sites.h"
#include "trace/loaded_modules.h"

namespace cupool::trace {

/// A Python call. The texts belong to the running code.
struct PythonCall {
  const char* function;
  const char* file;
  std::uint32_t line;
};

/// Innermost first.
struct PythonStack {
  static constexpr std::size_t kMost = 48;
  std::size_t depth = 0;
  std::array<PythonCall, kMost> calls;
};

/// The dynamic linker's own dlsym.
using FindSymbol = void* (*)(void* handle, const char* symbol);

/// Looks for an interpreter in the process, at the first call. Thread-safe. To be called where the
/// heap can be used, and with no lock: the dynamic linker has one of its own.
void find_python(FindSymbol find) noexcept;

/// An address in the interpreter; 0: there is none.
std::uintptr_t python_address() noexcept;

/// The calling thread's Python calls; none without its interpreter's lock, and where an exception
/// is pending. Valid until the thread returns into Python. Not to be called in a signal handler,
/// nor with a lock held. Starts no garbage collection and raises no audit event, and so runs no
/// code of the program.
void python_stack(PythonStack* stack) noexcept;

/// Each Python call once, in memory of a fixed size. All-zero memory is a valid empty list. Not
/// thread-safe.
class PythonFrames {
 public:
  static constexpr std::uint64_t kModule = 0xffff;  ///< module number of frames of Python

  /// The frame of a call; 0 without room.
  std::uint64_t frame_of(const PythonCall& call) noexcept;
  /// False: not a frame of Python.
  bool describe(std::uint64_t frame, stats::SiteFrame* out) const;

 private:
  static constexpr std::size_t kMost = 4096;  // a power of two
  static constexpr std::size_t kTextBytes = std::size_t{512} << 10;
  struct Entry {
    std::uint64_t hash;
    std::uint32_t function;  ///< offset in text_, less one; 0: free
    std::uint32_t file;
    std::uint32_t line;
  };
  std::uint32_t keep(const char* text) noexcept;

  std::size_t used_;
  std::size_t text_size_;
  std::array<Entry, kMost> entries_;
  std::array<char, kTextBytes> text_;
};

}  // namespace cupool::trace
