// SPDX-License-Identifier: Apache-2.0
// Recognises UCX by the name of its library, and what it does by the code of the first function.
#include "entry/memory_hooks.h"

#include <array>
#include <atomic>
#include <cstring>

#include "entry/caller.h"
#include "util/log.h"

namespace cupool::entry {
namespace {

// Harmless if its references are replaced after all: the driver serves, and any free is answered.
constexpr const char* kFirst = "cuMemAlloc_v2";

// The first function that UCX was given, and its code at that time. A jump is written over the
// first bytes.
struct Given {
  std::atomic<bool> taken{false};
  std::atomic<const void*> function{nullptr};
  std::array<unsigned char, 16> code{};
};
Given given;

void note_given(const void* function) {
  if (given.taken.exchange(true, std::memory_order_relaxed)) return;
  std::memcpy(given.code.data(), function, given.code.size());
  given.function.store(function, std::memory_order_release);
}

bool is_patched() {
  const void* const function = given.function.load(std::memory_order_acquire);
  return function != nullptr && std::memcmp(function, given.code.data(), given.code.size()) != 0;
}

// libucm.so.0 and its module libucm_cuda.so.0, for "libucm".
bool is_in(const char* library, const void* caller) {
  const char* const object = object_of(caller);
  const std::size_t length = std::strlen(library);
  return std::strncmp(object, library, length) == 0 &&
         (object[length] == '.' || object[length] == '_');
}

}  // namespace

bool has_to_find_the_drivers(const char* symbol, void* real, const void* caller) {
  if (real == nullptr || !is_in("libucm", caller)) return false;
  if (std::strcmp(symbol, kFirst) == 0) {
    note_given(real);
    return true;
  }
  const bool patched = is_patched();
  CUPOOL_LOG(debug, "UCX hooks %s%s", symbol, patched ? " in the driver's code" : "");
  return patched;
}

engine::PointerQueries::KnownUntil known_until(const void* caller) {
  using Until = engine::PointerQueries::KnownUntil;
  return is_in("libuct", caller) ? Until::driver_frees : Until::freed;
}

}  // namespace cupool::entry
