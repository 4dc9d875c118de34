// SPDX-License-Identifier: Apache-2.0
// Offsets suit addr2line: relative to the module's link address, and of the call itself, one byte
// before its return address.
#include "trace/call_stack.h"

#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>

#include "trace/loaded_modules.h"
#include "util/demangle.h"
#include "util/unwind.h"

namespace cupool::trace {

namespace {

constexpr std::size_t kShownFrames = 8;

struct Walk {
  std::uintptr_t* addresses;
  std::size_t most;
  std::size_t longest;
  std::size_t depth;
  bool in_handler;
};

_Unwind_Reason_Code keep_frame(_Unwind_Context* context, void* state) {
  auto* walk = static_cast<Walk*>(state);
  bool is_interrupted = false;
  const std::uintptr_t address = util::address_in_frame(context, &is_interrupted);
  if (is_interrupted) walk->in_handler = true;
  if (address == 0) return _URC_NORMAL_STOP;
  if (walk->depth == walk->longest) {
    walk->in_handler = true;
    return _URC_NORMAL_STOP;
  }
  if (walk->depth < walk->most) walk->addresses[walk->depth] = address;
  ++walk->depth;
  return _URC_NO_REASON;
}

// The modules between the program and the allocation: cupool and NVIDIA's.
bool is_between(const Dl_info& info) {
  static const void* const own_base = [] {
    Dl_info own{};
    return dladdr(reinterpret_cast<void*>(&call_stack), &own) != 0 ? own.dli_fbase : nullptr;
  }();
  return info.dli_fbase == own_base || is_cuda_library(info.dli_fname);
}

}  // namespace

CallStack call_stack() noexcept {
  CallStack stack;
  bool in_handler = false;
  walk_stack(stack.addresses.data(), CallStack::kMostFrames, CallStack::kMostFrames, &in_handler);
  return stack;
}

std::size_t walk_stack(std::uintptr_t* addresses, std::size_t most, std::size_t longest,
                       bool* in_handler) noexcept {
  Walk walk{addresses, most, longest, 0, false};
  _Unwind_Backtrace(keep_frame, &walk);
  *in_handler = walk.in_handler;
  return std::min(walk.depth, most);
}

std::vector<stats::LeakFrame> frames_of(const CallStack& stack,
                                        std::vector<stats::SiteModule>* modules) {
  std::vector<stats::LeakFrame> frames;
  std::vector<const void*> bases;  // of the modules
  for (const std::uintptr_t address : stack.addresses) {
    if (address == 0 || frames.size() == kShownFrames) break;
    Dl_info info{};
    link_map* module = nullptr;
    const bool known = dladdr1(reinterpret_cast<void*>(address - 1), &info,
                               reinterpret_cast<void**>(&module), RTLD_DL_LINKMAP) != 0;
    if (!known) {
      frames.push_back({"", address - 1, ""});
      continue;
    }
    if (frames.empty() && is_between(info)) continue;
    const auto place = std::find(bases.begin(), bases.end(), info.dli_fbase);
    const auto number = static_cast<int>(place - bases.begin());
    if (place == bases.end()) {
      bases.push_back(info.dli_fbase);
      modules->push_back(module_at(address - 1));
    }
    frames.push_back({info.dli_fname, address - 1 - module->l_addr,
                      info.dli_sname == nullptr ? "" : util::demangled(info.dli_sname), number});
  }
  return frames;
}

}  // namespace cupool::trace
