// SPDX-License-Identifier: Apache-2.0
// The sockets between processes, against peers that send anything. Each input is a list of
// messages; zero bytes where a secret belongs stand for the right one.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel/socket.h"
#include "config/settings.h"
#include "engine/context/context.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/ipc/neighbours.h"
#include "engine/ipc/wire.h"
#include "target.h"
#include "util/clock.h"

namespace fuzz {
namespace {

using namespace cupool::engine;
namespace channel = cupool::channel;
using cupool::util::Descriptor;

std::uint64_t soon() {
  return cupool::util::now_ns() + 20'000'000'000;
}

CUresult some_memory(size_t* bytes, CUdevice) {
  *bytes = 1 << 30;
  return CUDA_SUCCESS;
}
CUresult no_name(char*, int, CUdevice) {
  return CUDA_SUCCESS;
}
CUresult one_device(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
// The memory of a fuzzed exporter is never mapped: what a driver makes of its bytes is the
// driver's.
CUresult refuse_pool(CUmemoryPool*, void*, CUmemAllocationHandleType, unsigned long long) {
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult refuse_pointer(CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*) {
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult refuse_access(CUmemoryPool, const CUmemAccessDesc*, size_t) {
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult no_context(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult exchange_mode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}

// A device without work, and a block of it. Never destroyed: the server's thread goes on.
struct World {
  World() {
    driver.cuDeviceTotalMem_v2 = some_memory;
    driver.cuDeviceGetName = no_name;
    driver.cuDeviceGetCount = one_device;
    driver.cuMemPoolImportFromShareableHandle = refuse_pool;
    driver.cuMemPoolImportPointer = refuse_pointer;
    driver.cuMemPoolSetAccess = refuse_access;
    driver.cuCtxGetCurrent = no_context;
    driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    device = new Device(driver, 0, settings);
    context = new Context(driver, reinterpret_cast<CUcontext>(0x1000), *device);
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    block.address = 0x10000;
    block.capacity = 0x10000;
    block.requested = 700;
    block.context = context;
  }
  ipc::Handle share() {
    SharedMemory memory;
    memory.pool_file = cupool::util::KnownFile(file);
    memory.pool = 5;
    ipc::Handle handle;
    require(exports.add(block, memory, &handle), "a block can be exported");
    return handle;
  }

  cupool::cuda::Driver driver;
  cupool::config::Settings settings;
  Device* device = nullptr;
  Context* context = nullptr;
  IpcExports exports;
  Block block;
  int file = -1;
};

World& world() {
  static World* const instance = new World;
  return *instance;
}

// Sends what an input says to everyone who connects and asks, and hangs up.
class Peer {
 public:
  void start(Descriptor listener) {
    std::thread([this, held = std::move(listener)] { serve(held); }).detach();
  }
  void say(std::vector<std::string> messages) {
    const std::lock_guard lock(mutex_);
    messages_ = std::move(messages);
  }

 private:
  [[noreturn]] void serve(const Descriptor& listener) {
    for (;; std::this_thread::yield()) {
      bool more = false;
      const Descriptor socket = channel::accept_own(listener, &more);
      if (!socket.valid()) {
        usleep(50);
        continue;
      }
      char asked[256];
      for (int i = 0; i < 200 && recv(socket.get(), asked, sizeof asked, 0) < 0; ++i) usleep(50);
      const std::lock_guard lock(mutex_);
      for (const std::string& message : messages_) {
        const bool with_file = !message.empty() && message.size() % 2 == 0;
        channel::send_message(socket.get(), message.data(), message.size(), with_file ? 0 : -1, 0);
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::string> messages_;
};

Peer& peer_at(const char* name) {
  static Peer* const peer = [&] {
    auto* const made = new Peer;
    Descriptor listener = channel::listen_at(name);
    require(listener.valid(), "a socket can listen");
    made->start(std::move(listener));
    return made;
  }();
  return *peer;
}

}  // namespace

// A process that asks with the secret in its hands, sends anything else as well, and ends.
void run_ipc_requests(const std::string& input) {
  const ipc::Handle handle = world().share();
  std::vector<std::string> messages = parts_of(input);
  for (std::string& message : messages) {
    ipc::Request request;
    if (message.size() < sizeof request) continue;
    std::memcpy(static_cast<void*>(&request), message.data(), sizeof request);
    if (ipc::equal(request.secret, ipc::Secret{})) request.secret = handle.secret;
    if (request.block == 0) request.block = handle.block;
    std::memcpy(&message[0], &request, sizeof request);
  }
  const pid_t importer = fork();
  if (importer == 0) {
    const Descriptor socket = channel::connect_to(handle.exporter, soon());
    for (const std::string& message : messages) {
      const bool with_file = message.size() % 7 == 0;
      channel::send_message(socket.get(), message.data(), message.size(), with_file ? 0 : -1,
                            soon());
    }
    _exit(0);
  }
  int status = 0;
  pid_t ended = -1;
  do {
    ended = waitpid(importer, &status, 0);
  } while (ended < 0 && errno == EINTR);  // by libFuzzer's timer
  require(importer > 0 && ended == importer && status == 0, "the importer ends by itself");
  // Another importer is served none the less.
  ipc::Request request;
  request.block = handle.block;
  request.secret = handle.secret;
  request.sequence = 9;
  ipc::Reply reply;
  {
    const Descriptor socket = channel::connect_to(handle.exporter, soon());
    require(socket.valid(), "the server goes on");
    channel::send_message(socket.get(), &request, sizeof request, -1, soon());
    require(channel::receive_message(socket.get(), &reply, sizeof reply, nullptr, soon()) ==
                    channel::Transfer::done &&
                reply.status == ipc::Status::granted && reply.sequence == 9 &&
                reply.requested == 700,
            "who has the handle gets the memory");
    request.verb = ipc::Verb::close;
    channel::send_message(socket.get(), &request, sizeof request, -1, soon());
    // The server reads in order: the answer says that the lease is closed.
    request.verb = ipc::Verb::open;
    request.block = UINT64_MAX;
    channel::send_message(socket.get(), &request, sizeof request, -1, soon());
    require(channel::receive_message(socket.get(), &reply, sizeof reply, nullptr, soon()) ==
                    channel::Transfer::done &&
                reply.status == ipc::Status::unknown,
            "an unknown block is refused");
  }
  // And nothing of the dead importer's is left.
  if (world().exports.end(world().block, IpcExports::Kept::block)) return;
  for (int i = 0; i < 2000 && !world().exports.any_ended(); ++i) usleep(1000);
  require(world().exports.take_ended(world().context).size() == 1, "leases end with their process");
}

std::vector<std::string> seeds_of_ipc_requests() {
  ipc::Request open;
  open.sequence = 1;
  ipc::Request close;
  close.verb = ipc::Verb::close;
  ipc::Request newer = open;
  newer.version = 2;
  return {
      input_of({bytes_of(open), bytes_of(close)}),
      input_of({bytes_of(open), bytes_of(open), bytes_of(close), bytes_of(close), bytes_of(close)}),
      input_of({bytes_of(newer), bytes_of(open), "short"})};
}

void run_ipc_replies(const std::string& input) {
  constexpr std::uint64_t kExporter = 0xf0220000;
  const std::string name = "cupool-ipc-00000000f0220000";
  leave_network();
  std::vector<std::string> messages = parts_of(input);
  ipc::Handle handle;
  if (!messages.empty() && messages[0].size() >= sizeof handle) {
    CUipcMemHandle carried;
    std::memcpy(&carried, messages[0].data(), sizeof carried);
    handle = ipc::from_driver_type(carried);
    messages.erase(messages.begin());
  }
  if (handle.exporter == 0) handle.exporter = kExporter;
  peer_at(name.c_str()).say(messages);
  IpcImports imports(world().driver);
  CUdeviceptr address = 0;
  const std::uint64_t begin = cupool::util::now_ns();
  require(imports.open(handle, *world().context, &address) == CUDA_ERROR_MAP_FAILED,
          "no reply maps memory by itself");
  require(imports.open(handle, *world().context, &address) == CUDA_ERROR_MAP_FAILED,
          "nor does another try");
  require(cupool::util::now_ns() - begin < 2'000'000'000,
          "an exporter that hangs up is not waited for");
  require(address == 0 && !imports.find(0) && !imports.close(0), "nothing is open");
}

std::vector<std::string> seeds_of_ipc_replies() {
  const ipc::Handle handle;
  ipc::Reply reply;
  reply.sequence = 1;
  ipc::Reply granted = reply;
  granted.status = ipc::Status::granted;
  granted.pool = 5;
  granted.requested = 700;
  ipc::Reply refused;
  refused.status = ipc::Status::busy;
  return {input_of({bytes_of(handle), bytes_of(granted)}),
          input_of({bytes_of(handle), bytes_of(reply)}), input_of({bytes_of(refused)}),
          input_of({"", bytes_of(granted), bytes_of(reply)})};
}

void run_neighbours(const std::string& input) {
  leave_network();
  std::vector<std::string> messages = parts_of(input);
  const std::string own = "cupool-neighbour-" + std::to_string(geteuid()) + "-00000000f0220000";
  // Another socket has a name of the input's, which stands in the same list.
  Descriptor odd;
  if (!messages.empty()) {
    const std::string name = messages[0].substr(0, 100);
    if (!name.empty() && name[0] != '\0') odd = channel::listen_at(name.c_str());
    messages.erase(messages.begin());
  }
  bool may_give = false;
  for (const std::string& message : messages) {
    channel::NeighbourReply reply;
    if (message.size() != sizeof reply) continue;
    std::memcpy(static_cast<void*>(&reply), message.data(), sizeof reply);
    may_give = may_give || reply.given_bytes != 0;
  }
  peer_at(own.c_str()).say(messages);
  ipc::Neighbours neighbours;
  channel::DeviceId device{};
  device[0] = 1;
  const std::uint64_t begin = cupool::util::now_ns();
  constexpr std::uint64_t kLimit = 20'000'000;
  const auto answer = neighbours.ask(device, 1000, kLimit);
  require(answer != ipc::Neighbours::Answer::gave || may_give, "only who gave something gave");
  require(cupool::util::now_ns() - begin < 2'000'000'000, "the limit of time is kept");
}

std::vector<std::string> seeds_of_neighbours() {
  channel::NeighbourReply gave;
  gave.given_bytes = 4096;
  channel::NeighbourReply shares;
  shares.shares_device = 1;
  const std::string name = "cupool-neighbour-" + std::to_string(geteuid()) + "-00000000f0220001";
  return {input_of({"", bytes_of(gave)}), input_of({"another", bytes_of(shares), bytes_of(gave)}),
          input_of({name, bytes_of(shares)}),
          input_of({name + "\n0: 0 0 00010000 0001 01 7 @" + name, "short"})};
}

}  // namespace fuzz
