// SPDX-License-Identifier: Apache-2.0
// One walk over the dynamic linker's list ends at the first module, unless its counters tell that
// modules came or went.
#include "trace/loaded_modules.h"

#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace cupool::trace {

namespace {

// Of this library, or of the program that it is part of.
bool holds_this(std::uintptr_t begin, std::uintptr_t end) {
  static const char here = 0;
  const auto own = reinterpret_cast<std::uintptr_t>(&here);
  return begin <= own && own < end;
}

using ProgramPath = std::array<char, 1024>;

// The program itself has no name in the list.
const char* path_of(const dl_phdr_info& info, ProgramPath* program) {
  if (info.dlpi_name != nullptr && *info.dlpi_name != '\0') return info.dlpi_name;
  const ssize_t length = ::readlink("/proc/self/exe", program->data(), program->size() - 1);
  (*program)[static_cast<std::size_t>(std::max<ssize_t>(length, 0))] = '\0';
  return program->data();
}

}  // namespace

bool is_cuda_library(const char* path) noexcept {
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash == nullptr ? path : slash + 1;
  return std::strncmp(name, "libcudart.so", 12) == 0 || std::strncmp(name, "libcuda.so", 10) == 0;
}

struct LoadedModules::Visit {
  LoadedModules* modules;
  bool is_first;
};

int LoadedModules::visit(dl_phdr_info* info, std::size_t size, void* visit_state) noexcept {
  auto* const walk = static_cast<Visit*>(visit_state);
  LoadedModules& modules = *walk->modules;
  if (walk->is_first) {
    walk->is_first = false;
    const bool counts = size >= offsetof(dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs;
    const bool known = modules.count_ != 0 && counts && info->dlpi_adds == modules.adds_ &&
                       info->dlpi_subs == modules.subs_;
    if (known) return 1;
    modules.adds_ = counts ? info->dlpi_adds : 0;
    modules.subs_ = counts ? info->dlpi_subs : 0;
    modules.ordered_ = 0;
    for (std::size_t i = 0; i < modules.count_; ++i) modules.modules_[i].loaded = false;
  }
  modules.add(*info);
  return 0;
}

void LoadedModules::refresh() noexcept {
  Visit walk{this, true};
  dl_iterate_phdr(visit, &walk);
}

bool LoadedModules::same_as(const Module& known, const Module& seen,
                            const char* path) const noexcept {
  return known.base == seen.base && known.begin == seen.begin && known.end == seen.end &&
         known.build_id_bytes == seen.build_id_bytes && known.build_id == seen.build_id &&
         std::strcmp(&text_[known.path], path) == 0;
}

// Notes outside of what is loaded are not read.
void LoadedModules::read_build_id(const dl_phdr_info& info, Module* module) noexcept {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    std::uintptr_t at = info.dlpi_addr + header.p_vaddr;
    const std::uintptr_t end = at + header.p_memsz;
    if (at < module->begin || end > module->end) continue;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* const note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const std::uintptr_t name = at + sizeof *note;
      const std::uintptr_t content =
          name + ((std::uintptr_t{note->n_namesz} + 3) & ~std::uintptr_t{3});
      if (content > end || note->n_descsz > end - content) break;
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
          std::memcmp(reinterpret_cast<const void*>(name), "GNU", 4) == 0) {
        const std::size_t bytes = std::min<std::size_t>(note->n_descsz, kBuildIdBytes);
        std::memcpy(module->build_id.data(), reinterpret_cast<const void*>(content), bytes);
        module->build_id_bytes = static_cast<std::uint16_t>(bytes);
        return;
      }
      at = content + ((std::uintptr_t{note->n_descsz} + 3) & ~std::uintptr_t{3});
    }
  }
}

// Without its path; empty if nothing of it is loaded.
LoadedModules::Module LoadedModules::seen_in(const dl_phdr_info& info) noexcept {
  Module seen{};
  seen.base = info.dlpi_addr;
  seen.begin = UINTPTR_MAX;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info.dlpi_addr + header.p_vaddr;
    seen.begin = std::min(seen.begin, begin);
    seen.end = std::max(seen.end, begin + header.p_memsz);
  }
  return seen;
}

void LoadedModules::add(const dl_phdr_info& info) noexcept {
  Module seen = seen_in(info);
  if (seen.begin >= seen.end) return;
  read_build_id(info, &seen);
  ProgramPath program;
  const char* const path = path_of(info, &program);
  const std::size_t number = number_of(seen, path);
  if (number == kMost) return;
  modules_[number].loaded = true;
  std::size_t place = ordered_++;
  for (; place > 0 && modules_[order_[place - 1]].begin > seen.begin; --place) {
    order_[place] = order_[place - 1];
  }
  order_[place] = static_cast<std::uint16_t>(number);
}

// Of a module seen before, or a new one; kMost without room.
std::size_t LoadedModules::number_of(const Module& seen, const char* path) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (same_as(modules_[i], seen, path)) return i;
  }
  const std::size_t length = std::strlen(path) + 1;
  if (count_ == kMost || text_size_ + length > kTextBytes) return kMost;
  Module& added = modules_[count_];
  added = seen;
  added.between = holds_this(seen.begin, seen.end) || is_cuda_library(path);
  added.path = static_cast<std::uint32_t>(text_size_);
  std::memcpy(&text_[text_size_], path, length);
  text_size_ += length;
  return count_++;
}

std::uint64_t LoadedModules::frame_of(std::uintptr_t address) const noexcept {
  const std::uintptr_t call = address - 1;
  const auto* const first = order_.data();
  const auto* const after = std::upper_bound(
      first, first + ordered_, call,
      [this](std::uintptr_t at, std::uint16_t i) { return at < modules_[i].begin; });
  if (after == first) return PackedFrame::pack(PackedFrame::kUnknown, call);
  const std::size_t number = *(after - 1);
  const Module& module = modules_[number];
  if (call >= module.end) return PackedFrame::pack(PackedFrame::kUnknown, call);
  return PackedFrame::pack(number + 1, call - module.base);
}

bool LoadedModules::is_between(std::uint64_t frame) const noexcept {
  const std::uint64_t module = PackedFrame::module_of(frame);
  return module != PackedFrame::kUnknown && module <= count_ && modules_[module - 1].between;
}

stats::SiteModule LoadedModules::in_words(const Module& module, const char* path) {
  stats::SiteModule words{path, ""};
  for (std::size_t byte = 0; byte < module.build_id_bytes; ++byte) {
    constexpr char kDigits[] = "0123456789abcdef";
    words.build_id += kDigits[module.build_id[byte] >> 4];
    words.build_id += kDigits[module.build_id[byte] & 15u];
  }
  return words;
}

std::vector<stats::SiteModule> LoadedModules::list() const {
  std::vector<stats::SiteModule> modules;
  for (std::size_t i = 0; i < count_; ++i) {
    modules.push_back(in_words(modules_[i], &text_[modules_[i].path]));
  }
  return modules;
}

struct LoadedModules::Search {
  std::uintptr_t address;
  Module found;
  const char* path;
  ProgramPath program;
};

int LoadedModules::search(dl_phdr_info* info, std::size_t /*size*/, void* state) noexcept {
  auto* const search = static_cast<Search*>(state);
  search->found = seen_in(*info);
  if (search->address < search->found.begin || search->address >= search->found.end) return 0;
  read_build_id(*info, &search->found);
  search->path = path_of(*info, &search->program);
  return 1;
}

stats::SiteModule module_at(std::uintptr_t address) {
  LoadedModules::Search search{address, {}, "", {}};
  if (dl_iterate_phdr(LoadedModules::search, &search) == 0) return {};
  return LoadedModules::in_words(search.found, search.path);
}

}  // namespace cupool::trace
