// What an ELF file says about itself: for whom it is, what loads it, what it needs, which names of
// CUDA it knows. The file may be anything, so every offset and length is checked against its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// A name of CUDA in a symbol table.
struct ElfSymbol {
  std::string name;
  bool defined = false;
};

struct ElfFile {
  int bits = 0;  ///< 32 or 64
  bool little_endian = true;
  std::uint16_t machine = 0;  ///< EM_...
  std::uint16_t type = 0;     ///< ET_EXEC, ET_DYN, ...
  // The rest is read from 64-bit little-endian files only.
  std::string interpreter;  ///< the dynamic loader; "" for static programs and libraries
  bool dynamic = false;     ///< has a dynamic section
  std::string soname;
  std::vector<std::string> needed;
  std::vector<ElfSymbol> symbols;  ///< those that begin with "cu" or "libcudart_static"

  bool defines(const std::string& symbol) const;
  bool uses(const std::string& symbol) const;  ///< undefined there
};

/// How far reading came.
enum class ElfStatus {
  read,
  not_elf,  ///< another kind of file
  broken,   ///< begins as ELF, and points beyond its own end
  unreadable,
};

/// Reads a file. `out` holds what was found until reading stopped; `reason` says why it stopped.
ElfStatus read_elf(const std::string& path, ElfFile* out, std::string* reason);

/// Which of `texts` stand in the constants of an ELF file (not in code, nor in images for the GPU).
/// At most 512 MiB are looked at.
std::vector<bool> find_texts(const std::string& path, const std::vector<std::string>& texts);

/// The release of the compiler that made the file's GPU code ("13.0"), or "". The images are
/// compressed at times; then it is not to be seen.
std::string gpu_compiler_release(const std::string& path);

/// "x86-64", "AArch64", ... or "machine 243".
std::string machine_name(std::uint16_t machine);

}  // namespace cupool::cli
