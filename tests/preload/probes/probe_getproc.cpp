// SPDX-License-Identifier: Apache-2.0
// A driver-interface program that gets everything from cuGetProcAddress, as libcudart does
// (docs/design.md, route 3). mode=work runs the common work with such pointers; mode=answers
// prints what both versions of the resolver answer for many names, versions and flags.
#include <dlfcn.h>

#include "driver_work.h"
#include "probe.h"

namespace {

using ResolverV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using ResolverV2 = CUresult (*)(const char*, void**, int, cuuint64_t,
                                CUdriverProcAddressQueryResult*);

struct Resolvers {
  ResolverV1 v1 = nullptr;
  ResolverV2 v2 = nullptr;
};

// Which library the pointer lies in. Ours counts as the driver's: a substituted pointer is the one
// difference that is allowed; the name of a function that nobody substitutes is not.
const char* origin(const void* pointer) {
  if (pointer == nullptr) return "null";
  Dl_info info{};
  if (dladdr(pointer, &info) == 0 || info.dli_fname == nullptr) return "unknown";
  const bool known = std::strstr(info.dli_fname, "libcuda.so") != nullptr ||
                     std::strstr(info.dli_fname, "libcupool") != nullptr;
  return known ? "driver" : "elsewhere";
}

void print_answers(const Resolvers& resolvers, const char* name, int version, cuuint64_t flags) {
  void* pointer = reinterpret_cast<void*>(&pointer);  // a sentinel: is the output written at all?
  void* const sentinel = pointer;
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  int code = static_cast<int>(resolvers.v2(name, &pointer, version, flags, &status));
  std::printf("v2 \"%s\" %d %d: code=%d status=%d %s\n", name, version, static_cast<int>(flags),
              code, static_cast<int>(status), pointer == sentinel ? "untouched" : origin(pointer));
  void* without_status = sentinel;
  code = static_cast<int>(resolvers.v2(name, &without_status, version, flags, nullptr));
  CHECK(without_status == pointer);  // a null status pointer changes nothing else
  std::printf("   null status: code=%d\n", code);
  void* from_v1 = sentinel;
  code = static_cast<int>(resolvers.v1(name, &from_v1, version, flags));
  std::printf("   v1: code=%d %s%s\n", code, from_v1 == sentinel ? "untouched" : origin(from_v1),
              from_v1 == pointer ? ", as v2" : "");
}

void* resolve(const Resolvers& resolvers, const char* name, int version, cuuint64_t flags) {
  void* pointer = nullptr;
  CUdriverProcAddressQueryResult status{};
  resolvers.v2(name, &pointer, version, flags, &status);
  return pointer;
}

void answers(const Resolvers& resolvers) {
  const char* const names[] = {"",
                               "cuInit",
                               "cuDeviceGetCount",
                               "cuMemAlloc",
                               "cuMemAlloc_v2",
                               "cuMemFree",
                               "cuMemAllocPitch",
                               "cuMemGetInfo",
                               "cuMemGetAddressRange",
                               "cuCtxSynchronize",
                               "cuCtxCreate",
                               "cuCtxDestroy",
                               "cuDevicePrimaryCtxReset",
                               "cuDevicePrimaryCtxRelease",
                               "cuMemAllocAsync",
                               "cuMemFreeAsync",
                               "cuMemAllocFromPoolAsync",
                               "cuStreamSynchronize",
                               "cuLaunchKernel",
                               "cuIpcOpenMemHandle",
                               "cuGetProcAddress",
                               "cuNoSuchFunction",
                               "cudaMalloc"};
  for (const char* name : names) {
    for (const int version : {1000, 2000, 3010, 3020, 7000, 11020, 11030, 12000, 12050, 13000}) {
      for (const cuuint64_t flags : {0, 1, 2}) print_answers(resolvers, name, version, flags);
    }
  }
  // Flag and version choose among real functions; a substitute must keep them apart as the driver
  // does, or a per-thread-stream program would run on the wrong stream.
  const auto same = [&](const char* name, int version_a, int flags_a, int version_b, int flags_b) {
    void* a = resolve(resolvers, name, version_a, static_cast<cuuint64_t>(flags_a));
    void* b = resolve(resolvers, name, version_b, static_cast<cuuint64_t>(flags_b));
    std::printf("%s (%d,%d) and (%d,%d): %s\n", name, version_a, flags_a, version_b, flags_b,
                a == nullptr || b == nullptr ? "missing" : (a == b ? "same" : "different"));
  };
  same("cuMemAllocAsync", 12000, 0, 12000, 2);
  same("cuMemFreeAsync", 12000, 0, 12000, 2);
  same("cuStreamSynchronize", 12000, 0, 12000, 2);
  same("cuLaunchKernel", 12000, 0, 12000, 2);
  same("cuMemAlloc", 12000, 0, 12000, 2);
  same("cuMemAlloc", 3020, 0, 12000, 0);
  same("cuCtxSynchronize", 2000, 0, 13000, 0);
  same("cuGetProcAddress", 11030, 0, 12000, 0);
  void* pointer = nullptr;
  std::printf("null name: %d\n",
              static_cast<int>(resolvers.v2(nullptr, &pointer, 12000, 0, nullptr)));
  std::printf("null pointer: %d\n",
              static_cast<int>(resolvers.v2("cuMemAlloc", nullptr, 12000, 0, nullptr)));
  std::printf("unknown flag: %d\n",
              static_cast<int>(resolvers.v2("cuMemAlloc", &pointer, 12000, 1u << 20, nullptr)));
}

}  // namespace

int main(int argc, char** argv) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("no driver\n");
    return probe::kFailedCall;
  }
  Resolvers resolvers;
  resolvers.v1 = reinterpret_cast<ResolverV1>(dlsym(library, "cuGetProcAddress"));
  resolvers.v2 = reinterpret_cast<ResolverV2>(dlsym(library, "cuGetProcAddress_v2"));
  CHECK(resolvers.v1 != nullptr && resolvers.v2 != nullptr);
  if (probe::argument_is(argc, argv, "mode", "answers")) {
    answers(resolvers);
    return 0;
  }
  // version=1: through the older resolver, itself obtained from the newer one, as libcudart does.
  const bool older = probe::argument_is(argc, argv, "resolver", "v1");
  if (older) {
    resolvers.v1 = reinterpret_cast<ResolverV1>(resolve(resolvers, "cuGetProcAddress", 11030, 0));
    CHECK(resolvers.v1 != nullptr);
  }
  DriverFunctions driver;
  const auto get = [&](const char* name) {
    void* pointer = nullptr;
    if (!older) return resolve(resolvers, name, 12000, 0);
    resolvers.v1(name, &pointer, 12000, 0);
    return pointer;
  };
#define DRIVER_FILL(name, exact)                                               \
  driver.name##_fn = reinterpret_cast<decltype(driver.name##_fn)>(get(#name)); \
  CHECK(driver.name##_fn != nullptr);
  DRIVER_FUNCTIONS(DRIVER_FILL)
#undef DRIVER_FILL
  return report_driver_work(
      run_driver_work(driver, static_cast<int>(probe::number(argc, argv, "iterations", 30))));
}
