// SPDX-License-Identifier: Apache-2.0
// The table of processors, read once. C libraries tell the processor without a system call, but few
// of them the node.
#include "engine/host/host_nodes.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace cupool::engine {
namespace {

constexpr unsigned kProcessors = 4096;
constexpr unsigned kNodes = 64;

struct Table {
  std::array<unsigned char, kProcessors> node_of{};
  bool several = false;

  Table() {
    for (unsigned node = 0; node < kNodes; ++node) several = read(node) || several;
  }

 private:
  // "0-15,32-47". True: a node other than 0 has processors.
  bool read(unsigned node) {
    char name[64];
    std::snprintf(name, sizeof name, "/sys/devices/system/node/node%u/cpulist", node);
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    char text[2048];
    const ssize_t size = ::read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return false;
    text[size] = '\0';
    bool any = false;
    for (char* at = text; *at >= '0' && *at <= '9';) {
      const unsigned long first = std::strtoul(at, &at, 10);
      unsigned long last = first;
      if (*at == '-') last = std::strtoul(at + 1, &at, 10);
      for (unsigned long i = first; i <= last && i < kProcessors; ++i) {
        node_of[i] = static_cast<unsigned char>(node);
        any = true;
      }
      if (*at == ',') ++at;
    }
    return any && node != 0;
  }
};

static_assert(std::is_trivially_destructible_v<Table>);

}  // namespace

unsigned current_host_node() {
  static const Table table;  // has no destructor, and needs no heap
  if (!table.several) return 0;
  const int processor = sched_getcpu();
  return processor < 0 ? 0 : table.node_of[static_cast<unsigned>(processor) % kProcessors];
}

}  // namespace cupool::engine
