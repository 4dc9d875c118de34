// What counts as a fault: a conflicting access that is not ordered after another owner's, use of
// pool memory that is not ordered after its allocation, giving memory back to a pool while work
// that is not ordered before the free still uses it, and host accesses to memory in use.
#include "driver/judge.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "driver/engine.h"

namespace cupool::sim {

namespace {

bool overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void Referee::prune() {
  const Clock& host = engine_.host_clock();
  auto seen = [&](const Past& past) { return covers(host, past.at); };
  unseen_.erase(std::remove_if(unseen_.begin(), unseen_.end(), seen), unseen_.end());
}

unsigned long long Referee::owner_of(uintptr_t address) const {
  auto it = owners_.upper_bound(address);
  if (it == owners_.begin()) return 0;
  --it;
  return address - it->first < it->second.bytes ? it->second.owner : 0;
}

void Referee::set_owner(uintptr_t base, size_t bytes, unsigned long long owner) {
  auto it = owners_.lower_bound(base);
  if (it != owners_.begin()) {
    const auto previous = std::prev(it);
    if (previous->first + previous->second.bytes > base) it = previous;
  }
  while (it != owners_.end() && it->first < base + bytes) it = owners_.erase(it);
  if (owner != 0) owners_[base] = Range{bytes, owner};
}

void Referee::complain(const char* what, const char* name, unsigned long long owner,
                       const Past& past) {
  char text[512];
  std::snprintf(text, sizeof text,
                "%s: %s by owner %llu is not ordered after %s by %s %llu (stream timeline %u, "
                "operation %llu, address %#zx, %zu bytes)",
                what, name, owner, past.name, past.allocator ? "the pool, block" : "owner",
                past.owner, past.at.timeline, static_cast<unsigned long long>(past.at.number),
                static_cast<size_t>(past.base), past.bytes);
  last_ = text;
  ++complaints_;
  std::fprintf(stderr, "cupool sim judge: %s\n", text);
  if (settings_.judge == Judge::abort) std::abort();
}

void Referee::before_submit(const OpSpec& spec, const Clock& clock, Instant at) {
  if (off() || spec.accesses.empty()) return;
  prune();
  const size_t known = unseen_.size();
  for (const Access& access : spec.accesses) {
    const unsigned long long owner = owner_of(access.base);
    for (size_t i = 0; i < known; ++i) {
      const Past& past = unseen_[i];
      if (!overlap(access.base, access.bytes, past.base, past.bytes)) continue;
      if (covers(clock, past.at)) continue;
      if (past.allocator) {
        complain("pool memory used too early", spec.name, owner, past);
      } else if (past.owner != owner && (past.write || access.write)) {
        complain("foreign access", spec.name, owner, past);
      }
    }
    unseen_.push_back({access.base, access.bytes, access.write, false, owner, at, spec.name});
  }
}

void Referee::pool_allocated(uintptr_t base, size_t bytes, Instant at) {
  if (off()) return;
  prune();
  unseen_.push_back({base, bytes, true, true, 0, at, "allocation"});
}

void Referee::pool_freed(uintptr_t base, size_t bytes, const Clock& clock, Instant at) {
  if (off()) return;
  prune();
  for (const Past& past : unseen_) {
    if (!overlap(base, bytes, past.base, past.bytes) || covers(clock, past.at)) continue;
    // A block allocated in one stream and freed in another without order is the program's fault
    // as well: cuda.h, cuMemFreeAsync: "the allocation must be ordered before the free".
    complain("freed to the pool while in use", "free", owner_of(base), past);
  }
  if (at.timeline != 0) unseen_.push_back({base, bytes, true, true, 0, at, "free"});
}

void Referee::forget(uintptr_t base, size_t bytes) {
  if (off()) return;
  auto inside = [&](const Past& past) { return overlap(base, bytes, past.base, past.bytes); };
  unseen_.erase(std::remove_if(unseen_.begin(), unseen_.end(), inside), unseen_.end());
  set_owner(base, bytes, 0);
}

void Referee::host_access(uintptr_t base, size_t bytes, bool write) {
  if (off()) return;
  prune();
  for (const Past& past : unseen_) {
    if (past.allocator || !overlap(base, bytes, past.base, past.bytes)) continue;
    if (past.write || write) complain("host access", write ? "host write" : "host read", 0, past);
  }
}

}  // namespace cupool::sim
