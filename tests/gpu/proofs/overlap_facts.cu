// SPDX-License-Identifier: Apache-2.0
// What separates a programmatic dependent launch from the kernel before it in its stream, and what
// an event behind it covers: a line a fact, for docs/measurements. Started by hand, without cupool.
// A trusts that B may begin at once; B never waits for A.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace {

#define MUST(call)                                                        \
  do {                                                                    \
    const int result = static_cast<int>(call);                            \
    if (result != 0) {                                                    \
      std::printf("%s:%d: %s = %d\n", __FILE__, __LINE__, #call, result); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

constexpr int kRounds = 5;
constexpr uint64_t kLongNs = 50'000'000;

__device__ uint64_t now() {
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void long_kernel(uint64_t* end, uint64_t ns) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const uint64_t begin = now();
  while (now() - begin < ns) {
  }
  *end = now();
}
__global__ void note_begin(uint64_t* begin) {
  *begin = now();
}
__global__ void nothing() {}

using RecordContext = CUresult (*)(CUcontext, CUevent);
using CurrentContext = CUresult (*)(CUcontext*);
RecordContext record_context = nullptr;
CUcontext context = nullptr;
cudaStream_t own = nullptr;
cudaStream_t other = nullptr;
cudaEvent_t event = nullptr;
uint64_t* times = nullptr;  // of A's end, B's begin, the other stream's end

template <typename Function>
void find(const char* name, unsigned version, Function* function) {
  cudaDriverEntryPointQueryResult status;
  MUST(cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void**>(function), version,
                                        cudaEnableDefault, &status));
}

void launch_dependent(cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t shape = {};
  shape.gridDim = 1;
  shape.blockDim = 1;
  shape.stream = stream;
  shape.attrs = &attribute;
  shape.numAttrs = 1;
  MUST(cudaLaunchKernelEx(&shape, note_begin, times + 1));
}

struct Seen {
  int before = 0;   // B began before A ended
  int covered = 0;  // the event behind B was complete only when A had ended
  int waited = 0;   // B began behind the other stream's kernel, where it was to
};

Seen measure(cudaStream_t stream, const std::function<void()>& between,
             const std::function<void()>& launch) {
  Seen seen;
  for (int round = 0; round < kRounds; ++round) {
    MUST(cudaDeviceSynchronize());
    for (int i = 0; i < 3; ++i) times[i] = 0;
    long_kernel<<<1, 1, 0, stream>>>(times, kLongNs);
    between();
    launch();
    MUST(cudaEventRecord(event, stream));
    MUST(cudaEventSynchronize(event));
    seen.covered += *static_cast<volatile uint64_t*>(times) != 0;
    MUST(cudaDeviceSynchronize());
    seen.before += times[1] < times[0];
    seen.waited += times[2] != 0 && times[1] > times[2];
  }
  return seen;
}

void fact(const char* between, const Seen& seen, bool waits = false) {
  std::printf("%-44s B before A's end %d of %d; the event behind B covers A %d of %d", between,
              seen.before, kRounds, seen.covered, kRounds);
  if (waits) std::printf("; B behind the other stream's kernel %d of %d", seen.waited, kRounds);
  std::printf("\n");
}

}  // namespace

int main() {
  MUST(cudaFree(nullptr));
  CurrentContext current = nullptr;
  find("cuCtxRecordEvent", 12050, &record_context);
  find("cuCtxGetCurrent", 12000, &current);
  MUST(current(&context));
  MUST(cudaMallocHost(&times, 3 * sizeof *times));
  MUST(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaEvent_t mark = nullptr;
  for (cudaEvent_t* each : {&event, &mark}) {
    MUST(cudaEventCreateWithFlags(each, cudaEventDisableTiming));
  }
  long_kernel<<<1, 1, 0, own>>>(times, 1);
  launch_dependent(own);
  nothing<<<1, 1, 0, other>>>();
  MUST(cudaDeviceSynchronize());

  const auto in_own = [&] { launch_dependent(own); };
  const auto in_legacy = [&] { launch_dependent(cudaStreamLegacy); };
  fact("nothing", measure(
                      own, [] {}, in_own));
  fact("nothing, legacy stream", measure(
                                     cudaStreamLegacy, [] {}, in_legacy));
  fact("an event of the stream", measure(
                                     own, [&] { MUST(cudaEventRecord(mark, own)); }, in_own));
  fact("the same, legacy stream",
       measure(
           cudaStreamLegacy, [&] { MUST(cudaEventRecord(mark, cudaStreamLegacy)); }, in_legacy));
  fact("an event of the context", measure(
                                      own, [&] { MUST(record_context(context, mark)); }, in_own));
  fact("the same, legacy stream",
       measure(
           cudaStreamLegacy, [&] { MUST(record_context(context, mark)); }, in_legacy));
  fact("an event of the stream, and a wait for it", measure(
                                                        own,
                                                        [&] {
                                                          MUST(cudaEventRecord(mark, own));
                                                          MUST(cudaStreamWaitEvent(own, mark));
                                                        },
                                                        in_own));
  const auto wait_for_other = [&](bool is_long) {
    if (is_long) {
      long_kernel<<<1, 1, 0, other>>>(times + 2, kLongNs / 2);
    } else {
      nothing<<<1, 1, 0, other>>>();
    }
    MUST(cudaEventRecord(mark, other));
    MUST(cudaStreamWaitEvent(own, mark));
  };
  fact("a wait for an event of another stream", measure(
                                                    own, [&] { wait_for_other(false); }, in_own));
  fact("a wait for a kernel of another stream, half as long",
       measure(
           own, [&] { wait_for_other(true); }, in_own),
       true);
  void* block = nullptr;
  void* next = nullptr;
  int same = 0;
  MUST(cudaMallocAsync(&block, 1 << 20, own));
  const Seen pool = measure(
      own,
      [&] {
        MUST(cudaFreeAsync(block, own));
        MUST(cudaMallocAsync(&next, 1 << 20, own));
        same += next == block;
        block = next;
      },
      in_own);
  fact("cudaFreeAsync and cudaMallocAsync", pool);
  std::printf("  the same block in %d of %d\n", same, kRounds);
  fact("a fill of 4 bytes", measure(
                                own, [&] { MUST(cudaMemsetAsync(block, 0, 4, own)); }, in_own));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  MUST(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
  launch_dependent(other);
  MUST(cudaStreamEndCapture(other, &graph));
  MUST(cudaGraphInstantiate(&executable, graph, 0));
  fact("a graph, whose root B is",
       measure(
           own, [] {}, [&] { MUST(cudaGraphLaunch(executable, own)); }));
  return 0;
}
