// SPDX-License-Identifier: Apache-2.0
// Green contexts (CUDA Driver API, Green Contexts): streams of a primary context that are told
// apart from its others. Memory and code are the primary context's.
#pragma once

#include <cuda.h>

#include <map>
#include <vector>

#include "driver/context.h"
#include "driver/op.h"

namespace cupool::sim {

struct GreenContext {
  Context* primary = nullptr;
  bool alive = true;          ///< a destroyed one stays known
  bool holds_primary = true;  ///< until it is destroyed, also where a reset has ended it
  unsigned long long id = 0;
  unsigned sms = 0;
  /// Null and per-thread handles while it is current. The former is the legacy one's as well.
  Stream* default_stream = nullptr;
  std::map<unsigned long long, Stream*> per_thread;  ///< by thread number
  std::vector<OpRef> orphans;                        ///< work of destroyed streams
  char converted = 0;                                ///< its address is another handle

  CUgreenCtx handle() { return reinterpret_cast<CUgreenCtx>(this); }
  /// As a context (cuCtxFromGreenCtx).
  CUcontext context_handle() { return reinterpret_cast<CUcontext>(&converted); }
};

/// What a CUcontext names: a context, or a green one of it.
struct NamedContext {
  Context* context = nullptr;  ///< null: unknown
  GreenContext* green = nullptr;

  CUcontext handle() const;
  /// A context that may be used: alive and without a sticky error.
  CUresult usable() const;
};

/// A green context with a default stream. The caller retains the primary one.
GreenContext& create_green(Context& primary, unsigned sms);
/// Its streams stay, and no call that names one succeeds (cuda.h, cuGreenCtxDestroy).
void end_green(GreenContext& green);
/// The green contexts of a primary one end.
void end_greens_of(const Context& primary);

Stream& per_thread_stream(GreenContext& green);
/// What a synchronisation of the green context alone waits for.
std::vector<OpRef> tails(GreenContext& green);

}  // namespace cupool::sim
