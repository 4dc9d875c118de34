// SPDX-License-Identifier: Apache-2.0
// The happens-before judge: remembers accesses that the host has not yet seen complete, and
// complains when a later access by another owner is not ordered after them. It looks at
// submission, with vector clocks, so a fault is found in every execution mode and whether or not
// the accesses really collided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "driver/op.h"
#include "driver/settings.h"

namespace cupool::sim {

class Engine;
struct ForeignUse;

class Referee {
 public:
  Referee(const Settings& settings, const Engine& engine) : settings_(settings), engine_(engine) {}

  void set_owner(uintptr_t base, size_t bytes, unsigned long long owner);

  /// The block is shared with other processes from now on; returns its owner.
  unsigned long long exported(uintptr_t base);

  /// Called for every operation that reads or writes memory, graph replays included.
  void before_submit(const OpSpec& spec, const Clock& clock, Instant at);

  /// The block comes from a pool: usable by what is ordered after `at`.
  void pool_allocated(uintptr_t base, size_t bytes, Instant at);
  /// The block goes back to a pool, ordered as `clock` says; what is pending must be covered.
  void pool_freed(uintptr_t base, size_t bytes, const Clock& clock, Instant at);
  /// The memory went back in stream order: what is known of it means nothing to the next owner.
  void forget(uintptr_t base, size_t bytes);
  void host_access(uintptr_t base, size_t bytes, bool write);

  /// A handle is used whose stream has been destroyed: the real driver may crash.
  void destroyed_stream_used(const char* call);

  unsigned long long complaints() const { return complaints_; }
  const char* last_complaint() const { return last_.c_str(); }

  /// Forgets what the host has seen complete. Often enough by itself; a context's end calls it so
  /// that what is remembered does not depend on what came before.
  void prune();

 private:
  struct Past {
    uintptr_t base;
    size_t bytes;
    bool write;
    bool allocator;  ///< not an owner's access but the pool's own
    unsigned long long owner;
    Instant at;
    const char* name;
  };
  static Past importer(uintptr_t base, const ForeignUse& use);
  struct Range {
    size_t bytes;
    unsigned long long owner;
  };

  bool off() const { return settings_.judge == Judge::off; }
  void remember(const Past& past);
  /// Visits what is known of accesses to memory that overlaps.
  template <typename Visit>
  void each_overlapping(uintptr_t base, size_t bytes, Visit visit);
  unsigned long long owner_of(uintptr_t base) const;
  /// Visits what importers do with memory of this process.
  template <typename Visit>
  void each_import(uintptr_t base, size_t bytes, Visit visit) const;
  void against_importers(const Access& access, const char* name, unsigned long long owner);
  void against_the_exporter(const Access& access, const char* name);
  void complain(const char* what, const char* name, unsigned long long owner, const Past& past);

  const Settings& settings_;
  const Engine& engine_;
  std::map<uintptr_t, std::vector<Past>> unseen_;  // by base
  size_t longest_ = 0;                             // of all ranges that were ever in there
  size_t remembered_ = 0;                          // since the last prune
  std::map<uintptr_t, Range> owners_;
  bool any_exported_ = false;
  unsigned long long complaints_ = 0;
  std::string last_;
};

}  // namespace cupool::sim
