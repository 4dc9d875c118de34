// SPDX-License-Identifier: Apache-2.0
// /etc/ld.so.cache in the format of glibc 2.2 and later, alone or after a table in the older
// format. Source: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new).
#include <cstring>
#include <string_view>

#include "cli/doctor/dependencies.h"

namespace cupool::cli {

namespace {

constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";

struct Header {
  char magic[20];
  std::uint32_t libraries;
  std::uint32_t string_bytes;
  std::uint8_t flags;
  std::uint8_t padding[3];
  std::uint32_t extension_offset;
  std::uint32_t unused[3];
};
static_assert(sizeof(Header) == 48, "as glibc writes it");

struct Entry {
  std::int32_t flags;
  std::uint32_t name;  // offsets from the header
  std::uint32_t path;
  std::uint32_t os_version;
  std::uint64_t hardware;  // not 0: a variant for certain processors
};
static_assert(sizeof(Entry) == 24, "as glibc writes it");

std::string text_at(std::string_view bytes, std::uint32_t offset) {
  if (offset >= bytes.size()) return "";
  const std::string_view rest = bytes.substr(offset);
  return std::string(rest.substr(0, std::min(rest.find('\0'), rest.size())));
}

}  // namespace

std::vector<Dependency> parse_loader_cache(const std::string& bytes) {
  std::vector<Dependency> libraries;
  const std::size_t begin = bytes.find(kMagic);
  if (begin == std::string::npos || bytes.size() - begin < sizeof(Header)) return libraries;
  const std::string_view cache = std::string_view(bytes).substr(begin);
  Header header{};
  std::memcpy(&header, cache.data(), sizeof header);
  if (header.libraries > (cache.size() - sizeof header) / sizeof(Entry)) return libraries;
  for (std::uint32_t i = 0; i < header.libraries; ++i) {
    Entry entry{};
    std::memcpy(&entry, cache.data() + sizeof header + i * sizeof entry, sizeof entry);
    if (entry.hardware != 0) continue;
    libraries.push_back({text_at(cache, entry.name), text_at(cache, entry.path)});
  }
  return libraries;
}

}  // namespace cupool::cli
