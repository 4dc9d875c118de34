// SPDX-License-Identifier: Apache-2.0
// See patched_file.h.
#include "patched_file.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "harness.h"

namespace cli {

namespace {

void write_executable(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all |
                                         std::filesystem::perms::others_read |
                                         std::filesystem::perms::others_exec);
}

}  // namespace

void copy_changed(const std::string& from, const std::string& to,
                  const std::function<void(std::string* bytes)>& change) {
  std::string bytes = preload::read_file(from);
  change(&bytes);
  write_executable(to, bytes);
}

void replace_bytes(std::string* bytes, const std::string& what, const std::string& by) {
  if (by.size() > what.size()) throw std::logic_error("the replacement is longer");
  std::size_t count = 0;
  for (std::size_t at = 0; (at = bytes->find(what, at)) != std::string::npos; ++count) {
    bytes->replace(at, what.size(), by + std::string(what.size() - by.size(), '\0'));
  }
  if (count == 0) throw std::logic_error(what + " is not in the file");
}

Elf64_Ehdr* header_of(std::string* bytes) {
  return reinterpret_cast<Elf64_Ehdr*>(bytes->data());
}

void drop_interpreter(std::string* bytes) {
  const Elf64_Ehdr* header = header_of(bytes);
  auto* programs = reinterpret_cast<Elf64_Phdr*>(bytes->data() + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    if (programs[i].p_type == PT_INTERP) programs[i].p_type = PT_NULL;
  }
}

void write_script(const std::string& path, const std::string& content) {
  write_executable(path, content);
}

}  // namespace cli
