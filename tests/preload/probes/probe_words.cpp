// SPDX-License-Identifier: Apache-2.0
// A program that does what its words say, in their order: name or name=number. Of memory: loop=N
// (N allocations, fills and frees of device memory), async=N, managed=N and host=N of the other
// kinds; keep_device, keep_async, keep_managed and keep_host (memory that is never freed). Of
// refused calls: refuse_device, refuse_managed (a free that the driver refuses, of memory that
// stays). Of the rest: device=N, other_stream (work on a stream of device 1 while device 0 is
// current), print=N (N lines), kill=SIGNAL, exit=CODE, stay (goes on in the background; before
// memory), exec (becomes /bin/true), hold=FILE (until there is that file).
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "probe.h"

namespace {

constexpr size_t kBytes = size_t{1} << 20;

void loop(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    void* address = nullptr;
    MUST(cudaMalloc(&address, kBytes));
    MUST(cudaMemsetAsync(address, 1, kBytes, nullptr));
    MUST(cudaFree(address));
  }
}

void loop_async(long rounds) {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (long i = 0; i < rounds; ++i) {
    void* address = nullptr;
    MUST(cudaMallocAsync(&address, kBytes, stream));
    MUST(cudaFreeAsync(address, stream));
  }
  MUST(cudaStreamSynchronize(stream));
}

void loop_managed(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    void* address = nullptr;
    MUST(cudaMallocManaged(&address, kBytes));
    MUST(cudaFree(address));
  }
}

void loop_host(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    void* address = nullptr;
    MUST(cudaMallocHost(&address, kBytes));
    MUST(cudaFreeHost(address));
  }
}

}  // namespace

extern "C" {

__attribute__((noinline, visibility("default"))) void* keep_device() {
  void* address = nullptr;
  MUST(cudaMalloc(&address, 3 * kBytes));
  return address;
}

__attribute__((noinline, visibility("default"))) void* keep_async() {
  void* address = nullptr;
  MUST(cudaMallocAsync(&address, 5 * kBytes, nullptr));
  return address;
}

__attribute__((noinline, visibility("default"))) void* keep_managed() {
  void* address = nullptr;
  MUST(cudaMallocManaged(&address, 7 * kBytes));
  return address;
}

__attribute__((noinline, visibility("default"))) void* keep_host() {
  void* address = nullptr;
  MUST(cudaMallocHost(&address, 9 * kBytes));
  return address;
}

// A free while a capture forbids it.
__attribute__((noinline, visibility("default"))) void refuse_device(void* address) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaFree(address) != cudaSuccess);
  cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();
}

// Not the free of this kind.
__attribute__((noinline, visibility("default"))) void refuse_managed(void* address) {
  CHECK(cudaFreeHost(address) != cudaSuccess);
  cudaGetLastError();
}

}  // extern "C"

namespace {

void keep_in_stream_of_other_device() {
  cudaStream_t stream = nullptr;
  MUST(cudaSetDevice(1));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaSetDevice(0));
  void* address = nullptr;
  MUST(cudaMallocAsync(&address, kBytes, stream));
  MUST(cudaStreamSynchronize(stream));
}

void act(const std::string& word, const char* value) {
  const long number = std::strtol(value, nullptr, 10);
  if (word == "loop") return loop(number);
  if (word == "async") return loop_async(number);
  if (word == "managed") return loop_managed(number);
  if (word == "host") return loop_host(number);
  if (word == "keep_device") return (void)keep_device();
  if (word == "keep_async") return (void)keep_async();
  if (word == "keep_managed") return (void)keep_managed();
  if (word == "keep_host") return (void)keep_host();
  if (word == "refuse_device") return refuse_device(keep_device());
  if (word == "refuse_managed") return refuse_managed(keep_managed());
  if (word == "other_stream") return keep_in_stream_of_other_device();
  if (word == "device") MUST(cudaSetDevice(static_cast<int>(number)));
  std::fflush(stdout);
  if (word == "kill") raise(static_cast<int>(number));
  if (word == "exit") std::exit(static_cast<int>(number));
  if (word == "stay") MUST(daemon(1, 1));
  if (word == "exec") MUST(execl("/bin/true", "/bin/true", nullptr));
  if (word == "hold") {
    while (access(value, F_OK) != 0) usleep(10'000);
  }
  if (word != "print") return;
  for (long i = 0; i < number; ++i) std::printf("line %ld of the output\n", i);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const char* const equals = std::strchr(argv[i], '=');
    const std::string word(argv[i], equals == nullptr ? std::strlen(argv[i]) : equals - argv[i]);
    act(word, equals == nullptr ? "" : equals + 1);
  }
  return 0;
}
