// SPDX-License-Identifier: Apache-2.0
// Reads an ELF file's machine, loader, needed libraries and CUDA symbols. The file is untrusted:
// every offset and length is checked against its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// A CUDA symbol.
struct ElfSymbol {
  std::string name;
  bool defined = false;
};

/// The function of NVIDIA's runtime to which nvcc's code hands kernels, before main().
inline constexpr char kRegistersGpuCode[] = "__cudaRegisterFatBinary";

struct ElfFile {
  int bits = 0;  ///< 32 or 64
  bool little_endian = true;
  std::uint16_t machine = 0;  ///< EM_...
  std::uint16_t type = 0;     ///< ET_EXEC, ET_DYN, ...
  // Filled for 64-bit little-endian files only.
  std::string interpreter;  ///< the dynamic loader; "" for static programs and libraries
  bool dynamic = false;     ///< has a dynamic section
  std::string soname;
  std::vector<std::string> needed;
  std::string rpath;    ///< DT_RPATH, a search path for `needed`
  std::string runpath;  ///< DT_RUNPATH, which overrides DT_RPATH
  /// Those that begin with "cu" or "libcudart_static", and kRegistersGpuCode.
  std::vector<ElfSymbol> symbols;

  bool defines(const std::string& symbol) const;
  bool uses(const std::string& symbol) const;  ///< as an undefined symbol
};

/// The result of reading a file.
enum class ElfStatus {
  read,
  not_elf,  ///< not an ELF file
  broken,   ///< an ELF file with offsets beyond its end
  unreadable,
};

/// Reads a file. On failure `out` holds the part read so far, and `reason` the cause.
ElfStatus read_elf(const std::string& path, ElfFile* out, std::string* reason);

/// Like read_elf without symbols, which is faster.
ElfStatus read_elf_dynamic(const std::string& path, ElfFile* out, std::string* reason);

/// Which of `texts` occur in the constants of an ELF file (not in code or GPU images). Scans at
/// most 512 MiB.
std::vector<bool> find_texts(const std::string& path, const std::vector<std::string>& texts);

/// The release of the compiler of the file's GPU code ("13.0"), or "" if unknown, as in compressed
/// images.
std::string gpu_compiler_release(const std::string& path);

/// Functions by address.
struct ElfFunctions {
  std::vector<std::string> names;  ///< of the offsets asked for, mangled; "" if unknown
  bool has_all_symbols = false;    ///< not only those that it exports
  bool has_lines = false;          ///< debug information with line numbers
};

/// The functions at `offsets`, addresses as linked. No names if the file cannot be read, or if its
/// build id is not `build_id` (hexadecimal; "": any).
ElfFunctions functions_at(const std::string& path, const std::string& build_id,
                          const std::vector<std::uint64_t>& offsets);

/// "x86-64", "AArch64", ... or "machine 243".
std::string machine_name(std::uint16_t machine);

}  // namespace cupool::cli
