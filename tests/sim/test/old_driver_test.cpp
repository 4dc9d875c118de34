// SPDX-License-Identifier: Apache-2.0
// The variants that stand for older drivers: what they must not have.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace cupool::sim::test {

struct Driver {
  explicit Driver(const char* folder)
      : library(dlopen((std::string(SIM_ROOT) + "/" + folder + "/libcuda.so.1").c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {}
  bool has(const char* name) const { return dlsym(library, name) != nullptr; }
  template <typename Function>
  Function get(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library, name));
  }
  void* library;
};

TEST(OldDriver, WithoutContextEvents) {
  const Driver d("lib-no-ctx-event");
  ASSERT_NE(d.library, nullptr) << dlerror();
  for (const char* name : {"cuCtxRecordEvent", "cuCtxWaitEvent", "cuCtxSynchronize_v2"}) {
    EXPECT_FALSE(d.has(name)) << name;
  }
  for (const char* name : {"cuMemPoolCreate", "cuGetProcAddress_v2", "cuCtxSynchronize"}) {
    EXPECT_TRUE(d.has(name)) << name;
  }
  int version = 0;
  d.get<decltype(&cuDriverGetVersion)>("cuDriverGetVersion")(&version);
  EXPECT_EQ(version, 12040);
  void* function = &version;
  const auto find = d.get<decltype(&cuGetProcAddress)>("cuGetProcAddress_v2");
  EXPECT_EQ(find("cuCtxRecordEvent", &function, 12040, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(find("cuCtxSynchronize", &function, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(OldDriver, WithoutPools) {
  const Driver d("lib-no-pools");
  ASSERT_NE(d.library, nullptr) << dlerror();
  for (const char* name : {"cuMemPoolCreate", "cuMemAllocAsync", "cuMemFreeAsync_ptsz",
                           "cuGetProcAddress", "cuGetProcAddress_v2", "cuDeviceGetMemPool"}) {
    EXPECT_FALSE(d.has(name)) << name;
  }
  for (const char* name : {"cuMemAlloc_v2", "cuStreamQuery_ptsz", "cuStreamBeginCapture_v2"}) {
    EXPECT_TRUE(d.has(name)) << name;
  }
  ASSERT_EQ(d.get<decltype(&cuInit)>("cuInit")(0), CUDA_SUCCESS);
  int supported = -1;
  d.get<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute")(
      &supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0);
  EXPECT_EQ(supported, 0);
}

}  // namespace cupool::sim::test
