// SPDX-License-Identifier: Apache-2.0
// A tool for NVTX, loaded by NVTX_INJECTION64_PATH as Nsight Systems' own is: writes each call of
// interest as a line into the file that NVTX_TOOL_LOG names. With NVTX_TOOL_ALLOCATES it uses the
// GPU itself first.
#include <dlfcn.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex& mutex() {
  static auto* const made = new std::mutex;
  return *made;
}

std::FILE* log_file() {
  static std::FILE* const file = std::fopen(std::getenv("NVTX_TOOL_LOG"), "w");
  return file;
}

void line(const char* what, const char* text, std::uint64_t value) {
  const std::lock_guard<std::mutex> guard(mutex());
  std::fprintf(log_file(), "%s %s %" PRIu64 "\n", what, text, value);
  std::fflush(log_file());
}

nvtxDomainHandle_t create_domain(const char* name) {
  line("domain", name, 0);
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}

nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(new std::string(text));
}

std::string text_of(const nvtxEventAttributes_t& event) {
  if (event.messageType == NVTX_MESSAGE_TYPE_ASCII) return event.message.ascii;
  if (event.messageType != NVTX_MESSAGE_TYPE_REGISTERED) return "?";
  return *reinterpret_cast<std::string*>(event.message.registered);
}

std::string in_domain(nvtxDomainHandle_t domain, const nvtxEventAttributes_t& event) {
  return domain == nullptr ? "elsewhere"
                           : *reinterpret_cast<std::string*>(domain) + ":" + text_of(event);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  line("push", in_domain(domain, *event).c_str(), event->payload.ullValue);
  return 0;
}

int pop(nvtxDomainHandle_t) {
  line("pop", "-", 0);
  return 0;
}

void mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  line("mark", in_domain(domain, *event).c_str(), event->payload.ullValue);
}

// As a tool may that measures the GPU: before it has told its functions.
void allocate_and_free() {
  using Allocate = int (*)(unsigned long long*, std::size_t);
  using Free = int (*)(unsigned long long);
  const auto allocate = reinterpret_cast<Allocate>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  const auto free = reinterpret_cast<Free>(dlsym(RTLD_DEFAULT, "cuMemFree_v2"));
  unsigned long long memory = 0;
  if (allocate == nullptr || allocate(&memory, 4096) != 0 || free(memory) != 0) std::abort();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  if (std::getenv("NVTX_TOOL_ALLOCATES") != nullptr) allocate_and_free();
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  const auto set = [table](unsigned int id, auto function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE2_DomainCreateA, create_domain);
  set(NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  set(NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(NVTX_CBID_CORE2_DomainRangePop, pop);
  set(NVTX_CBID_CORE2_DomainMarkEx, mark);
  return 1;
}
