// SPDX-License-Identifier: Apache-2.0
// The modules of the process, those unloaded meanwhile too, with their build ids: what a frame's
// address means has to be known when it is seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/sites.h"

struct dl_phdr_info;

namespace cupool::trace {

/// Whether the file is NVIDIA's: libcudart or libcuda.
bool is_cuda_library(const char* path) noexcept;

/// An address relative to its module, in one number.
class PackedFrame {
 public:
  static constexpr unsigned kOffsetBits = 48;
  static constexpr std::uint64_t kUnknown = 0;  ///< module number of an address in none

  static constexpr std::uint64_t pack(std::uint64_t module, std::uint64_t offset) {
    return (module << kOffsetBits) | (offset & ((std::uint64_t{1} << kOffsetBits) - 1));
  }
  static constexpr std::uint64_t module_of(std::uint64_t frame) { return frame >> kOffsetBits; }
  static constexpr std::uint64_t offset_of(std::uint64_t frame) {
    return frame & ((std::uint64_t{1} << kOffsetBits) - 1);
  }
};

/// The module that an address is in, of code that is running, or one without a path. Takes the
/// dynamic linker's lock for the list of modules. Throws only std::bad_alloc.
stats::SiteModule module_at(std::uintptr_t address);

/// All-zero memory is a valid empty list: it lies in memory that the system zeroed. Not
/// thread-safe.
class LoadedModules {
 public:
  static constexpr std::size_t kMost = 2048;

  /// Brings the list up to date where modules came or went. Takes the dynamic linker's lock for the
  /// list of modules, never the one that is held while constructors run; no heap.
  void refresh() noexcept;

  /// The frame of a return address: of the call, one byte before it (for addr2line).
  std::uint64_t frame_of(std::uintptr_t address) const noexcept;

  /// Whether it lies between the program and the allocation: in cupool, libcudart or libcuda.
  bool is_between(std::uint64_t frame) const noexcept;

  /// By module number less one. Throws only std::bad_alloc.
  std::vector<stats::SiteModule> list() const;

 private:
  friend stats::SiteModule module_at(std::uintptr_t address);

  static constexpr std::size_t kBuildIdBytes = 20;
  static constexpr std::size_t kTextBytes = std::size_t{512} << 10;

  struct Module {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::uintptr_t base;
    std::uint32_t path;  ///< offset in text_
    std::uint16_t build_id_bytes;
    bool loaded;
    bool between;
    std::array<unsigned char, kBuildIdBytes> build_id;
  };
  struct Visit;
  struct Search;
  static int search(dl_phdr_info* info, std::size_t size, void* state) noexcept;
  static int visit(dl_phdr_info* info, std::size_t size, void* state) noexcept;
  void add(const dl_phdr_info& info) noexcept;
  std::size_t number_of(const Module& seen, const char* path) noexcept;
  static Module seen_in(const dl_phdr_info& info) noexcept;
  static void read_build_id(const dl_phdr_info& info, Module* module) noexcept;
  static stats::SiteModule in_words(const Module& module, const char* path);
  bool same_as(const Module& known, const Module& seen, const char* path) const noexcept;

  unsigned long long adds_;
  unsigned long long subs_;
  std::size_t count_;
  std::size_t ordered_;  ///< loaded ones
  std::size_t text_size_;
  std::array<std::uint16_t, kMost> order_;  ///< the loaded ones by address
  std::array<Module, kMost> modules_;
  std::array<char, kTextBytes> text_;
};

}  // namespace cupool::trace
