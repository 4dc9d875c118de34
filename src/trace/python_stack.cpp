// SPDX-License-Identifier: Apache-2.0
// Frames are asked by functions: to read their attribute f_code raises an audit event, and so runs
// hooks of the program. Before 3.9 there are no such functions, and so no frames here. Names of
// code objects are attributes that raise none. From 3.11 on a look creates frame objects, which
// could start a garbage collection: it is off meanwhile.
#include "trace/python_stack.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace cupool::trace {

namespace {

struct PythonApi {
  int (*is_initialized)();
  int (*has_lock)();
  void* (*thread_state)();
  void* (*own_thread_state)();
  void* (*frame)();
  void* (*code_of)(void*);
  void* (*caller_of)(void*);
  int (*line)(void*);
  void* (*attribute)(void*, const char*);
  const char* (*text)(void*);
  void (*release)(void*);
  void* (*pending_error)();
  void (*clear_error)();
  int (*stop_collections)();  // from 3.10; in 3.9 frames exist anyway
  int (*start_collections)();
  const char* name;  // of the attribute of code with a function's name
};

std::atomic<const PythonApi*> python_api{nullptr};

template <typename Function>
bool look_up(FindSymbol find, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(find(RTLD_DEFAULT, symbol));
  return *function != nullptr;
}

// The text of an attribute, which its owner keeps. Null without it.
const char* text_of_attribute(const PythonApi& api, void* owner, const char* name) {
  void* const value = api.attribute(owner, name);
  const char* const text = value == nullptr ? nullptr : api.text(value);
  if (value != nullptr) api.release(value);
  return text;
}

}  // namespace

void find_python(FindSymbol find) noexcept {
  static std::atomic<bool> is_looked_for{false};
  static PythonApi api;
  if (is_looked_for.exchange(true)) return;
  const bool found =
      look_up(find, "Py_IsInitialized", &api.is_initialized) &&
      look_up(find, "PyGILState_Check", &api.has_lock) &&
      (look_up(find, "PyThreadState_GetUnchecked", &api.thread_state) ||  // from 3.13
       look_up(find, "_PyThreadState_UncheckedGet", &api.thread_state)) &&
      look_up(find, "PyGILState_GetThisThreadState", &api.own_thread_state) &&
      look_up(find, "PyEval_GetFrame", &api.frame) &&
      look_up(find, "PyFrame_GetCode", &api.code_of) &&    // from 3.9
      look_up(find, "PyFrame_GetBack", &api.caller_of) &&  // from 3.9
      look_up(find, "PyFrame_GetLineNumber", &api.line) &&
      look_up(find, "PyObject_GetAttrString", &api.attribute) &&
      look_up(find, "PyUnicode_AsUTF8", &api.text) && look_up(find, "Py_DecRef", &api.release) &&
      look_up(find, "PyErr_Occurred", &api.pending_error) &&
      look_up(find, "PyErr_Clear", &api.clear_error);
  if (found) {
    if (!look_up(find, "PyGC_Disable", &api.stop_collections) ||
        !look_up(find, "PyGC_Enable", &api.start_collections)) {
      api.stop_collections = nullptr;
    }
    const void* version = nullptr;  // from 3.11, as qualified names
    api.name = look_up(find, "Py_Version", &version) ? "co_qualname" : "co_name";
    python_api.store(&api, std::memory_order_release);
  }
  ::dlerror();  // a failed look-up must not be the program's error
}

std::uintptr_t python_address() noexcept {
  const PythonApi* const api = python_api.load(std::memory_order_acquire);
  return api == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(api->frame);
}

void python_stack(PythonStack* stack) noexcept {
  stack->depth = 0;
  const PythonApi* const api = python_api.load(std::memory_order_acquire);
  if (api == nullptr || api->is_initialized() == 0 || api->has_lock() == 0) return;
  // Once there was a subinterpreter, has_lock() is true for every thread before 3.12, and
  // thread_state() is that of whichever thread has the lock.
  void* const state = api->thread_state();
  if (state == nullptr || state != api->own_thread_state() || api->pending_error() != nullptr) {
    return;
  }
  const bool collects = api->stop_collections != nullptr && api->stop_collections() != 0;
  void* frame = api->frame();  // borrowed
  bool is_own = false;
  while (frame != nullptr && stack->depth < PythonStack::kMost) {
    void* const code = api->code_of(frame);
    if (code == nullptr) break;
    PythonCall& call = stack->calls[stack->depth];
    call.function = text_of_attribute(*api, code, api->name);
    call.file = text_of_attribute(*api, code, "co_filename");
    const int line = api->line(frame);
    call.line = line > 0 ? static_cast<std::uint32_t>(line) : 0;
    api->release(code);
    if (call.function == nullptr || call.file == nullptr) break;
    ++stack->depth;
    void* const caller = api->caller_of(frame);
    if (is_own) api->release(frame);
    frame = caller;
    is_own = true;
  }
  if (is_own && frame != nullptr) api->release(frame);
  if (api->pending_error() != nullptr) api->clear_error();
  if (collects) api->start_collections();
}

std::uint32_t PythonFrames::keep(const char* text) noexcept {
  const std::size_t length = std::strlen(text) + 1;
  if (text_size_ + length > kTextBytes) return 0;
  std::memcpy(&text_[text_size_], text, length);
  text_size_ += length;
  return static_cast<std::uint32_t>(text_size_ - length + 1);
}

std::uint64_t PythonFrames::frame_of(const PythonCall& call) noexcept {
  std::uint64_t hash = call.line;
  for (const char* text : {call.function, call.file}) {
    for (; *text != '\0'; ++text) {
      hash = (hash ^ static_cast<unsigned char>(*text)) * std::uint64_t{0x100000001b3};
    }
    hash = (hash ^ (hash >> 31)) * std::uint64_t{0x9e3779b97f4a7c15};
  }
  for (std::size_t i = hash % kMost;; i = (i + 1) % kMost) {
    Entry& entry = entries_[i];
    if (entry.function == 0) {
      if (used_ >= kMost / 4 * 3) return 0;
      Entry made{hash, keep(call.function), keep(call.file), call.line};
      if (made.function == 0 || made.file == 0) return 0;
      entry = made;
      ++used_;
      return PackedFrame::pack(kModule, i);
    }
    if (entry.hash == hash && entry.line == call.line &&
        std::strcmp(&text_[entry.function - 1], call.function) == 0 &&
        std::strcmp(&text_[entry.file - 1], call.file) == 0) {
      return PackedFrame::pack(kModule, i);
    }
  }
}

bool PythonFrames::describe(std::uint64_t frame, stats::SiteFrame* out) const {
  if (PackedFrame::module_of(frame) != kModule) return false;
  const Entry& entry = entries_[PackedFrame::offset_of(frame)];
  out->function = &text_[entry.function - 1];
  out->file = &text_[entry.file - 1];
  out->line = entry.line;
  return true;
}

}  // namespace cupool::trace
