// SPDX-License-Identifier: Apache-2.0
// The table, by open addressing. A call site may be there twice, where a place before it became
// free.
#include "entry/call_sites.h"

#include "entry/caller.h"

namespace cupool::entry {
namespace {

using detail::call_sites;
using detail::CallSite;

const char being_written = 0;  // its address is nobody's return address

std::atomic<bool> any_known{false};

CallSiteFacts look_up(const char* symbol, const void* caller) {
  CallSiteFacts facts;
  facts.symbol = symbol;
  if (symbol != nullptr) facts.real = resolve_runtime_function(symbol, caller);
  facts.bypassed = is_in_listed_library(caller);
  facts.of_toolkit = is_cuda_library(caller);
  facts.has_short_cut = !facts.bypassed && facts.allows_short_cut();
  return facts;
}

CallSiteFacts find(const char* symbol, const void* caller) {
  constexpr std::size_t kPlaces = std::size_t{1} << detail::kCallSitesLog2;
  std::size_t place = detail::first_place_of(caller);
  for (std::size_t probe = 0; probe < kPlaces; ++probe, place = (place + 1) % kPlaces) {
    CallSite& site = call_sites[place];
    if (site.is_of(caller) && site.facts.symbol == symbol) return site.facts;
    if (!site.is_free()) continue;
    const CallSiteFacts facts = look_up(symbol, caller);
    // Where another thread takes the place, the next call finds its own.
    const bool found = symbol == nullptr || facts.real.function != nullptr;
    return found && site.take(caller, facts) ? site.facts : facts;
  }
  return look_up(symbol, caller);
}

}  // namespace

bool CallSite::take(const void* caller, const CallSiteFacts& what) {
  const void* nobody = nullptr;
  if (!caller_.compare_exchange_strong(nobody, &being_written, std::memory_order_acq_rel)) {
    return false;
  }
  facts = what;
  facts.host_kinds = &host_kinds;
  host_kinds.forget();
  object_ = object_id(caller);
  caller_.store(caller, std::memory_order_release);
  if (!any_call_site()) any_known.store(true, std::memory_order_release);
  return true;
}

void CallSite::review() {
  const void* caller = caller_.load(std::memory_order_acquire);
  if (caller == nullptr || caller == &being_written || object_id(caller) == object_) return;
  caller_.compare_exchange_strong(caller, nullptr, std::memory_order_acq_rel);
}

CallSiteFacts facts_of(const char* symbol, const void* caller) {
  CallSiteFacts facts = find(symbol, caller);
  facts.bypassed = facts.bypassed || in_bypassed_call();
  return facts;
}

bool is_bypassed_otherwise(const void* caller) {
  return in_bypassed_call() || find(nullptr, caller).bypassed;
}

bool is_of_its_own_otherwise(const void* caller) {
  if (in_bypassed_call()) return true;
  const CallSiteFacts facts = find(nullptr, caller);
  return facts.bypassed || facts.of_toolkit;
}

bool any_call_site() {
  return any_known.load(std::memory_order_acquire);
}

void review_call_sites() {
  for (CallSite& site : call_sites) site.review();
}

}  // namespace cupool::entry
