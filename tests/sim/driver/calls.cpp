// SPDX-License-Identifier: Apache-2.0
// Counting and fault injection. Both work before cuInit and after teardown, so they rest on
// nothing but atomics and one small lock of their own.
#include "driver/calls.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace cupool::sim {

namespace {

constexpr unsigned kCalls = static_cast<unsigned>(Call::count);

struct Name {
  const char* base;
  const char* symbol;
};

constexpr Name kNames[] = {
#define SIM_FUNCTION(base, symbol, since, per_thread) {#base, #symbol},
#include "driver/functions.def"
#undef SIM_FUNCTION
};

std::atomic<unsigned long long> counts[kCalls];

struct Fault {
  Call call;
  long nth;      // 0: every call
  bool onwards;  // from the nth call on
  CUresult code;
  bool stays;
  bool hangs;
  unsigned group;  // base name rules count calls of all their symbols together
  bool follows;    // counts from when the rule before it has struck
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> rules;
  std::vector<long> seen;    // by group
  std::vector<bool> struck;  // by group
};

std::atomic<bool> any_fault{false};

// The calls after the first injected fault, by the order of each function's first one.
std::atomic<bool> any_struck{false};
std::atomic<unsigned> places{0};
std::atomic<unsigned> place_after[kCalls];

Faults& faults() {
  static auto* const instance = new Faults;  // never destroyed: calls arrive after exit handlers
  return *instance;
}

}  // namespace

const char* call_symbol(Call call) {
  return kNames[static_cast<unsigned>(call)].symbol;
}

void count_call(Call call) {
  counts[static_cast<unsigned>(call)].fetch_add(1, std::memory_order_relaxed);
  std::atomic<unsigned>& place = place_after[static_cast<unsigned>(call)];
  if (any_struck.load(std::memory_order_relaxed) && place.load() == 0) place.store(++places);
}

unsigned long long calls_of(const char* symbol) {
  for (unsigned i = 0; i < kCalls; ++i) {
    if (std::strcmp(kNames[i].symbol, symbol) == 0) return counts[i].load();
  }
  return 0;
}

bool any_call() {
  for (const auto& count : counts) {
    if (count.load() != 0) return true;
  }
  return false;
}

void forget_calls() {
  for (auto& count : counts) count.store(0);
}

void write_calls(const std::string& path) {
  std::string name = path;
  const size_t at = name.find("%p");
  if (at != std::string::npos) name.replace(at, 2, std::to_string(getpid()));
  std::FILE* file = std::fopen(name.c_str(), "w");
  if (file == nullptr) return;
  for (unsigned i = 0; i < kCalls; ++i) {
    const unsigned long long n = counts[i].load();
    if (n == 0) continue;
    std::fprintf(file, "%s %llu", kNames[i].symbol, n);
    if (const unsigned place = place_after[i].load()) std::fprintf(file, " after %u", place);
    std::fprintf(file, "\n");
  }
  std::fclose(file);
}

InjectedFault injected_fault(Call call) {
  if (!any_fault.load(std::memory_order_acquire)) return {};
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  const Fault* striking = nullptr;
  for (const Fault& rule : f.rules) {
    if (rule.call != call) continue;
    if (rule.follows && !f.struck[rule.group - 1]) continue;
    const long n = ++f.seen[rule.group];
    const bool hit = rule.nth == 0 || n == rule.nth || (rule.onwards && n > rule.nth);
    if (hit && striking == nullptr) striking = &rule;
  }
  if (striking == nullptr) return {};
  f.struck[striking->group] = true;
  any_struck.store(true, std::memory_order_relaxed);
  return {striking->code, striking->stays, striking->hangs};
}

bool set_faults(const char* rules) {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  f.rules.clear();
  f.seen.clear();
  f.struck.clear();
  bool good = true;
  for (const char* at = rules; *at != '\0' && good;) {
    const char* end = std::strchr(at, ',');
    const std::string rule = end != nullptr ? std::string(at, end) : std::string(at);
    at = end != nullptr ? end + 1 : at + rule.size();
    const size_t colon = rule.find(':');
    const size_t equals = rule.find('=', colon == std::string::npos ? 0 : colon);
    if (colon == std::string::npos || equals == std::string::npos) {
      good = false;
      break;
    }
    const bool follows = rule.front() == '>';
    const std::string name = rule.substr(follows ? 1 : 0, colon - (follows ? 1 : 0));
    const std::string which = rule.substr(colon + 1, equals - colon - 1);
    Fault fault{};
    fault.nth = which == "*" ? 0 : std::atol(which.c_str());
    fault.onwards = !which.empty() && which.back() == '+';
    fault.code = static_cast<CUresult>(std::atoi(rule.c_str() + equals + 1));
    fault.stays = rule.back() == '!';
    fault.hangs = rule.compare(equals + 1, std::string::npos, "hang") == 0;
    fault.group = static_cast<unsigned>(f.seen.size());
    fault.follows = follows;
    bool known = false;
    for (unsigned i = 0; i < kCalls; ++i) {
      if (name != kNames[i].symbol && name != kNames[i].base) continue;
      fault.call = static_cast<Call>(i);
      f.rules.push_back(fault);
      known = true;
    }
    f.seen.push_back(0);
    f.struck.push_back(false);
    good = known && (fault.group > 0 || !follows) && (which == "*" || fault.nth > 0);
  }
  any_fault.store(!f.rules.empty(), std::memory_order_release);
  return good;
}

}  // namespace cupool::sim
