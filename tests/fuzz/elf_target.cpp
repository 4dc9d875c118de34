// SPDX-License-Identifier: Apache-2.0
// Files of programs and of the loader, as the doctor reads them.
#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

#include "cli/doctor/dependencies.h"
#include "cli/doctor/elf_file.h"
#include "target.h"

namespace fuzz {
namespace {

// A small program with every table that the reader knows. Addresses are offsets.
class ElfImage {
 public:
  std::string build() {
    image_.resize(sizeof(Elf64_Ehdr) + 4 * sizeof(Elf64_Phdr));
    const std::uint64_t interpreter = put(std::string("/lib64/ld-linux-x86-64.so.2") + '\0');
    const std::uint64_t constants = put("libcuda.so.1 and libcudart.so.13");
    const std::string note("\4\0\0\0\10\0\0\0\3\0\0\0GNU\0\x01\x23\x45\x67\x89\xab\xcd\xef", 24);
    const std::uint64_t build_id = put(note);
    const std::uint64_t images = put("Cuda compilation tools, release 13.0, V13.0.88");
    const std::string names("\0libcuda.so.1\0libx.so\0$ORIGIN/lib\0cuMemAlloc_v2\0cudaMalloc@13\0",
                            64);
    const std::uint64_t strings = put(names);
    const auto name = [&](const char* text) {
      return static_cast<std::uint32_t>(names.find(text));
    };
    std::vector<Elf64_Sym> symbols(3);
    symbols[1].st_name = name("cuMemAlloc_v2");
    symbols[2].st_name = name("cudaMalloc");
    symbols[2].st_shndx = 1;
    symbols[2].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbols[2].st_value = 0x1000;
    symbols[2].st_size = 16;
    const std::uint64_t symbol_table = put(symbols);
    const std::vector<Elf64_Dyn> dynamic = {{DT_NEEDED, {name("libcuda.so.1")}},
                                            {DT_SONAME, {name("libx.so")}},
                                            {DT_RUNPATH, {name("$ORIGIN")}},
                                            {DT_RPATH, {name("$ORIGIN")}},
                                            {DT_STRTAB, {strings}},
                                            {DT_STRSZ, {names.size()}},
                                            {DT_NULL, {0}}};
    const std::uint64_t dynamic_table = put(dynamic);
    const std::string section_names("\0.rodata\0.nv_fatbin\0.dynsym\0.dynstr\0.names\0", 43);
    const std::uint64_t section_strings = put(section_names);
    const auto section = [&](const char* text, std::uint32_t type, std::uint64_t at,
                             std::uint64_t size, std::uint32_t link) {
      Elf64_Shdr header{};
      header.sh_name = static_cast<std::uint32_t>(section_names.find(text));
      header.sh_type = type;
      header.sh_flags = SHF_ALLOC;
      header.sh_offset = at;
      header.sh_size = size;
      header.sh_link = link;
      return header;
    };
    const std::vector<Elf64_Shdr> sections = {
        Elf64_Shdr{},
        section(".rodata", SHT_PROGBITS, constants, 32, 0),
        section(".nv_fatbin", SHT_PROGBITS, images, 46, 0),
        section(".dynsym", SHT_DYNSYM, symbol_table, symbols.size() * sizeof(Elf64_Sym), 4),
        section(".dynstr", SHT_STRTAB, strings, names.size(), 0),
        section(".names", SHT_STRTAB, section_strings, section_names.size(), 0)};
    const std::uint64_t section_table = put(sections);

    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_machine = EM_X86_64;
    header.e_ehsize = sizeof header;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 4;
    header.e_shoff = section_table;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<Elf64_Half>(sections.size());
    header.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
    std::memcpy(&image_[0], &header, sizeof header);
    put_segment(0, PT_LOAD, 0, image_.size());
    put_segment(1, PT_INTERP, interpreter, 28);
    put_segment(2, PT_DYNAMIC, dynamic_table, dynamic.size() * sizeof(Elf64_Dyn));
    put_segment(3, PT_NOTE, build_id, note.size());
    return image_;
  }

 private:
  std::uint64_t put(const std::string& bytes) {
    image_.resize((image_.size() + 7) / 8 * 8);
    image_ += bytes;
    return image_.size() - bytes.size();
  }
  template <typename Record>
  std::uint64_t put(const std::vector<Record>& records) {
    return put(std::string(reinterpret_cast<const char*>(records.data()),
                           records.size() * sizeof(Record)));
  }
  void put_segment(std::size_t number, std::uint32_t type, std::uint64_t at, std::uint64_t size) {
    Elf64_Phdr segment{};
    segment.p_type = type;
    segment.p_flags = PF_R;
    segment.p_offset = segment.p_vaddr = at;
    segment.p_filesz = segment.p_memsz = size;
    std::memcpy(&image_[sizeof(Elf64_Ehdr) + number * sizeof segment], &segment, sizeof segment);
  }

  std::string image_;
};

std::string loader_cache(const std::vector<std::vector<std::string>>& libraries) {
  std::string cache = "glibc-ld.so.cache1.1";
  const auto put = [&](std::uint64_t value, std::size_t bytes) {
    cache.append(reinterpret_cast<const char*>(&value), bytes);
  };
  put(libraries.size(), 4);
  cache.append(24, '\0');
  std::string texts;
  const std::size_t texts_at = 48 + libraries.size() * 24;
  for (const auto& library : libraries) {
    put(0x0303, 4);
    for (const std::string& text : library) {
      put(texts_at + texts.size(), 4);
      texts += text + '\0';
    }
    put(0, 4);
    put(0, 8);
  }
  return cache + texts;
}

}  // namespace

void run_elf(const std::string& input) {
  using namespace cupool::cli;
  const MemoryFile file(input);
  ElfFile whole;
  ElfFile dynamic;
  std::string reason;
  const ElfStatus status = read_elf(file.path(), &whole, &reason);
  require(status == ElfStatus::read || !reason.empty(), "a file that is not read has a reason");
  const ElfStatus second = read_elf_dynamic(file.path(), &dynamic, &reason);
  require(status != ElfStatus::read || second == ElfStatus::read,
          "the part of a good file is good");
  if (status == ElfStatus::read) {
    require(whole.needed == dynamic.needed && whole.soname == dynamic.soname, "both read the same");
  }
  find_texts(file.path(), {"libcuda.so.1", "libcudart.so"});
  gpu_compiler_release(file.path());
  machine_name(whole.machine);
  const std::vector<std::uint64_t> offsets = {0x40, 0x1000, 0x1004, 0, ~std::uint64_t{0}, 0x1004};
  const ElfFunctions functions = functions_at(file.path(), "", offsets);
  require(functions.names.empty() || functions.names.size() == offsets.size(),
          "each offset has a name or none");
  require(functions.names.empty() || functions.names[2] == functions.names[5],
          "equal offsets have equal names");
  require(functions_at(file.path(), "not hexadecimal", offsets).names.empty(),
          "a file of another build names nothing");
}

std::vector<std::string> seeds_of_elf() {
  const std::string image = ElfImage().build();
  const MemoryFile file(image);
  const std::string id = "0123456789abcdef";
  require(cupool::cli::functions_at(file.path(), id, {0x1004}).names ==
              std::vector<std::string>{"cudaMalloc@13"},
          "the seed has a function and a build id");
  return {image};
}

void run_loader_cache(const std::string& input) {
  std::size_t bytes = 0;
  for (const cupool::cli::Dependency& library : cupool::cli::parse_loader_cache(input)) {
    require(library.name.find('\0') == std::string::npos, "a name is a text");
    bytes += library.name.size() + library.path.size();
  }
  require(bytes <= 64 * input.size() + 4096, "the memory for a cache grows with its size");
}

std::vector<std::string> seeds_of_loader_cache() {
  const std::string cache =
      loader_cache({{"liba.so.1", "/lib/liba.so.1"}, {"libcuda.so.1", "/usr/lib/libcuda.so.1"}});
  return {cache, "ld.so-1.7.0" + std::string(21, '\0') + cache};
}

}  // namespace fuzz
