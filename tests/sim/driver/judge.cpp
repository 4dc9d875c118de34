// SPDX-License-Identifier: Apache-2.0
// What counts as a fault: a conflicting access that is not ordered after another owner's, use of
// pool memory that is not ordered after its allocation, giving memory back to a pool while work
// that is not ordered before the free still uses it, and host accesses to memory in use.
#include "driver/judge.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "driver/engine.h"
#include "driver/foreign.h"
#include "driver/world.h"

namespace cupool::sim {

namespace {

constexpr size_t kPruneEvery = 4096;

}  // namespace

// The latest access of its kind on a timeline stands for the earlier ones: what is ordered after
// it is ordered after them.
void Referee::remember(const Past& past) {
  std::vector<Past>& list = unseen_[past.base];
  if (past.bytes > longest_) longest_ = past.bytes;
  for (Past& known : list) {
    if (known.bytes == past.bytes && known.write == past.write && known.owner == past.owner &&
        known.allocator == past.allocator && known.at.timeline == past.at.timeline) {
      known = past;
      return;
    }
  }
  list.push_back(past);
  if (++remembered_ >= kPruneEvery) prune();
}

// What the host has seen complete is ordered before everything that comes.
void Referee::prune() {
  const Clock& host = engine_.host_clock();
  auto seen = [&](const Past& past) { return covers(host, past.at); };
  for (auto it = unseen_.begin(); it != unseen_.end();) {
    std::vector<Past>& list = it->second;
    list.erase(std::remove_if(list.begin(), list.end(), seen), list.end());
    it = list.empty() ? unseen_.erase(it) : std::next(it);
  }
  remembered_ = 0;
}

template <typename Visit>
void Referee::each_overlapping(uintptr_t base, size_t bytes, Visit visit) {
  const uintptr_t first = base > longest_ ? base - longest_ : 0;
  for (auto it = unseen_.lower_bound(first); it != unseen_.end() && it->first < base + bytes;
       ++it) {
    for (const Past& past : it->second) {
      if (past.base + past.bytes > base) visit(past);
    }
  }
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
  each_import(base, bytes,
              [&](ForeignUse& use) { use.revoked = use.owner != 0 && use.owner != owner; });
}

unsigned long long Referee::exported(uintptr_t base) {
  any_exported_ = true;
  return owner_of(base);
}

template <typename Visit>
void Referee::each_import(uintptr_t base, size_t bytes, Visit visit) const {
  const Device* const device = any_exported_ ? world().device_at(base) : nullptr;
  if (device == nullptr) return;
  each_foreign_use(device->arena.foreign_uses(), base - device->arena.base(), bytes, visit);
}

// An importer's operation that has not executed is ordered before nothing here.
void Referee::against_importers(const Access& access, const char* name, unsigned long long owner) {
  each_import(access.base, access.bytes, [&](const ForeignUse& use) {
    const bool conflict = use.writes != 0 || (access.write && use.reads != 0);
    if (use.owner == owner || !conflict || !lives(use)) return;
    complain("foreign access", name, owner, importer(access.base, use));
  });
}

void Referee::against_the_exporter(const Access& access, const char* name) {
  const Allocation* const found = world().addresses.find(access.base);
  if (found == nullptr || found->use == nullptr || found->use->revoked == 0) return;
  Past past{access.base, access.bytes, true, false, 0, Instant{}, "the exporter's new owner"};
  complain("memory of another process that has another owner by now", name, found->use->owner,
           past);
}

Referee::Past Referee::importer(uintptr_t base, const ForeignUse& use) {
  return {base, use.bytes, use.writes != 0, false, use.owner, Instant{}, "work of an importer"};
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

void Referee::destroyed_stream_used(const char* call) {
  if (off()) return;
  last_ = std::string(call) + " is given a stream that has been destroyed";
  ++complaints_;
  std::fprintf(stderr, "cupool sim judge: %s\n", last_.c_str());
  if (settings_.judge == Judge::abort) std::abort();
}

void Referee::before_submit(const OpSpec& spec, const Clock& clock, Instant at) {
  if (off()) return;
  for (const Access& access : spec.accesses) {
    const unsigned long long owner = owner_of(access.base);
    each_overlapping(access.base, access.bytes, [&](const Past& past) {
      if (covers(clock, past.at)) return;
      if (past.allocator) {
        complain("pool memory used too early", spec.name, owner, past);
      } else if (past.owner != owner && (past.write || access.write)) {
        complain("foreign access", spec.name, owner, past);
      }
    });
  }
  for (const Access& access : spec.accesses) {
    const unsigned long long owner = owner_of(access.base);
    against_importers(access, spec.name, owner);
    against_the_exporter(access, spec.name);
    remember({access.base, access.bytes, access.write, false, owner, at, spec.name});
  }
}

void Referee::pool_allocated(uintptr_t base, size_t bytes, Instant at) {
  if (!off()) remember({base, bytes, true, true, 0, at, "allocation"});
}

void Referee::pool_freed(uintptr_t base, size_t bytes, const Clock& clock, Instant at) {
  if (off()) return;
  each_overlapping(base, bytes, [&](const Past& past) {
    // A block allocated in one stream and freed in another without order is a fault as well:
    // cuda.h, cuMemFreeAsync, wants the allocation ordered before the free.
    if (!covers(clock, past.at)) complain("freed to the pool while in use", "free", 0, past);
  });
  each_import(base, bytes, [&](const ForeignUse& use) {
    if ((use.reads == 0 && use.writes == 0) || !lives(use)) return;
    complain("freed to the pool while in use", "free", 0, importer(base, use));
  });
  if (at.timeline != 0) remember({base, bytes, true, true, 0, at, "free"});
}

void Referee::forget(uintptr_t base, size_t bytes) {
  if (off()) return;
  const auto inside = [&](const Past& past) {
    return past.base < base + bytes && base < past.base + past.bytes;
  };
  for (auto it = unseen_.begin(); it != unseen_.end();) {
    std::vector<Past>& list = it->second;
    list.erase(std::remove_if(list.begin(), list.end(), inside), list.end());
    it = list.empty() ? unseen_.erase(it) : std::next(it);
  }
  set_owner(base, bytes, 0);
}

void Referee::host_access(uintptr_t base, size_t bytes, bool write) {
  if (off()) return;
  const Clock& host = engine_.host_clock();
  each_overlapping(base, bytes, [&](const Past& past) {
    if (past.allocator || covers(host, past.at) || !(past.write || write)) return;
    complain("host access", write ? "host write" : "host read", 0, past);
  });
}

}  // namespace cupool::sim
