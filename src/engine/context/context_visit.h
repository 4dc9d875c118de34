// SPDX-License-Identifier: Apache-2.0
// Excludes the end of a context from work in it. A thread that holds blocks of a context, or uses
// its events or streams, is a visitor. The end of the context admits no new visitor and waits for
// those inside. Otherwise a thread would read records that are gone, and an address could be handed
// out twice (I8).
#pragma once

#include <cstdint>

#include "engine/context/context_gate.h"

namespace cupool::engine {

class Context;

/// The longest wait for the GPU within one visit: the end of the context waits for the visitor.
inline constexpr std::uint64_t kOneVisitNs = 1'000'000;

/// A visit: the calling thread is inside the context while this object, if true, lives. A nested
/// visit of the same context costs nothing. A thread inside one context never waits at the gate of
/// another, which would delay the end of the first; such a visit is refused while the gate is
/// closed.
class ContextVisit {
 public:
  /// `limit_ns`: see ContextGate::enter().
  explicit ContextVisit(Context& context, std::uint64_t limit_ns = 0);
  ~ContextVisit();
  ContextVisit(const ContextVisit&) = delete;
  ContextVisit& operator=(const ContextVisit&) = delete;

  /// False: the context is gone, or still about to end after `limit_ns`. The caller must not use
  /// it.
  explicit operator bool() const { return inside_; }

  /// Number of visits that the calling thread is in, of this gate's context or of any.
  static unsigned of_this_thread(const ContextGate& gate);
  static bool any_of_this_thread();

 private:
  ContextGate* const gate_;
  ContextVisit* const outer_;  ///< the calling thread's enclosing visit
  bool entered_ = false;       ///< this object entered the gate and has to leave it
  bool inside_ = false;
};

/// While it lives, the calling thread's visits wait at no gate: they are refused while it is
/// closed. For background threads. Whoever ends a context may wait for the GPU for as long as a
/// kernel takes, and the end of the process waits for background threads. Not nested, nor in a
/// visit.
class VisitsWithoutWait {
 public:
  VisitsWithoutWait();
  ~VisitsWithoutWait();
  VisitsWithoutWait(const VisitsWithoutWait&) = delete;
  VisitsWithoutWait& operator=(const VisitsWithoutWait&) = delete;
};

/// Around a driver call that may end a context, and the clean-up after it: no thread visits the
/// context meanwhile.
class ContextEnd {
 public:
  explicit ContextEnd(Context& context);
  ~ContextEnd();
  ContextEnd(const ContextEnd&) = delete;
  ContextEnd& operator=(const ContextEnd&) = delete;

  /// False: a thread did not leave within ten seconds. Blocks that it may hold must stay unchanged.
  bool alone() const { return alone_; }

 private:
  ContextGate& gate_;
  const bool alone_;
};

}  // namespace cupool::engine
