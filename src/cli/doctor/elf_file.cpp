// SPDX-License-Identifier: Apache-2.0
// Reads by pread instead of mmap: a file that shrinks meanwhile gives an error and no SIGBUS.
#include "cli/doctor/elf_file.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>

#include "cli/shell/input.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::uint64_t kMaxTable = std::uint64_t{256} << 20;    // of one table
constexpr std::uint64_t kMaxScanned = std::uint64_t{512} << 20;  // by find_texts
constexpr std::uint64_t kMaxTables = std::uint64_t{1} << 30;     // of all tables, which may overlap
constexpr std::size_t kMaxEntries = 65536;                       // headers, dynamic entries
constexpr std::size_t kMaxName = 4096;                           // of a symbol or a library
constexpr std::size_t kMaxSearchPath = 65536;                    // RPATH, RUNPATH

// A file with bounds-checked reads.
class Bytes {
 public:
  explicit Bytes(const std::string& path) : descriptor_(open_regular_file(path, &error_, &size_)) {}
  ~Bytes() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  int error() const { return error_; }
  std::uint64_t size() const { return size_; }

  bool contains(std::uint64_t offset, std::uint64_t length) const {
    return offset <= size_ && length <= size_ - offset;
  }

  bool read(std::uint64_t offset, void* to, std::uint64_t length) const {
    if (!contains(offset, length)) return false;
    auto* at = static_cast<char*>(to);
    while (length > 0) {
      const ssize_t got = pread(descriptor_, at, length, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      offset += static_cast<std::uint64_t>(got);
      length -= static_cast<std::uint64_t>(got);
    }
    return true;
  }

  template <typename Record>
  bool read_table(std::uint64_t offset, std::uint64_t count, std::vector<Record>* out) const {
    if (count > kMaxTable / sizeof(Record) || !contains(offset, count * sizeof(Record)) ||
        table_bytes_ + count * sizeof(Record) > kMaxTables) {
      return false;
    }
    table_bytes_ += count * sizeof(Record);
    out->resize(count);
    return read(offset, out->data(), count * sizeof(Record));
  }

 private:
  int error_ = 0;
  std::uint64_t size_ = 0;
  mutable std::uint64_t table_bytes_ = 0;  // read so far
  int descriptor_;                         // last member: its initialiser sets the others
};

// The text at `offset` of a string table, cut at `longest`; "" beyond the end of the table.
std::string name_at(const std::vector<char>& names, std::uint64_t offset,
                    std::size_t longest = kMaxName) {
  if (offset >= names.size()) return "";
  const char* const begin = names.data() + offset;
  return {begin, strnlen(begin, std::min<std::size_t>(names.size() - offset, longest))};
}

bool of_cuda(std::string_view name) {
  return name.substr(0, 2) == "cu" || name.substr(0, 16) == "libcudart_static" ||
         name == kRegistersGpuCode;
}

// One 64-bit little-endian file.
class Reader {
 public:
  Reader(const Bytes& bytes, ElfFile* out) : bytes_(bytes), out_(out) {}

  bool read_all(bool with_symbols, std::string* reason) {
    const bool headers = with_symbols ? read_headers() : read_program_headers();
    if (!headers || !read_interpreter() || !read_dynamic() || !read_symbols()) {
      *reason = "a damaged or truncated ELF file";
      return false;
    }
    return true;
  }

  bool read_headers() { return read_program_headers() && read_sections(); }

  const std::vector<Elf64_Phdr>& programs() const { return programs_; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string section_name(const Elf64_Shdr& section) const {
    return name_at(section_names_, section.sh_name);
  }

 private:
  bool read_program_headers() {
    return bytes_.read(0, &header_, sizeof header_) &&
           (header_.e_phnum == 0 || header_.e_phentsize == sizeof(Elf64_Phdr)) &&
           bytes_.read_table(header_.e_phoff, header_.e_phnum, &programs_);
  }

  // Stripped files may have no sections: no error.
  bool read_sections() {
    if (header_.e_shoff == 0 || header_.e_shnum == 0) return true;
    if (header_.e_shentsize != sizeof(Elf64_Shdr) ||
        !bytes_.read_table(header_.e_shoff, header_.e_shnum, &sections_)) {
      return false;
    }
    if (header_.e_shstrndx >= sections_.size()) return true;
    const Elf64_Shdr& names = sections_[header_.e_shstrndx];
    return names.sh_type == SHT_NOBITS ||
           bytes_.read_table(names.sh_offset, names.sh_size, &section_names_);
  }

  bool read_interpreter() {
    for (const Elf64_Phdr& program : programs_) {
      if (program.p_type != PT_INTERP) continue;
      std::vector<char> text;
      if (program.p_filesz > 4096 ||
          !bytes_.read_table(program.p_offset, program.p_filesz, &text)) {
        return false;
      }
      out_->interpreter = name_at(text, 0);
    }
    return true;
  }

  // Converts an address of the loaded program to a file offset.
  bool offset_of(std::uint64_t address, std::uint64_t* offset) const {
    for (const Elf64_Phdr& program : programs_) {
      if (program.p_type != PT_LOAD || address < program.p_vaddr ||
          address - program.p_vaddr >= program.p_filesz) {
        continue;
      }
      return !__builtin_add_overflow(program.p_offset, address - program.p_vaddr, offset);
    }
    return false;
  }

  bool read_dynamic() {
    for (const Elf64_Phdr& program : programs_) {
      if (program.p_type != PT_DYNAMIC) continue;
      out_->dynamic = true;
      std::vector<Elf64_Dyn> entries;
      const std::uint64_t count = program.p_filesz / sizeof(Elf64_Dyn);
      if (count > kMaxEntries || !bytes_.read_table(program.p_offset, count, &entries)) {
        return false;
      }
      return read_dynamic_names(entries);
    }
    return true;
  }

  bool read_dynamic_names(const std::vector<Elf64_Dyn>& entries) {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_STRTAB) address = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRSZ) size = entry.d_un.d_val;
    }
    if (size == 0) return true;
    std::uint64_t offset = 0;
    std::vector<char> names;
    if (!offset_of(address, &offset) || !bytes_.read_table(offset, size, &names)) return false;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) out_->needed.push_back(name_at(names, entry.d_un.d_val));
      if (entry.d_tag == DT_SONAME) out_->soname = name_at(names, entry.d_un.d_val);
      if (entry.d_tag == DT_RPATH) {
        out_->rpath = name_at(names, entry.d_un.d_val, kMaxSearchPath);
      }
      if (entry.d_tag == DT_RUNPATH) {
        out_->runpath = name_at(names, entry.d_un.d_val, kMaxSearchPath);
      }
    }
    return true;
  }

  bool read_symbols() {
    for (const Elf64_Shdr& section : sections_) {
      const bool table = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM;
      if (!table || section.sh_link >= sections_.size()) continue;
      const Elf64_Shdr& text = sections_[section.sh_link];
      std::vector<Elf64_Sym> symbols;
      std::vector<char> names;
      if (!bytes_.read_table(section.sh_offset, section.sh_size / sizeof(Elf64_Sym), &symbols) ||
          !bytes_.read_table(text.sh_offset, text.sh_size, &names)) {
        return false;
      }
      for (const Elf64_Sym& symbol : symbols) {
        if (symbol.st_name + std::uint64_t{2} >= names.size() || names[symbol.st_name] == 0)
          continue;
        take_symbol(name_at(names, symbol.st_name), symbol.st_shndx != SHN_UNDEF);
      }
    }
    return true;
  }

  void take_symbol(const std::string& name, bool defined) {
    if (of_cuda(name) && out_->symbols.size() < kMaxEntries) {
      // Names in .symtab include a version: cudaMalloc@libcudart.so.13.
      out_->symbols.push_back({name.substr(0, name.find('@')), defined});
    }
  }

  const Bytes& bytes_;
  ElfFile* out_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> programs_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<char> section_names_;
};

struct Extent {
  std::uint64_t offset;
  std::uint64_t size;
};

// The parts of a file with constants: loaded sections other than code and GPU images or, without
// sections, segments other than code.
std::vector<Extent> constants_of(const Reader& reader) {
  std::vector<Extent> extents;
  for (const Elf64_Shdr& section : reader.sections()) {
    const std::string name = reader.section_name(section);
    if (section.sh_type != SHT_PROGBITS || (section.sh_flags & SHF_ALLOC) == 0 ||
        (section.sh_flags & SHF_EXECINSTR) != 0 || util::starts_with(name, ".nv") ||
        util::starts_with(name, "__nv")) {
      continue;
    }
    extents.push_back({section.sh_offset, section.sh_size});
  }
  if (!reader.sections().empty()) return extents;
  for (const Elf64_Phdr& program : reader.programs()) {
    if (program.p_type != PT_LOAD || (program.p_flags & PF_X) != 0) continue;
    extents.push_back({program.p_offset, program.p_filesz});
  }
  return extents;
}

// Calls `look` with consecutive pieces. Each repeats the last 256 bytes of the one before, so that
// no text is cut in two.
template <typename Look>
void scan(const Bytes& bytes, const std::vector<Extent>& extents, Look look) {
  constexpr std::uint64_t piece_size = std::uint64_t{1} << 20;
  constexpr std::uint64_t overlap = 256;
  std::uint64_t left = kMaxScanned;
  std::vector<char> piece;
  for (const Extent& extent : extents) {
    if (!bytes.contains(extent.offset, extent.size)) continue;
    for (std::uint64_t at = 0; at < extent.size && left > 0;) {
      const std::uint64_t length = std::min({piece_size, extent.size - at, left});
      piece.resize(length);
      if (!bytes.read(extent.offset + at, piece.data(), length)) break;
      look(std::string_view(piece.data(), length));
      left -= length;
      const bool last = at + length >= extent.size;
      at += last || length <= overlap ? length : length - overlap;
    }
  }
}

// Opens a file for a scan. False unless it is a 64-bit little-endian ELF file.
bool readable(const Bytes& bytes, Reader* reader) {
  unsigned char ident[EI_NIDENT] = {};
  return bytes.error() == 0 && bytes.read(0, ident, sizeof ident) &&
         std::memcmp(ident, ELFMAG, SELFMAG) == 0 && ident[EI_CLASS] == ELFCLASS64 &&
         ident[EI_DATA] == ELFDATA2LSB && reader->read_headers();
}

}  // namespace

bool ElfFile::defines(const std::string& symbol) const {
  return std::any_of(symbols.begin(), symbols.end(),
                     [&symbol](const ElfSymbol& one) { return one.defined && one.name == symbol; });
}

bool ElfFile::uses(const std::string& symbol) const {
  return std::any_of(symbols.begin(), symbols.end(), [&symbol](const ElfSymbol& one) {
    return !one.defined && one.name == symbol;
  });
}

namespace {

ElfStatus read_parts(const std::string& path, bool with_symbols, ElfFile* out,
                     std::string* reason) {
  const Bytes bytes(path);
  if (bytes.error() != 0) {
    *reason = std::strerror(bytes.error());
    return ElfStatus::unreadable;
  }
  Elf32_Ehdr start{};  // both classes start with identity, type and machine
  unsigned char ident[SELFMAG] = {};
  if (!bytes.read(0, ident, sizeof ident) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
    *reason = "not an ELF file";
    return ElfStatus::not_elf;
  }
  if (!bytes.read(0, &start, sizeof start)) {
    *reason = "a truncated ELF file";
    return ElfStatus::broken;
  }
  out->bits = start.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;
  out->little_endian = start.e_ident[EI_DATA] == ELFDATA2LSB;
  out->type = out->little_endian ? start.e_type : __builtin_bswap16(start.e_type);
  out->machine = out->little_endian ? start.e_machine : __builtin_bswap16(start.e_machine);
  if (out->bits != 64 || !out->little_endian) return ElfStatus::read;
  return Reader(bytes, out).read_all(with_symbols, reason) ? ElfStatus::read : ElfStatus::broken;
}

}  // namespace

ElfStatus read_elf(const std::string& path, ElfFile* out, std::string* reason) {
  return read_parts(path, true, out, reason);
}

ElfStatus read_elf_dynamic(const std::string& path, ElfFile* out, std::string* reason) {
  return read_parts(path, false, out, reason);
}

std::vector<bool> find_texts(const std::string& path, const std::vector<std::string>& texts) {
  std::vector<bool> found(texts.size(), false);
  const Bytes bytes(path);
  ElfFile unused;
  Reader reader(bytes, &unused);
  if (!readable(bytes, &reader)) return found;
  scan(bytes, constants_of(reader), [&](std::string_view piece) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (!found[i]) {
        found[i] = memmem(piece.data(), piece.size(), texts[i].data(), texts[i].size()) != nullptr;
      }
    }
  });
  return found;
}

std::string gpu_compiler_release(const std::string& path) {
  const Bytes bytes(path);
  ElfFile unused;
  Reader reader(bytes, &unused);
  if (!readable(bytes, &reader)) return "";
  std::vector<Extent> images;
  for (const Elf64_Shdr& section : reader.sections()) {
    if (reader.section_name(section) != ".nv_fatbin" || section.sh_type == SHT_NOBITS) continue;
    // Every image has it, so the first ones suffice.
    images.push_back({section.sh_offset, std::min<std::uint64_t>(section.sh_size, 16u << 20)});
  }
  std::string release;
  scan(bytes, images, [&release](std::string_view piece) {
    constexpr std::string_view mark = "Cuda compilation tools, release ";
    const std::size_t at = piece.find(mark);
    if (!release.empty() || at == std::string_view::npos) return;
    const std::string_view rest = piece.substr(at + mark.size(), 8);
    release = std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
  });
  return release;
}

namespace {

// "" without one.
std::string build_id_of(const Bytes& bytes, const Reader& reader) {
  for (const Elf64_Phdr& program : reader.programs()) {
    std::vector<unsigned char> notes;
    if (program.p_type != PT_NOTE || program.p_filesz > kMaxEntries ||
        !bytes.read_table(program.p_offset, program.p_filesz, &notes)) {
      continue;
    }
    Elf64_Nhdr note{};
    for (std::size_t at = 0; at + sizeof note <= notes.size();) {
      std::memcpy(&note, notes.data() + at, sizeof note);
      const std::uint64_t content = at + sizeof note + ((note.n_namesz + std::uint64_t{3}) & ~3u);
      if (content + note.n_descsz > notes.size()) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4) {
        std::string text;
        for (std::size_t i = 0; i < note.n_descsz; ++i) {
          const unsigned char byte = notes[content + i];
          text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15u]};
        }
        return text;
      }
      at = content + ((note.n_descsz + std::uint64_t{3}) & ~3u);
    }
  }
  return "";
}

// A symbol, and where its name is.
struct Function {
  std::uint64_t begin;
  std::uint64_t size;
  std::size_t table;
  std::uint32_t name;
  // Of an offset that is not below its beginning.
  bool holds(std::uint64_t offset) const { return offset - begin < size; }
};

}  // namespace

ElfFunctions functions_at(const std::string& path, const std::string& build_id,
                          const std::vector<std::uint64_t>& offsets) {
  ElfFunctions found;
  const Bytes bytes(path);
  ElfFile unused;
  Reader reader(bytes, &unused);
  if (!readable(bytes, &reader)) return found;
  if (!build_id.empty() && build_id_of(bytes, reader) != build_id) return found;
  found.names.resize(offsets.size());
  std::multimap<std::uint64_t, std::size_t> unnamed;
  for (std::size_t i = 0; i < offsets.size(); ++i) unnamed.emplace(offsets[i], i);
  std::vector<std::vector<char>> tables;  // of names
  std::vector<Function> functions;        // those with an offset in them
  for (const Elf64_Shdr& section : reader.sections()) {
    const std::string name = reader.section_name(section);
    if (name == ".debug_line" || name == ".zdebug_line") found.has_lines = true;
    const bool table = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM;
    if (!table || section.sh_link >= reader.sections().size()) continue;
    const Elf64_Shdr& text = reader.sections()[section.sh_link];
    std::vector<Elf64_Sym> symbols;
    std::vector<char> names;
    if (!bytes.read_table(section.sh_offset, section.sh_size / sizeof(Elf64_Sym), &symbols) ||
        !bytes.read_table(text.sh_offset, text.sh_size, &names)) {
      continue;
    }
    found.has_all_symbols = found.has_all_symbols || section.sh_type == SHT_SYMTAB;
    for (const Elf64_Sym& symbol : symbols) {
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
      if (symbol.st_name >= names.size() || names[symbol.st_name] == 0) continue;
      const Function function{symbol.st_value, std::max<std::uint64_t>(symbol.st_size, 1),
                              tables.size(), symbol.st_name};
      const auto first = unnamed.lower_bound(function.begin);
      if (first != unnamed.end() && function.holds(first->first)) functions.push_back(function);
    }
    tables.push_back(std::move(names));
  }
  // Where functions overlap, the one that begins last is the inner one, and takes what it holds.
  std::stable_sort(functions.begin(), functions.end(),
                   [](const Function& a, const Function& b) { return a.begin > b.begin; });
  for (const Function& function : functions) {
    auto at = unnamed.lower_bound(function.begin);
    while (at != unnamed.end() && function.holds(at->first)) {
      found.names[at->second] = name_at(tables[function.table], function.name);
      at = unnamed.erase(at);
    }
  }
  return found;
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_386:
      return "x86 (32-bit)";
    case EM_AARCH64:
      return "AArch64";
    case EM_ARM:
      return "ARM (32-bit)";
    case EM_PPC64:
      return "POWER";
    default:
      return "machine " + std::to_string(machine);
  }
}

}  // namespace cupool::cli
