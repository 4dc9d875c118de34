// Memory shared between processes. The importer is this very program, started again.
// Rules: facts.md, Semantics ("Pool IPC works end to end"); cuda.h, cuIpcOpenMemHandle.
#include "fixture.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace cupool::sim::test {

std::string hex(const void* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

void unhex(const char* text, void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    unsigned value = 0;
    std::sscanf(text + 2 * i, "%2x", &value);
    static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(value);
  }
}

/// Starts this program as an importer and returns its exit status. A file descriptor, if there is
/// one, is handed on by inheritance.
int import_elsewhere(const std::string& kind, const std::string& handle, int file = -1) {
  const std::string descriptor = std::to_string(file);
  const pid_t child = fork();
  if (child == 0) {
    if (file >= 0) fcntl(file, F_SETFD, 0);
    setenv("SIM_IPC_KIND", kind.c_str(), 1);
    setenv("SIM_IPC_HANDLE", handle.c_str(), 1);
    setenv("SIM_IPC_FILE", descriptor.c_str(), 1);
    execl("/proc/self/exe", "importer", "--gtest_filter=Importer.Imports",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

using Ipc = Sim;

TEST_F(Ipc, LegacyMemoryIsSeenByBoth) {
  const CUdeviceptr anchor = alloc(512);
  const CUdeviceptr p = alloc(4096);
  ASSERT_EQ(cuMemsetD32(p, 5, 1024), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  CUipcMemHandle handle;
  ASSERT_EQ(cuIpcGetMemHandle(&handle, p), CUDA_SUCCESS);
  CUdeviceptr q = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_CONTEXT)
      << "not in the same process";
  EXPECT_EQ(import_elsewhere("legacy", hex(&handle, sizeof handle)), 0);
  EXPECT_EQ(word(p, 1), 6u) << "the importer wrote it";
  EXPECT_EQ(word(anchor), 0u);
}

TEST_F(Ipc, PoolMemoryIsSeenByBoth) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  CUdeviceptr p = 0;
  CUmemPoolPtrExportData data;
  int file = -1;
  const CUstream s = stream();
  ASSERT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&p, 4096, pool, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32Async(p, 5, 1024, s), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolExportPointer(&data, p), CUDA_ERROR_INVALID_VALUE)
      << "the pool must be exported before";
  ASSERT_EQ(
      cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolExportPointer(&data, p), CUDA_SUCCESS);
  EXPECT_EQ(import_elsewhere("pool", hex(&data, sizeof data), file), 0);
  EXPECT_EQ(word(p, 1), 6u);
  ASSERT_EQ(cuMemFreeAsync(p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  cuuint64_t reserved = 1;
  cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
  EXPECT_EQ(reserved, 0u) << "an exported pool trims";
  close(file);
}

TEST_F(Ipc, OnlyPoolsMadeForItAreExported) {
  CUmemoryPool pool = nullptr;
  int file = -1;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
  EXPECT_EQ(
      cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
}

// The other process.
using Importer = Sim;

TEST_F(Importer, Imports) {
  const char* kind = getenv("SIM_IPC_KIND");
  if (kind == nullptr) GTEST_SKIP() << "played by the tests above";
  const char* text = getenv("SIM_IPC_HANDLE");
  CUdeviceptr p = 0;
  CUdeviceptr again = 0;
  if (std::strcmp(kind, "legacy") == 0) {
    CUipcMemHandle handle;
    unhex(text, &handle, sizeof handle);
    const size_t before = free_bytes();
    ASSERT_EQ(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
    ASSERT_EQ(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes(), before) << "it is the other process's memory";
  } else {
    CUmemoryPool pool = nullptr;
    CUmemPoolPtrExportData data;
    unhex(text, &data, sizeof data);
    void* const file = reinterpret_cast<void*>(static_cast<intptr_t>(atoi(getenv("SIM_IPC_FILE"))));
    ASSERT_EQ(cuMemPoolImportFromShareableHandle(&pool, file,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolImportPointer(&p, pool, &data), CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolImportPointer(&again, pool, &data), CUDA_SUCCESS);
    CUdeviceptr q = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&q, 4, pool, nullptr), CUDA_ERROR_INVALID_VALUE)
        << "only the exporter allocates";
  }
  EXPECT_EQ(again, p) << "a second import gives the same address";
  EXPECT_EQ(word(p), 5u);
  EXPECT_EQ(word(p, 1023), 5u);
  ASSERT_EQ(stamp(nullptr, p + 4, 1, 6), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const bool legacy = std::strcmp(kind, "legacy") == 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(legacy ? cuIpcCloseMemHandle(p) : cuMemFree(p), CUDA_SUCCESS);
  }
  EXPECT_NE(legacy ? cuIpcCloseMemHandle(p) : cuMemFree(p), CUDA_SUCCESS);
}

}  // namespace cupool::sim::test
