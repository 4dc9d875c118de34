// SPDX-License-Identifier: Apache-2.0
// Processes that share one device (CUPOOL_SIM_SHARED) and fit there together. Without a role it is
// their conductor, which uses no GPU: it starts a holder, which frees what it had and stays, and
// then an asker, which needs that memory. holder= idle, capture (while a stream captures), close
// (closes cupool's sockets), stop (is stopped), fork (its child stays as well), leave (ends while
// it is asked), busy (frees what it has when it has been asked for a while); a= sets a variable of
// the holder's environment. holder=pestered: strangers connect to it; holder=async: the
// memory is the default pool's; holder=served: it is idle in a non-blocking stream; holder=reset:
// its only context ends. threads= of the asker share what it needs, in blocks of block_mib=; by=
// async or managed: that is its first call of the engine. asks= sets a variable of its environment.
// scene=mutual: two processes need memory again and again. strangers= sockets look like those of
// processes without memory of the device; with mute=1 they do not answer.
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "probe.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMiB = 1 << 20;

std::vector<void*> allocate(long mib, long block_mib, int* code) {
  std::vector<void*> blocks;
  *code = 0;
  for (long done = 0; done < mib && *code == 0; done += block_mib) {
    void* block = nullptr;
    *code = cudaMalloc(&block, static_cast<size_t>(block_mib) * kMiB);
    if (*code == 0) blocks.push_back(block);
  }
  return blocks;
}

void free_all(const std::vector<void*>& blocks) {
  for (void* block : blocks) MUST(cudaFree(block));
}

// The program's own descriptors are pipes, and those of the driver files: sockets are cupool's.
std::vector<int> sockets() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  CHECK(folder != nullptr);
  while (const dirent* entry = readdir(folder)) {
    char target[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) <= 0) continue;
    if (std::strncmp(target, "socket:", 7) == 0) found.push_back(std::atoi(entry->d_name));
  }
  closedir(folder);
  return found;
}

void leave_in_default_pool(long mib) {
  void* block = nullptr;
  MUST(cudaMallocAsync(&block, static_cast<size_t>(mib) * kMiB, nullptr));
  MUST(cudaFreeAsync(block, nullptr));
  MUST(cudaStreamSynchronize(nullptr));
}

// The engine starts with the first allocation, which is the driver's.
void leave_in_stream(long mib) {
  void* block = nullptr;
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const size_t bytes : {size_t{256}, static_cast<size_t>(mib) * kMiB}) {
    MUST(cudaMallocAsync(&block, bytes, stream));
    MUST(cudaFreeAsync(block, stream));
    MUST(cudaStreamSynchronize(stream));
  }
}

// Frees everything, says so, and waits for the conductor.
int hold(const std::string& how, long mib) {
  int code = 0;
  if (how == "async") {
    leave_in_default_pool(mib);
  } else if (how == "served") {
    leave_in_stream(mib);
  } else {
    free_all(allocate(mib, 16, &code));
  }
  MUST(code);
  void* kept = nullptr;  // as long as a context has live memory, it is not all given back at once
  if (how == "reset") {
    MUST(cudaDeviceReset());
  } else {
    MUST(cudaMalloc(&kept, 1000));
  }
  cudaStream_t stream = nullptr;
  if (how == "capture") {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  }
  // Neighbours find it once its channel listens.
  const bool preloaded = std::getenv("LD_PRELOAD") != nullptr;
  for (int i = 0; preloaded && sockets().empty() && i < 100; ++i) usleep(10'000);
  if (preloaded) usleep(20'000);
  if (how == "close") {
    for (const int socket : sockets()) close(socket);
  }
  if (how == "fork") {
    const pid_t child = fork();
    if (child == 0) _exit(static_cast<int>(sockets().size()));
    int status = 0;
    MUST(waitpid(child, &status, 0) == child ? 0 : 1);
    probe::say("sockets of the child", WEXITSTATUS(status));
  }
  char byte = 'r';
  std::vector<void*> in_use;
  if (how == "busy") in_use = allocate(mib, 16, &code);
  MUST(code);
  CHECK(write(4, &byte, 1) == 1);
  if (how == "busy") {
    usleep(250'000);
    free_all(in_use);
  }
  while (read(3, &byte, 1) > 0) {
  }
  if (stream != nullptr) {
    cudaGraph_t graph = nullptr;
    probe::say("capture", cudaStreamEndCapture(stream, &graph));
  }
  if (how == "leave") return 0;
  free_all(allocate(mib, 16, &code));
  MUST(code);
  MUST(cudaFree(kept));
  return 0;
}

// Allocates it with so many threads at a time, which free nothing before all have what they need.
int ask_with(long threads, long mib, long block_mib) {
  std::atomic<int> code{0};
  std::vector<std::vector<void*>> blocks(static_cast<size_t>(threads));
  std::vector<std::thread> askers;
  for (std::vector<void*>& own : blocks) {
    askers.emplace_back([&] {
      int failed = 0;
      own = allocate(mib / threads, block_mib, &failed);
      if (failed != 0) code = failed;
    });
  }
  for (std::thread& asker : askers) asker.join();
  for (const std::vector<void*>& own : blocks) free_all(own);
  return code;
}

int ask_by(const std::string& call, long mib) {
  void* block = nullptr;
  const auto bytes = static_cast<size_t>(mib) * kMiB;
  const int code =
      call == "async" ? cudaMallocAsync(&block, bytes, nullptr) : cudaMallocManaged(&block, bytes);
  probe::say("asker", code);
  return 0;
}

int ask(long threads, long mib, long block_mib, long patience_ms) {
  const auto start = Clock::now();
  const auto end = start + std::chrono::milliseconds(patience_ms);
  MUST(cudaFree(nullptr));
  int code = 0;
  do {
    code = ask_with(threads, mib, block_mib);
  } while (code != 0 && Clock::now() < end && usleep(50'000) == 0);
  probe::say("asker", code);
  cudaGetLastError();
  probe::say("in time", Clock::now() - end < std::chrono::seconds(5));
  return 0;
}

// Blocks of two sizes in turn: what is idle of one does not serve the other.
int take_turns(long mib) {
  int failed = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(1500);
  for (long turn = 0; Clock::now() < end; ++turn) {
    int code = 0;
    free_all(allocate(mib, turn % 2 == 0 ? 10 : 14, &code));
    failed += code != 0;
  }
  probe::say("failed", failed);
  return 0;
}

struct Child {
  pid_t process = 0;
  int order = -1;  ///< closed: the child goes on
  int ready = -1;
};

// `variable`: NAME:VALUE for its environment.
Child start(const std::string& self, const std::vector<std::string>& arguments,
            const std::string& variable = "") {
  int order[2];
  int ready[2];
  MUST(pipe2(order, O_CLOEXEC));
  MUST(pipe2(ready, O_CLOEXEC));
  const pid_t process = fork();
  if (process == 0) {
    const int from = fcntl(order[0], F_DUPFD, 10);
    const int to = fcntl(ready[1], F_DUPFD, 10);
    dup2(from, 3);
    dup2(to, 4);
    close(from);
    close(to);
    const size_t colon = variable.find(':');
    if (colon != std::string::npos) {
      setenv(variable.substr(0, colon).c_str(), variable.substr(colon + 1).c_str(), 1);
    }
    std::vector<char*> argv{const_cast<char*>(self.c_str())};
    for (const std::string& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    execv(self.c_str(), argv.data());
    _exit(99);
  }
  close(order[0]);
  close(ready[1]);
  return {process, order[1], ready[0]};
}

void await_ready(const Child& child) {
  char byte = 0;
  CHECK(read(child.ready, &byte, 1) == 1);
}

void await_end(const Child& child) {
  int status = 0;
  CHECK(waitpid(child.process, &status, 0) == child.process);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Connects to what answers neighbours in this process's child, and says nothing, or nothing
// sensible.
// False: no nonsense was said in time.
bool talk_nonsense(pid_t process) {
  FILE* const list = std::fopen("/proc/net/unix", "r");
  CHECK(list != nullptr);
  char line[512];
  int connections = 0;
  int said = 0;
  while (std::fgets(line, sizeof line, list) != nullptr) {
    char name[100] = {};
    if (std::sscanf(line, "%*s %*s %*s 00010000 %*s %*s %*s @%99s", name) != 1) continue;
    if (std::strncmp(name, "cupool-neighbour-", 17) != 0) continue;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path + 1, name);
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
    for (const char* message : {"", "nonsense"}) {
      const int mute = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      ucred listener{};
      socklen_t size = sizeof listener;
      if (connect(mute, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
          getsockopt(mute, SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0 ||
          listener.pid != process) {
        close(mute);
        continue;
      }
      ++connections;
      // The other end may have closed it, if this thread was off its processor for long.
      if (*message != '\0') {
        said += send(mute, message, std::strlen(message), MSG_NOSIGNAL) > 0 ? 1 : 0;
      }
    }
  }
  std::fclose(list);
  CHECK(connections > 0);
  return said > 0;
}

// Sockets that look like many neighbours'. Each connection is closed without an answer, or stays.
class Strangers {
 public:
  Strangers(long count, bool mute) {
    for (long i = 0; i < count; ++i) {
      const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                       "cupool-neighbour-%u-%08x%08lx", geteuid(),
                                       static_cast<unsigned>(getpid()), i);
      MUST(bind(listener, reinterpret_cast<const sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1) +
                    static_cast<socklen_t>(length)));
      MUST(listen(listener, 64));
      listeners_.push_back({listener, POLLIN, 0});
    }
    if (count != 0 && !mute) {
      thread_ = std::thread([this] { refuse(); });
    }
  }
  ~Strangers() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    for (const pollfd& each : listeners_) close(each.fd);
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

 private:
  void refuse() {
    while (!over_) {
      if (poll(listeners_.data(), listeners_.size(), 20) <= 0) continue;
      for (const pollfd& each : listeners_) {
        if (each.revents != 0) close(accept(each.fd, nullptr, nullptr));
      }
    }
  }

  std::vector<pollfd> listeners_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

int conduct(const std::string& self, int argc, char** argv) {
  const Strangers strangers(probe::number(argc, argv, "strangers", 0),
                            probe::argument_is(argc, argv, "mute", "1"));
  const std::string holder = probe::argument(argc, argv, "holder", "idle");
  const std::string mib = probe::argument(argc, argv, "mib", "320");
  const std::string patience = probe::argument(argc, argv, "patience_ms", "0");
  const std::string threads = probe::argument(argc, argv, "threads", "1");
  const std::string block = probe::argument(argc, argv, "block_mib", "16");
  if (probe::argument_is(argc, argv, "scene", "mutual")) {
    const Child one = start(self, {"role=turns", "mib=" + mib});
    const Child other = start(self, {"role=turns", "mib=" + mib});
    await_end(one);
    await_end(other);
    return 0;
  }
  const Child first = start(self, {"role=holder", "holder=" + holder, "mib=" + mib},
                            probe::argument(argc, argv, "a", ""));
  await_ready(first);
  if (holder == "stop") MUST(kill(first.process, SIGSTOP));
  while (holder == "pestered" && !talk_nonsense(first.process)) usleep(1000);
  const std::string by = probe::argument(argc, argv, "by", "malloc");
  const Child asker = start(self,
                            {"role=asker", "mib=" + mib, "block_mib=" + block, "by=" + by,
                             "threads=" + threads, "patience_ms=" + patience},
                            probe::argument(argc, argv, "asks", ""));
  if (holder == "leave") close(first.order);
  await_end(asker);
  if (holder == "stop") MUST(kill(first.process, SIGCONT));
  if (holder != "leave") close(first.order);
  await_end(first);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = probe::argument(argc, argv, "role", "conductor");
  const long mib = probe::number(argc, argv, "mib", 320);
  if (role == "holder") return hold(probe::argument(argc, argv, "holder", "idle"), mib);
  if (role == "asker") {
    const std::string by = probe::argument(argc, argv, "by", "malloc");
    if (by != "malloc") return ask_by(by, mib);
    return ask(probe::number(argc, argv, "threads", 1), mib,
               probe::number(argc, argv, "block_mib", 16),
               probe::number(argc, argv, "patience_ms", 0));
  }
  if (role == "turns") return take_turns(mib);
  char self[4096] = {};
  CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const int code = conduct(self, argc, argv);
  std::printf("done\n");
  return code;
}
