// SPDX-License-Identifier: Apache-2.0
// The shared table of imports. What an importer has pending is counted, not listed: an operation
// that has not executed is ordered before nothing in another process.
#include "driver/foreign.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "driver/world.h"

namespace cupool::sim {

ForeignUse* map_foreign_uses(int file) {
  struct stat about;
  if (fstat(file, &about) != 0) return nullptr;
  void* const at = mmap(nullptr, kForeignBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                        about.st_size - static_cast<off_t>(kForeignBytes));
  return at == MAP_FAILED ? nullptr : static_cast<ForeignUse*>(at);
}

ForeignUse* claim_foreign_use(ForeignUse* table, uint64_t offset, uint64_t bytes, uint64_t owner) {
  for (size_t i = 0; i < kForeignUses; ++i) {
    ForeignUse& use = table[i];
    int32_t nobody = 0;
    if (!use.process.compare_exchange_strong(nobody, getpid())) continue;
    use.reads = 0;
    use.writes = 0;
    use.revoked = 0;
    use.offset = offset;
    use.bytes = bytes;
    use.owner = owner;
    use.ready = 1;
    return &use;
  }
  return nullptr;
}

// With work pending the entry stays: the memory is still in use, whatever the program says.
void release_foreign_use(ForeignUse* use) {
  if (use == nullptr || use->reads != 0 || use->writes != 0) return;
  use->ready = 0;
  use->process = 0;
}

void begin_foreign_uses(Op& op) {
  World& w = world();
  if (w.imports.empty()) return;
  for (const Access& access : op.spec.accesses) {
    const Allocation* const found = w.addresses.find(access.base);
    if (found == nullptr || found->use == nullptr) continue;
    std::atomic<uint32_t>& pending = access.write ? found->use->writes : found->use->reads;
    ++pending;
    op.pending_elsewhere.push_back(&pending);
  }
}

void end_foreign_uses(Op& op) {
  for (std::atomic<uint32_t>* pending : op.pending_elsewhere) --*pending;
  op.pending_elsewhere.clear();
}

bool lives(const ForeignUse& use) {
  char path[64];
  char target[1];
  std::snprintf(path, sizeof path, "/proc/%d/exe", static_cast<int>(use.process));
  return readlink(path, target, sizeof target) > 0;  // a process that waits for its parent has none
}

}  // namespace cupool::sim
