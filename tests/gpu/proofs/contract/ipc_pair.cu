// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes on a real GPU (contract 8): a sender and two receivers, each this
// program executed anew before anything of CUDA is used. Every word is stamped and checked by the
// GPU; IPC events order the two sides; a receiver closes while its kernel runs. Prints PASS and
// FAIL lines, exits 0 or 1.
//   ipc_pair [rounds=20] [blocks=12] [lease=1] [plain=1]
// lease=1: the sender frees blocks that receivers have open, which CUDA leaves undefined and cupool
// does not. plain=1: a process without the preload opens a handle and must get an error.
#include <cuda.h>
#include <cuda_runtime.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/gpu_test.h"
#include "common/kernels.cuh"

namespace {

constexpr int kReceivers = 2;

struct Offer {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  uint64_t words;
  uint32_t value;
  int order;  // 0: check, stamp a part, close; 1: check and keep; 2: check again and close; 3: end
};

struct Answer {
  int code;
  uint64_t mismatches;
  double open_us;
  double close_us;
};

template <typename T>
void put(int channel, const T& message) {
  MUST(write(channel, &message, sizeof message) == static_cast<ssize_t>(sizeof message) ? 0 : 1);
}

template <typename T>
bool get(int channel, T* message) {
  return read(channel, message, sizeof *message) == static_cast<ssize_t>(sizeof *message);
}

bool all_right = true;

void verdict(bool right, const char* what) {
  std::printf("%s %s\n", right ? "PASS" : "FAIL", what);
  std::fflush(stdout);
  all_right = all_right && right;
}

// Counts words that are not `value`, on the GPU.
struct Counter {
  cudaStream_t stream = nullptr;
  uint64_t* mismatches = nullptr;

  Counter() {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaMalloc(&mismatches, sizeof *mismatches));
    MUST(cudaMemset(mismatches, 0, sizeof *mismatches));
    MUST(cudaDeviceSynchronize());
  }
  void check(const uint32_t* words, uint64_t count, uint32_t value) {
    check_u32<<<128, 256, 0, stream>>>(words, count, value, mismatches);
    MUST(cudaGetLastError());
  }
  uint64_t take() {
    uint64_t wrong = 0;
    MUST(cudaMemcpyAsync(&wrong, mismatches, sizeof wrong, cudaMemcpyDeviceToHost, stream));
    MUST(cudaMemsetAsync(mismatches, 0, sizeof *mismatches, stream));
    MUST(cudaStreamSynchronize(stream));
    return wrong;
  }
};

// The part of a block that receiver `number` stamps, and with what.
uint64_t part_begin(uint64_t words, int number) {
  return words * static_cast<uint64_t>(number) / kReceivers;
}
uint32_t part_value(uint32_t value, int number) {
  return value + 1000000u * static_cast<uint32_t>(number + 1);
}

// What the queries say of memory that another process allocated.
void describe(const void* address, uint64_t words) {
  cudaPointerAttributes attributes{};
  MUST(cudaPointerGetAttributes(&attributes, address));
  const auto pointer = reinterpret_cast<CUdeviceptr>(address);
  CUcontext context = nullptr;
  size_t range = 0;
  size_t bytes = 0;
  CUdeviceptr base = 0;
  const CUresult context_code =
      cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pointer);
  const CUresult range_code =
      cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer);
  const CUresult base_code = cuMemGetAddressRange(&base, &bytes, pointer);
  std::printf(
      "info imported %zu bytes: type %d, device %d, context %s (error %d), range %zu (error %d), "
      "address range %zu bytes from %s (error %d)\n",
      static_cast<size_t>(words) * sizeof(uint32_t), static_cast<int>(attributes.type),
      attributes.device, context == nullptr ? "null" : "set", context_code, range, range_code,
      bytes, base == pointer ? "its start" : "elsewhere", base_code);
  std::fflush(stdout);
}

int receive(int channel, int number) {
  Counter counter;
  cudaEvent_t ready = nullptr;
  void* kept = nullptr;
  bool described = false;
  Offer offer;
  while (get(channel, &offer)) {
    if (offer.order == 3) return 0;
    Answer answer{};
    if (ready == nullptr) MUST(cudaIpcOpenEventHandle(&ready, offer.event));
    if (offer.order != 2) {
      const auto begin = gpu_test::Clock::now();
      answer.code = cudaIpcOpenMemHandle(&kept, offer.memory, cudaIpcMemLazyEnablePeerAccess);
      answer.open_us = gpu_test::seconds_since(begin) * 1e6;
      if (answer.code != 0) {
        cudaGetLastError();
        put(channel, answer);
        continue;
      }
      MUST(cudaStreamWaitEvent(counter.stream, ready, 0));
      if (!described) describe(kept, offer.words);
      described = true;
    }
    auto* const words = static_cast<uint32_t*>(kept);
    counter.check(words, offer.words, offer.value);
    answer.mismatches = counter.take();
    if (offer.order == 0) {
      // Both receivers must have checked before one of them writes: the sender says when.
      put(channel, answer);
      char go = 0;
      MUST(get(channel, &go) ? 0 : 1);
      const uint64_t first = part_begin(offer.words, number);
      const uint64_t count = part_begin(offer.words, number + 1) - first;
      spin_ns<<<1, 1, 0, counter.stream>>>(200000);
      stamp_u32<<<128, 256, 0, counter.stream>>>(words + first, count,
                                                 part_value(offer.value, number));
      MUST(cudaGetLastError());
    }
    if (offer.order != 1) {
      const auto begin = gpu_test::Clock::now();
      answer.code = cudaIpcCloseMemHandle(kept);  // waits for the kernel
      answer.close_us = gpu_test::seconds_since(begin) * 1e6;
    }
    put(channel, answer);
  }
  return 1;
}

// Without the preload: the driver does not know the handle, and says so.
int receive_plain(int channel) {
  MUST(cudaFree(nullptr));
  Offer offer;
  Answer answer{};
  void* address = nullptr;
  MUST(get(channel, &offer) ? 0 : 1);
  answer.code = cudaIpcOpenMemHandle(&address, offer.memory, cudaIpcMemLazyEnablePeerAccess);
  put(channel, answer);
  return 0;
}

struct Sender {
  int channels[kReceivers];
  int plain = -1;
  Counter counter;
  cudaEvent_t ready = nullptr;
  cudaIpcEventHandle_t event{};
  uint32_t value = 1;
  uint64_t random = 88172645463325252u;
  std::vector<double> opens;
  std::vector<double> closes;
  uint64_t wrong_at_receivers = 0;
  uint64_t wrong_at_sender = 0;
  int refused = 0;

  Sender() {
    MUST(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming | cudaEventInterprocess));
    MUST(cudaIpcGetEventHandle(&event, ready));
  }

  // 512 bytes to 32 MiB, all magnitudes alike.
  uint64_t next_words() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const uint64_t most = uint64_t{128} << (random % 17);
    return most / 2 + (random >> 32) % (most / 2) + 1;
  }

  Offer make(uint32_t** words, uint64_t count) {
    Offer offer{};
    offer.words = count;
    offer.value = ++value;
    offer.event = event;
    MUST(cudaMalloc(words, count * sizeof(uint32_t)));
    stamp_u32<<<128, 256, 0, counter.stream>>>(*words, count, offer.value);
    MUST(cudaGetLastError());
    MUST(cudaEventRecord(ready, counter.stream));
    MUST(cudaIpcGetMemHandle(&offer.memory, *words));
    return offer;
  }

  Answer answer_of(int channel) {
    Answer answer{};
    MUST(get(channel, &answer) ? 0 : 1);
    if (answer.code != 0) {
      ++refused;
      std::printf("info a receiver got error %d\n", answer.code);
    }
    wrong_at_receivers += answer.mismatches;
    return answer;
  }

  void exchange(uint64_t count) {
    uint32_t* words = nullptr;
    const Offer offer = make(&words, count);
    int serving = 0;
    for (const int channel : channels) put(channel, offer);
    for (const int channel : channels) serving += answer_of(channel).code == 0 ? 1 : 0;
    if (serving == kReceivers) {
      for (const int channel : channels) put(channel, char{1});
      for (const int channel : channels) {
        Answer answer{};
        MUST(get(channel, &answer) ? 0 : 1);
        if (answer.code != 0) ++refused;
        opens.push_back(answer.open_us);
        closes.push_back(answer.close_us);
      }
      for (int number = 0; number < kReceivers; ++number) {
        const uint64_t first = part_begin(count, number);
        counter.check(words + first, part_begin(count, number + 1) - first,
                      part_value(offer.value, number));
      }
      wrong_at_sender += counter.take();
    }
    MUST(cudaFree(words));
  }

  // Freed here, open there: what is allocated and written meanwhile must not be that memory.
  void lease(uint64_t count) {
    uint32_t* words = nullptr;
    Offer offer = make(&words, count);
    offer.order = 1;
    put(channels[0], offer);
    if (answer_of(channels[0]).code != 0) return;
    MUST(cudaFree(words));
    for (int i = 0; i < 20; ++i) {
      uint32_t* other = nullptr;
      MUST(cudaMalloc(&other, count * sizeof(uint32_t)));
      stamp_u32<<<128, 256, 0, counter.stream>>>(other, count, 7);
      MUST(cudaStreamSynchronize(counter.stream));
      MUST(cudaFree(other));
    }
    offer.order = 2;
    put(channels[0], offer);
    answer_of(channels[0]);
  }
};

int send_all(const int* channels, int plain, long rounds, long blocks, bool lease) {
  Sender sender;
  std::copy(channels, channels + kReceivers, sender.channels);
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  MUST(cudaDeviceSynchronize());
  sender.exchange(1 << 20);
  MUST(cudaMemGetInfo(&before, &total));
  for (long round = 0; round < rounds; ++round) {
    for (long block = 0; block < blocks; ++block) sender.exchange(sender.next_words());
  }
  verdict(sender.refused == 0, "every handle was opened and closed");
  verdict(sender.wrong_at_receivers == 0, "receivers saw what the sender wrote");
  verdict(sender.wrong_at_sender == 0,
          "the sender saw what the receivers wrote before they closed");
  if (lease) {
    const uint64_t wrong = sender.wrong_at_receivers;
    for (long i = 0; i < rounds; ++i) sender.lease(sender.next_words());
    verdict(sender.refused == 0 && sender.wrong_at_receivers == wrong,
            "memory that was freed while open elsewhere was left alone");
  }
  uint32_t* words = nullptr;
  Offer offer = sender.make(&words, 1024);
  if (plain >= 0) {
    Answer answer{};
    put(plain, offer);
    MUST(get(plain, &answer) ? 0 : 1);
    std::printf("info a process without the preload got error %d\n", answer.code);
    verdict(answer.code != 0, "a process without the preload got an error");
  }
  void* mine = nullptr;
  const int own = cudaIpcOpenMemHandle(&mine, offer.memory, cudaIpcMemLazyEnablePeerAccess);
  std::printf("info opening an own handle: error %d\n", own);
  verdict(own != 0, "a handle cannot be opened where it was made");
  cudaGetLastError();
  MUST(cudaFree(words));
  offer.order = 3;
  for (const int channel : sender.channels) put(channel, offer);
  MUST(cudaMemGetInfo(&after, &total));
  std::printf("info free memory: %zu MiB before, %zu MiB after\n", before >> 20, after >> 20);
  verdict(after + (size_t{64} << 20) >= before, "the memory is free again");
  std::printf("time open_us=%.1f close_us=%.1f\n", gpu_test::median(sender.opens),
              gpu_test::median(sender.closes));
  return all_right ? 0 : 1;
}

std::string self;

pid_t start(const std::vector<std::string>& arguments, bool preloaded) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (!preloaded) unsetenv("LD_PRELOAD");
  std::vector<char*> pointers{self.data()};
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(self.c_str(), pointers.data());
  std::_Exit(99);
}

std::string option(const char* name, long value) {
  return std::string(name) + "=" + std::to_string(value);
}

// The first process: makes no CUDA call, and only waits.
int conduct(int argc, char** argv) {
  int near_ends[kReceivers + 1];
  std::vector<pid_t> processes;
  std::vector<std::string> sender{option("role", 1),
                                  option("rounds", gpu_test::number(argc, argv, "rounds", 20)),
                                  option("blocks", gpu_test::number(argc, argv, "blocks", 12)),
                                  option("lease", gpu_test::number(argc, argv, "lease", 0))};
  const bool plain = gpu_test::number(argc, argv, "plain", 0) != 0;
  for (int number = 0; number < kReceivers + (plain ? 1 : 0); ++number) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    near_ends[number] = ends[0];
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);  // the sender's alone, so that its end is noticed
    const bool is_plain = number == kReceivers;
    processes.push_back(start(
        {option("role", is_plain ? 3 : 2), option("number", number), option("channel0", ends[1])},
        !is_plain));
    sender.push_back(option(("channel" + std::to_string(number)).c_str(), ends[0]));
    close(ends[1]);
  }
  for (int number = 0; number < kReceivers + (plain ? 1 : 0); ++number) {
    fcntl(near_ends[number], F_SETFD, 0);
  }
  processes.push_back(start(sender, true));
  for (int number = 0; number < kReceivers + (plain ? 1 : 0); ++number) close(near_ends[number]);
  bool right = true;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    right = right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  verdict(right, "every process ended well");
  return all_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
  self = path;
  int channels[kReceivers + 1];
  for (int i = 0; i <= kReceivers; ++i) {
    channels[i] =
        static_cast<int>(gpu_test::number(argc, argv, ("channel" + std::to_string(i)).c_str(), -1));
  }
  alarm(240);  // nothing here waits for ever
  switch (gpu_test::number(argc, argv, "role", 0)) {
    case 0:
      return conduct(argc, argv);
    case 1:
      return send_all(channels, channels[kReceivers], gpu_test::number(argc, argv, "rounds", 20),
                      gpu_test::number(argc, argv, "blocks", 12),
                      gpu_test::number(argc, argv, "lease", 0) != 0);
    case 2:
      return receive(channels[0], static_cast<int>(gpu_test::number(argc, argv, "number", 0)));
    case 3:
      return receive_plain(channels[0]);
    default:
      return 2;
  }
}
