// SPDX-License-Identifier: Apache-2.0
// Modules, libraries and the kernels in them. Any image is accepted; kernels are built in and
// found by name, with the same names and arguments as the real ones of the GPU tests.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "driver/op.h"

namespace cupool::sim {

struct Context;

/// A built-in kernel: how to read its arguments and what it does with them.
struct Kernel {
  const char* name;
  std::vector<size_t> argument_bytes;
  OpSpec (*make)(Context& context, const std::vector<uint64_t>& arguments);
};

const Kernel* find_kernel(const std::string& name);

struct Module;

struct Function {
  const Kernel* kernel = nullptr;
  Module* module = nullptr;
};

struct Module {
  Context* context = nullptr;  ///< null: a library, usable in every context
  uintptr_t memory = 0;        ///< the chunk of device memory that its code takes
  std::vector<std::unique_ptr<Function>> functions;
};

class Modules {
 public:
  /// Null when the device has no memory for it (contract 4: module loading can run out too).
  Module* load(Context* context);
  bool unload(Module* module);
  void unload_all(Context& context);
  bool known(const Module* module) const { return modules_.count(const_cast<Module*>(module)); }
  bool known(const Function* function) const {
    return functions_.count(const_cast<Function*>(function));
  }
  Function* function(Module& module, const char* name);
  size_t count_in(const Module& module) const { return module.functions.size(); }

 private:
  std::set<Module*> modules_;
  std::set<Function*> functions_;
};

}  // namespace cupool::sim
