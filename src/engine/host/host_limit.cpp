// SPDX-License-Identifier: Apache-2.0
// Reads /proc/self/cgroup and the limits of the groups it names. A limit holds for all groups
// below, so those above count, too. In a container the path may lead nowhere: then only the root is
// seen, which is the container's own.
#include "engine/host/host_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "util/text.h"

namespace cupool::engine {
namespace {

constexpr std::uint64_t kMostOfAuto = 4ull << 30;
constexpr std::uint64_t kShareOfMemory = 16;

std::string contents(const std::string& path) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[4096];
  for (ssize_t size = 0; (size = read(file, part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(size));
  }
  close(file);
  return text;
}

// "max" of v2 is no number; the largest number of v1 is beyond any machine's memory.
std::uint64_t limit_in(const std::string& path) {
  std::uint64_t limit = 0;
  return util::parse_uint64(util::trim(contents(path)), &limit) ? limit : ~std::uint64_t{0};
}

std::uint64_t least_on_the_way(const std::string& mount, std::string group, const char* name) {
  std::uint64_t least = limit_in(mount + "/" + name);
  for (; group.size() > 1; group.resize(group.rfind('/'))) {
    least = std::min(least, limit_in(mount + group + "/" + name));
    if (group.rfind('/') == std::string::npos) break;
  }
  return least;
}

}  // namespace

std::uint64_t memory_of_process(const std::string& root) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  std::uint64_t least = pages > 0 && page > 0
                            ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                            : 0;
  const std::string groups = contents(root + "/proc/self/cgroup");
  for (std::size_t at = 0; at < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);  // number:controllers:path
    at = end + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, least_on_the_way(root + "/sys/fs/cgroup", group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(
          least, least_on_the_way(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

std::uint64_t most_cached_host_bytes(const config::LimitOption& option, std::uint64_t memory) {
  if (option.grows) return std::min(memory / kShareOfMemory, kMostOfAuto);
  return option.resolve(memory);
}

}  // namespace cupool::engine
