// SPDX-License-Identifier: Apache-2.0
// Ranks of CUDA-aware MPI that allocate in the loop: buffers, work on them, an exchange with the
// next rank, work on what came, frees. Every word that arrives is checked on the device. On the
// simulated device it runs too.
//
//   mpi_exchange bytes=N[,N...] steps=N kernels=N kind=sendrecv|isend|bcast [device=rank]
//                [memory=once]   buffers stay, as in a program that was changed by hand
//                [held=N]        blocks of that size that live meanwhile, each freed in turn
//                [wait=free]     before an exchange nothing is waited for, but something is freed:
//                                legacy frees wait for the context
// Built with ALONE it has no MPI, and copies on the device where ranks exchange. Prints wrong
// words, and for each size the median of a step.
#include <cuda.h>
#ifndef ALONE
#include <mpi.h>
#endif

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

#define MUST(call)                                                                    \
  do {                                                                                \
    const int must_code = static_cast<int>(call);                                     \
    if (must_code != 0) {                                                             \
      std::fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, must_code); \
      std::_Exit(4);                                                                  \
    }                                                                                 \
  } while (0)

const char* argument(int argc, char** argv, const char* name, const char* otherwise) {
  const std::size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
      return argv[i] + length + 1;
    }
  }
  return otherwise;
}

long number(int argc, char** argv, const char* name, const char* otherwise) {
  return std::strtol(argument(argc, argv, name, otherwise), nullptr, 10);
}

struct Device {
  CUfunction stamp = nullptr;
  CUfunction check = nullptr;
  CUdeviceptr wrong = 0;

  void launch(CUfunction function, void** arguments) const {
    MUST(cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
  }
  void fill(CUdeviceptr words, std::uint64_t count, std::uint32_t value) const {
    void* arguments[] = {&words, &count, &value};
    launch(stamp, arguments);
  }
  void expect(CUdeviceptr words, std::uint64_t count, std::uint32_t value) const {
    CUdeviceptr counter = wrong;
    void* arguments[] = {&words, &count, &value, &counter};
    launch(check, arguments);
  }
};

Device start(int ordinal) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, ordinal));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  std::string image = "no image: the simulated device knows kernels by name";
  if (const char* const path = std::getenv("CUPOOL_TEST_MODULE")) {
    std::ifstream file(path, std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  CUmodule module = nullptr;
  MUST(cuModuleLoadData(&module, image.data()));
  Device made;
  MUST(cuModuleGetFunction(&made.stamp, module, "stamp_u32"));
  MUST(cuModuleGetFunction(&made.check, module, "check_u32"));
  MUST(cuMemAlloc(&made.wrong, sizeof(std::uint64_t)));
  MUST(cuMemsetD8(made.wrong, 0, sizeof(std::uint64_t)));
  MUST(cuCtxSynchronize());
  return made;
}

// Buffers of one size, each allocated when it is needed, or only once.
class Buffers {
 public:
  Buffers(std::size_t bytes, bool once) : bytes_(bytes), once_(once) {}
  ~Buffers() {
    for (const CUdeviceptr address : spare_) MUST(cuMemFree(address));
  }

  CUdeviceptr take() {
    CUdeviceptr address = 0;
    if (spare_.empty()) {
      MUST(cuMemAlloc(&address, bytes_));
    } else {
      address = spare_.front();
      spare_.pop_front();
    }
    return address;
  }
  void give(CUdeviceptr address) {
    if (once_) {
      spare_.push_back(address);
    } else {
      MUST(cuMemFree(address));
    }
  }

 private:
  std::size_t bytes_;
  bool once_;
  std::deque<CUdeviceptr> spare_;
};

struct Job {
  int rank = 0;
  int ranks = 1;
  std::string kind;
  std::size_t bytes = 0;
  long steps = 0;
  long kernels = 0;
  std::size_t held = 0;
  bool once = false;
  bool waits_by_free = false;
};

// A value that no other rank and no other step has.
std::uint32_t value_of(int rank, std::uint32_t step) {
  return 0x40000000u + step * 256u + static_cast<std::uint32_t>(rank);
}

// Between the buffers of this rank and its neighbours; returns whose value has come.
#ifdef ALONE
int exchange(const Job& job, CUdeviceptr sent, CUdeviceptr received) {
  MUST(cuMemcpyDtoD(received, sent, job.bytes));
  MUST(cuCtxSynchronize());
  return job.rank;
}
void begin(Job*, int*, char***) {}
void meet() {}
void end() {}
#else
int exchange(const Job& job, CUdeviceptr sent, CUdeviceptr received) {
  void* const out = reinterpret_cast<void*>(sent);
  void* const in = reinterpret_cast<void*>(received);
  const int bytes = static_cast<int>(job.bytes);
  const int next = (job.rank + 1) % job.ranks;
  const int last = (job.rank + job.ranks - 1) % job.ranks;
  if (job.kind == "sendrecv") {
    MUST(MPI_Sendrecv(out, bytes, MPI_BYTE, next, 7, in, bytes, MPI_BYTE, last, 7, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE));
    return last;
  }
  if (job.kind == "isend") {
    MPI_Request requests[2];
    MUST(MPI_Irecv(in, bytes, MPI_BYTE, last, 7, MPI_COMM_WORLD, &requests[0]));
    MUST(MPI_Isend(out, bytes, MPI_BYTE, next, 7, MPI_COMM_WORLD, &requests[1]));
    MUST(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    return last;
  }
  if (job.kind == "bcast") {
    MUST(cuMemcpyDtoD(received, sent, job.bytes));
    MUST(cuCtxSynchronize());
    MUST(MPI_Bcast(in, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
    return 0;
  }
  std::fprintf(stderr, "unknown kind %s\n", job.kind.c_str());
  std::_Exit(2);
}
void begin(Job* job, int* argc, char*** argv) {
  MUST(MPI_Init(argc, argv));
  MUST(MPI_Comm_rank(MPI_COMM_WORLD, &job->rank));
  MUST(MPI_Comm_size(MPI_COMM_WORLD, &job->ranks));
}
void meet() {
  MUST(MPI_Barrier(MPI_COMM_WORLD));
}
void end() {
  MUST(MPI_Finalize());
}
#endif

void step(const Job& job, const Device& device, Buffers& buffers, std::deque<CUdeviceptr>& kept,
          std::uint32_t number) {
  const std::uint64_t words = job.bytes / sizeof(std::uint32_t);
  const CUdeviceptr sent = buffers.take();
  const CUdeviceptr received = buffers.take();
  const std::uint32_t value = value_of(job.rank, number);
  for (long i = 0; i < job.kernels; ++i) device.fill(sent, words, i + 1 == job.kernels ? value : 0);
  if (job.kernels == 0) MUST(cuMemsetD32(sent, value, words));
  if (job.waits_by_free) {
    CUdeviceptr temporary = 0;
    MUST(cuMemAlloc(&temporary, job.bytes));
    MUST(cuMemFree(temporary));
  } else {
    MUST(cuCtxSynchronize());
  }
  const std::uint32_t expected = value_of(exchange(job, sent, received), number);
  device.expect(received, words, expected);
  // What comes behind the frees writes to all of the memory that they gave back.
  const CUdeviceptr scratch = buffers.take();
  device.fill(scratch, words, 0xDEADBEEFu);
  for (long i = 0; i < job.kernels; ++i) device.expect(received, words, expected);
  buffers.give(scratch);
  buffers.give(received);
  kept.push_back(sent);
  while (kept.size() > job.held) {
    buffers.give(kept.front());
    kept.pop_front();
  }
}

void run(const Job& job, const Device& device) {
  using std::chrono::steady_clock;
  std::vector<double> times;
  {
    Buffers buffers(job.bytes, job.once);
    std::deque<CUdeviceptr> kept;
    for (long number = 0; number < job.steps; ++number) {
      const auto begin = steady_clock::now();
      step(job, device, buffers, kept, static_cast<std::uint32_t>(number));
      times.push_back(
          std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count());
    }
    for (const CUdeviceptr address : kept) MUST(cuMemFree(address));
  }
  std::sort(times.begin(), times.end());
  std::printf("time rank=%d bytes=%zu median_us=%.1f p90_us=%.1f\n", job.rank, job.bytes,
              times[times.size() / 2], times[times.size() * 9 / 10]);
}

std::vector<std::size_t> sizes(const char* list) {
  std::vector<std::size_t> found;
  char* end = nullptr;
  for (const char* at = list; *at != 0; at = *end == ',' ? end + 1 : end) {
    found.push_back(std::strtoull(at, &end, 10));
    if (end == at || (*end != 0 && *end != ',')) {
      std::fprintf(stderr, "no list of sizes: %s\n", list);
      std::_Exit(2);
    }
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  job.kind = argument(argc, argv, "kind", "sendrecv");
  job.steps = number(argc, argv, "steps", "100");
  job.kernels = number(argc, argv, "kernels", "2");
  job.held = static_cast<std::size_t>(number(argc, argv, "held", "0"));
  job.once = std::strcmp(argument(argc, argv, "memory", "loop"), "once") == 0;
  job.waits_by_free = std::strcmp(argument(argc, argv, "wait", "context"), "free") == 0;
  const bool device_of_rank = std::strcmp(argument(argc, argv, "device", "0"), "rank") == 0;
  begin(&job, &argc, &argv);
  const Device device = start(device_of_rank ? job.rank : 0);
  for (const std::size_t bytes : sizes(argument(argc, argv, "bytes", "1048576"))) {
    job.bytes = bytes;
    run(job, device);
    meet();
  }
  std::uint64_t wrong = 0;
  MUST(cuMemcpyDtoH(&wrong, device.wrong, sizeof(wrong)));
  std::printf("result rank=%d wrong=%" PRIu64 "\n", job.rank, wrong);
  std::fflush(stdout);
  end();
  return wrong == 0 ? 0 : 3;
}
