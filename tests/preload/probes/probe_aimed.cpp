// SPDX-License-Identifier: Apache-2.0
// Page-locked memory as the target of each function that may write to it, behind a kernel: whether
// it is written right after a free of something else. stream=per_thread: by the twins for
// per-thread default streams; free=beside: another thread frees while the function has not
// returned, but its work is under way (CUPOOL_SIM_RETURN_MS); memory=oldest: by the first form of
// cuMemAllocHost.
#include <cuda.h>
#include <cupool_sim.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "probe.h"
#include "probe_gpu.h"

namespace {

using probe::Gpu;
using probe::kBytes;

class Aimed {
 public:
  Aimed(bool per_thread, bool beside, bool oldest) : per_thread_(per_thread), beside_(beside) {
    MUST(cuCtxGetCurrent(&context_));
    MUST(cuMemAlloc(&source_, kBytes));
    MUST(cuMemsetD8(source_, 0x5a, kBytes));
    if (oldest) {  // of before CUDA 3.2, which its header does not declare any more
      using Allocate = CUresult (*)(void**, unsigned);
      const auto allocate = reinterpret_cast<Allocate>(dlsym(RTLD_DEFAULT, "cuMemAllocHost"));
      CHECK(allocate != nullptr);
      MUST(allocate(&host_, kBytes));
    } else {
      MUST(cuMemHostAlloc(&host_, kBytes, 0));
    }
    MUST(cuCtxSynchronize());
    target_ = reinterpret_cast<CUdeviceptr>(host_);
  }

  // `call` gets the stream; a name of `symbol` with _ptsz gets 0, which means the thread's own.
  template <typename Function, typename Call>
  void see(const char* symbol, const Call& call) {
    const std::string name = std::string(symbol) + (per_thread_ ? "_ptsz" : "");
    void* const found = dlsym(RTLD_DEFAULT, name.c_str());
    CHECK(found != nullptr);
    std::memset(host_, 0, kBytes);
    MUST(cuMemAlloc(&block_, kBytes));
    const CUstream work = per_thread_ ? CU_STREAM_PER_THREAD : gpu_.stream;
    gpu_.work(beside_ ? kLongWork : kWork, work);
    bool there = false;
    std::atomic<bool> returned{false};
    std::thread other;
    if (beside_) {
      other = std::thread([&, late = cupoolSimLateReturns()] {
        MUST(cuCtxSetCurrent(context_));
        while (cupoolSimLateReturns() == late && !returned) std::this_thread::yield();
        there = is_there_after_a_free();
      });
    }
    const CUresult answer = call(reinterpret_cast<Function>(found), per_thread_ ? nullptr : work);
    returned = true;
    if (beside_) {
      other.join();
    } else {
      there = is_there_after_a_free();
    }
    std::printf("%s=%d there=%d\n", name.c_str(), static_cast<int>(answer), there);
    MUST(cuCtxSynchronize());
  }
  int see_all();

 private:
  static constexpr std::uint64_t kWork = 20'000'000;
  // As long as two calls that return 20 ms late, and the free between.
  static constexpr std::uint64_t kLongWork = 45'000'000;

  bool is_there_after_a_free() {
    MUST(cuMemFree(block_));
    return *static_cast<volatile unsigned char*>(host_) == 0x5a;
  }
  void see_copies();
  void see_graph();
  void see_launches();
  template <typename Value>
  void see_fill(const char* symbol, Value value) {
    see<CUresult (*)(CUdeviceptr, Value, std::size_t, CUstream)>(
        symbol, [&](auto fill, CUstream stream) {
          return fill(target_, value, kBytes / sizeof(Value), stream);
        });
  }
  template <typename Value>
  void see_fill_2d(const char* symbol, Value value) {
    see<CUresult (*)(CUdeviceptr, std::size_t, Value, std::size_t, std::size_t, CUstream)>(
        symbol, [&](auto fill, CUstream stream) {
          return fill(target_, 512, value, 256 / sizeof(Value), 4, stream);
        });
  }
  template <typename Value>
  void see_write(const char* symbol, Value value) {
    see<CUresult (*)(CUstream, CUdeviceptr, Value, unsigned)>(
        symbol, [&](auto write, CUstream stream) { return write(stream, target_, value, 0); });
  }
  template <typename Copy>
  Copy box() const {
    Copy copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = source_;
    copy.srcPitch = kBytes;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = target_;
    copy.dstPitch = kBytes;
    copy.WidthInBytes = kBytes;
    copy.Height = 1;
    return copy;
  }
  template <typename Copy>
  Copy deep_box() const {
    Copy copy = box<Copy>();
    copy.srcHeight = copy.dstHeight = copy.Depth = 1;
    return copy;
  }
  template <typename Copy>
  void see_box(const char* symbol, const Copy& copy) {
    see<CUresult (*)(const Copy*, CUstream)>(
        symbol, [&](auto make, CUstream stream) { return make(&copy, stream); });
  }

  const Gpu gpu_;
  const bool per_thread_;
  const bool beside_;
  CUcontext context_ = nullptr;
  CUdeviceptr block_ = 0;
  CUdeviceptr source_ = 0;
  CUdeviceptr target_ = 0;
  void* host_ = nullptr;
};

int Aimed::see_all() {
  see_fill<unsigned char>("cuMemsetD8Async", 0x5a);
  see_fill<unsigned short>("cuMemsetD16Async", 0x5a5a);
  see_fill<unsigned int>("cuMemsetD32Async", 0x5a5a5a5a);
  see_fill_2d<unsigned char>("cuMemsetD2D8Async", 0x5a);
  see_fill_2d<unsigned short>("cuMemsetD2D16Async", 0x5a5a);
  see_fill_2d<unsigned int>("cuMemsetD2D32Async", 0x5a5a5a5a);
  see<CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>(
      "cuMemcpyDtoDAsync_v2",
      [&](auto copy, CUstream stream) { return copy(target_, source_, kBytes, stream); });
  see<CUresult (*)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream)>(
      "cuMemcpyPeerAsync", [&](auto copy, CUstream stream) {
        return copy(target_, context_, source_, context_, kBytes, stream);
      });
  see_box("cuMemcpy2DAsync_v2", box<CUDA_MEMCPY2D>());
  see_box("cuMemcpy3DAsync_v2", deep_box<CUDA_MEMCPY3D>());
  CUDA_MEMCPY3D_PEER peer = deep_box<CUDA_MEMCPY3D_PEER>();
  peer.srcContext = peer.dstContext = context_;
  see_box("cuMemcpy3DPeerAsync", peer);
  peer.dstMemoryType = CU_MEMORYTYPE_HOST;
  peer.dstHost = host_;
  see_box("cuMemcpy3DPeerAsync", peer);
  see_write<cuuint32_t>("cuStreamWriteValue32", 0x5a5a5a5a);
  see_write<cuuint32_t>("cuStreamWriteValue32_v2", 0x5a5a5a5a);
  see_write<cuuint64_t>("cuStreamWriteValue64", 0x5a5a5a5a);
  see_write<cuuint64_t>("cuStreamWriteValue64_v2", 0x5a5a5a5a);
  CUstreamBatchMemOpParams write{};
  write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = target_;
  write.writeValue.value = 0x5a5a5a5a;
  for (const char* symbol : {"cuStreamBatchMemOp", "cuStreamBatchMemOp_v2"}) {
    see<CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>(
        symbol, [&](auto batch, CUstream stream) { return batch(stream, 1, &write, 0); });
  }
  see_launches();
  see_copies();
  see_graph();
  return 0;
}

// Those that name host memory as such.
void Aimed::see_copies() {
  see<CUresult (*)(void*, CUdeviceptr, std::size_t, CUstream)>(
      "cuMemcpyDtoHAsync_v2",
      [&](auto copy, CUstream stream) { return copy(host_, source_, kBytes, stream); });
  see<CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>(
      "cuMemcpyAsync",
      [&](auto copy, CUstream stream) { return copy(target_, source_, kBytes, stream); });
  CUDA_MEMCPY2D flat = box<CUDA_MEMCPY2D>();
  flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.dstHost = host_;
  see_box("cuMemcpy2DAsync_v2", flat);
}

// A graph that was captured before, with a copy to the host.
void Aimed::see_graph() {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  MUST(cuStreamBeginCapture(gpu_.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemcpyDtoHAsync(host_, source_, kBytes, gpu_.stream));
  MUST(cuStreamEndCapture(gpu_.stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  see<CUresult (*)(CUgraphExec, CUstream)>(
      "cuGraphLaunch", [&](auto launch, CUstream stream) { return launch(exec, stream); });
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
}

// Kernels that get the host address itself, one by one or in a buffer.
void Aimed::see_launches() {
  struct {
    CUdeviceptr to;
    CUdeviceptr from;
    std::uint64_t words;
  } packed = {target_, source_, 64};
  std::size_t bytes = sizeof packed;
  void* values[] = {&packed.to, &packed.from, &packed.words};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  using Launch = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void**, void**);
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, values, nullptr);
  });
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra);
  });
  void* size_first[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                        &packed, CU_LAUNCH_PARAM_END};
  see<Launch>("cuLaunchKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, size_first);
  });
  using Cooperative = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void**);
  see<Cooperative>("cuLaunchCooperativeKernel", [&](auto launch, CUstream stream) {
    return launch(gpu_.copy, 1, 1, 1, 32, 1, 1, 0, stream, values);
  });
  CUlaunchConfig configuration{};
  configuration.gridDimX = configuration.gridDimY = configuration.gridDimZ = 1;
  configuration.blockDimX = 32;
  configuration.blockDimY = configuration.blockDimZ = 1;
  see<CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**)>(
      "cuLaunchKernelEx", [&](auto launch, CUstream stream) {
        configuration.hStream = stream;
        return launch(&configuration, gpu_.copy, values, nullptr);
      });
}

}  // namespace

int main(int argc, char** argv) {
  return Aimed(probe::argument_is(argc, argv, "stream", "per_thread"),
               probe::argument_is(argc, argv, "free", "beside"),
               probe::argument_is(argc, argv, "memory", "oldest"))
      .see_all();
}
