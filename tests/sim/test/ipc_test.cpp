// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes. The importer is this very program, started again.
// Rules: cuda.h, cuIpcOpenMemHandle and cuMemPoolExportToShareableHandle; measured with an H200.
#include "fixture.h"

#include <fcntl.h>
#include <signal.h>
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

/// An importer that runs beside the exporter, step by step.
class Partner {
 public:
  Partner(const char* kind, const std::string& handle, int file = -1) {
    EXPECT_EQ(pipe(to_), 0);
    EXPECT_EQ(pipe(from_), 0);
    const std::string descriptors = std::to_string(to_[0]) + " " + std::to_string(from_[1]);
    const std::string descriptor = std::to_string(file);
    pid_ = fork();
    if (pid_ != 0) return;
    if (file >= 0) fcntl(file, F_SETFD, 0);
    setenv("SIM_IPC_KIND", kind, 1);
    setenv("SIM_IPC_HANDLE", handle.c_str(), 1);
    setenv("SIM_IPC_FILE", descriptor.c_str(), 1);
    setenv("SIM_IPC_STEPS", descriptors.c_str(), 1);
    execl("/proc/self/exe", "importer", "--gtest_filter=Importer.WorksStepByStep", nullptr);
    _exit(99);
  }
  ~Partner() {
    for (const int file : {to_[0], to_[1], from_[0], from_[1]}) close(file);
  }
  /// Waits until the partner has done its next step.
  void await_step() {
    char c = 0;
    ASSERT_EQ(read(from_[0], &c, 1), 1);
  }
  void next_step() { ASSERT_EQ(write(to_[1], "n", 1), 1); }
  int end() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// The process stays a zombie until end().
  void kill_it() {
    kill(pid_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }

 private:
  pid_t pid_ = 0;
  int to_[2] = {-1, -1};
  int from_[2] = {-1, -1};
};

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

// An importer is an agent that no event of the exporter covers (contract 8).
class ForeignProcess : public JudgedSim {
 protected:
  void SetUp() override {
    JudgedSim::SetUp();
    s = stream();
    anchor = alloc(512);  // keeps the chunk, so that what is freed can be handed out again
  }
  void own(CUdeviceptr p, unsigned long long owner) { cupoolSimOwner(pointer(p), 4096, owner); }
  std::string exported_block(CUdeviceptr* p) {
    CUipcMemHandle handle;
    *p = alloc(4096);
    own(*p, 1);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, *p), CUDA_SUCCESS);
    return hex(&handle, sizeof handle);
  }
  /// Freed, handed out again at once, and written by the new owner.
  void hand_out_again(CUdeviceptr p) {
    own(p, 0);
    ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
    ASSERT_EQ(alloc(4096), p);
    own(p, 2);
    ASSERT_EQ(stamp(s, p, 16, 2), CUDA_SUCCESS);
  }
  CUstream s = nullptr;
  CUdeviceptr anchor = 0;
};

TEST_F(ForeignProcess, PendingWorkOfAnImporterIsFound) {
  CUdeviceptr p = 0;
  Partner partner("legacy", exported_block(&p));
  partner.await_step();  // its kernel is pending
  ASSERT_EQ(stamp(s, p, 16, 1), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 0u) << "the same owner may race with itself";
  hand_out_again(p);
  EXPECT_EQ(complaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "work of an importer"), nullptr);
  partner.next_step();
  partner.await_step();  // it has waited for its kernel
  ASSERT_EQ(stamp(s, p, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(complaints(), 1u);
  partner.next_step();  // and now it uses memory that is not its own any more
  EXPECT_EQ(partner.end(), 0);
}

TEST_F(ForeignProcess, AnImporterThatHasWaitedIsFine) {
  CUdeviceptr p = 0;
  Partner partner("legacy", exported_block(&p));
  partner.await_step();
  partner.next_step();
  partner.await_step();
  hand_out_again(p);
  EXPECT_EQ(complaints(), 0u) << cupoolSimLastComplaint();
  partner.next_step();
  EXPECT_EQ(partner.end(), 0);
}

TEST_F(ForeignProcess, AnImporterThatHasDiedIsFine) {
  CUdeviceptr p = 0;
  Partner partner("legacy", exported_block(&p));
  partner.await_step();
  partner.kill_it();
  hand_out_again(p);
  EXPECT_EQ(complaints(), 0u) << cupoolSimLastComplaint();
  EXPECT_EQ(partner.end(), -1);
}

TEST_F(ForeignProcess, APoolBlockThatIsGivenBackIsFound) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  CUmemPoolPtrExportData data;
  int file = -1;
  ASSERT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(
      cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  for (const bool waits : {true, false}) {
    CUdeviceptr p = 0;
    ASSERT_EQ(cuMemAllocFromPoolAsync(&p, 4096, pool, s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    own(p, 1);
    ASSERT_EQ(cuMemPoolExportPointer(&data, p), CUDA_SUCCESS);
    Partner partner("pool", hex(&data, sizeof data), file);
    partner.await_step();
    if (waits) {
      partner.next_step();
      partner.await_step();
    }
    own(p, 0);
    ASSERT_EQ(cuMemFreeAsync(p, s), CUDA_SUCCESS);
    EXPECT_EQ(complaints(), waits ? 0u : 1u);
    if (!waits) {
      partner.next_step();
      partner.await_step();
    }
    partner.next_step();
    EXPECT_EQ(partner.end(), 0);
  }
  close(file);
}

// The other process.
using Importer = Sim;

CUdeviceptr import_block(const char* kind, const char* text) {
  CUdeviceptr p = 0;
  if (std::strcmp(kind, "legacy") == 0) {
    CUipcMemHandle handle;
    unhex(text, &handle, sizeof handle);
    EXPECT_EQ(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
    return p;
  }
  CUmemoryPool pool = nullptr;
  CUmemPoolPtrExportData data;
  unhex(text, &data, sizeof data);
  void* const file = reinterpret_cast<void*>(static_cast<intptr_t>(atoi(getenv("SIM_IPC_FILE"))));
  EXPECT_EQ(
      cuMemPoolImportFromShareableHandle(&pool, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolImportPointer(&p, pool, &data), CUDA_SUCCESS);
  return p;
}

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
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(cuMemPoolImportPointer(&p, pool, &data), CUDA_SUCCESS);
    CUmemAccess_flags flags{};
    ASSERT_EQ(cuMemPoolGetAccess(&flags, pool, &access.location), CUDA_SUCCESS);
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE)
        << "out of reach until the importer asks for access";
    ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
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

// Imports, submits a kernel; waits for it; uses the memory after its owner has changed.
TEST_F(Importer, WorksStepByStep) {
  if (getenv("SIM_IPC_STEPS") == nullptr) GTEST_SKIP() << "played by the tests above";
  int from = -1;
  int to = -1;
  ASSERT_EQ(std::sscanf(getenv("SIM_IPC_STEPS"), "%d %d", &from, &to), 2);
  const auto step_done = [&] {
    char c = 0;
    ASSERT_EQ(write(to, "d", 1), 1);
    ASSERT_EQ(read(from, &c, 1), 1);
  };
  ASSERT_EQ(cupoolSimSet("judge", "report"), 0);
  const CUdeviceptr p = import_block(getenv("SIM_IPC_KIND"), getenv("SIM_IPC_HANDLE"));
  ASSERT_EQ(stamp(nullptr, p, 16, 3), CUDA_SUCCESS);
  step_done();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cupoolSimComplaints(), 0u);
  step_done();
  ASSERT_EQ(stamp(nullptr, p, 16, 4), CUDA_SUCCESS);
  EXPECT_EQ(cupoolSimComplaints(), 1u);
  EXPECT_NE(std::strstr(cupoolSimLastComplaint(), "memory of another process"), nullptr);
}

}  // namespace cupool::sim::test
