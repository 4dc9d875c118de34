// SPDX-License-Identifier: Apache-2.0
// IPC without a driver: handles, descriptors, leases, and the server against peers of every kind
// (contract 8).
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "channel/socket.h"
#include "config/settings.h"
#include "empty_heap.h"
#include "engine/context/context.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/wire.h"
#include "util/clock.h"
#include "util/descriptor.h"

namespace cupool::engine {
namespace {

using channel::Transfer;
using ipc::Reply;
using ipc::Request;
using ipc::Status;
using ipc::Verb;
using util::Descriptor;

TEST(IpcWire, AHandleGoesThroughTheDriversType) {
  ipc::Handle handle;
  handle.exporter = 7;
  handle.block = 9;
  handle.secret[15] = 3;
  const CUipcMemHandle carried = ipc::to_driver_type(handle);
  EXPECT_TRUE(ipc::is_ours(carried));
  const ipc::Handle back = ipc::from_driver_type(carried);
  EXPECT_EQ(back.exporter, 7u);
  EXPECT_EQ(back.block, 9u);
  EXPECT_TRUE(ipc::equal(back.secret, handle.secret));
  EXPECT_FALSE(ipc::is_ours(CUipcMemHandle{}));
}

TEST(IpcWire, SecretsDifferInAnyByte) {
  ipc::Secret secret{};
  ASSERT_TRUE(channel::fill_random(secret.data(), secret.size()));
  for (std::size_t i = 0; i < secret.size(); ++i) {
    ipc::Secret other = secret;
    other[i] = static_cast<unsigned char>(other[i] ^ 0x80);
    EXPECT_FALSE(ipc::equal(secret, other)) << i;
  }
  EXPECT_TRUE(ipc::equal(secret, secret));
}

TEST(IpcSocket, OnlyTheSameUserIsAdmitted) {
  EXPECT_TRUE(channel::admits(1000, 1000));
  EXPECT_FALSE(channel::admits(1000, 1001));
  EXPECT_FALSE(channel::admits(1000, 0)) << "not even root: its memory would not be given either";
  EXPECT_FALSE(channel::admits(0, 1000));
}

TEST(IpcSocket, ForkedChildrenHaveNoneOfTheDescriptors) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  const Descriptor moved = std::move(writer);
  EXPECT_FALSE(writer.valid());
  const pid_t child = fork();
  if (child == 0) {
    util::close_in_child();
    const bool closed = fcntl(reader.get(), F_GETFD) < 0 && fcntl(moved.get(), F_GETFD) < 0;
    _exit(closed ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_GE(fcntl(moved.get(), F_GETFD), 0) << "the parent keeps them";
}

// A program that closes what it does not know, and whose next file gets the number.
TEST(IpcSocket, ANumberThatIsAnotherFilesIsLeftAlone) {
  for (const bool pidfd : {false, true}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const Descriptor other_end(ends[1]);
    Descriptor lost = pidfd ? channel::watch_process(getpid()) : Descriptor(ends[0]);
    ASSERT_TRUE(lost.keeps());
    const int number = lost.get();
    const int own = eventfd(0, 0);  // its inode is that of every file of the kind pidfd
    ASSERT_EQ(dup2(own, number), number);
    const pid_t child = fork();
    if (child == 0) {
      util::close_in_child();
      _exit(fcntl(number, F_GETFD) >= 0 && fcntl(other_end.get(), F_GETFD) < 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(lost.known().is_there());
    EXPECT_FALSE(lost.keeps());
    EXPECT_FALSE(lost.valid());
    lost.reset();
    EXPECT_GE(fcntl(number, F_GETFD), 0) << "closed under the program's hands";
    close(number);
    close(own);
    if (pidfd) close(ends[0]);
  }
}

int count_open_files() {
  int count = 0;
  for (int file = 0; file < 1024; ++file) count += fcntl(file, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// Sends a message with `count` descriptors.
void send_with_descriptors(int socket, std::size_t count) {
  char byte = 1;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const descriptors = CMSG_FIRSTHDR(&header);
  descriptors->cmsg_level = SOL_SOCKET;
  descriptors->cmsg_type = SCM_RIGHTS;
  descriptors->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(CMSG_DATA(descriptors) + i * sizeof(int), &socket, sizeof socket);
  }
  ASSERT_EQ(sendmsg(socket, &header, 0), 1);
}

TEST(IpcSocket, OnlyOneDescriptorComesWithAMessage) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  for (const std::size_t sent : {1, 2, 3, 8}) {
    const int before = count_open_files();
    send_with_descriptors(ends[0], sent);
    char byte = 0;
    Descriptor received;
    const Transfer got = channel::receive_message(ends[1], &byte, 1, &received, 0);
    EXPECT_EQ(got, sent == 1 ? Transfer::done : Transfer::ended) << sent;
    EXPECT_EQ(received.valid(), sent == 1) << sent;
    EXPECT_EQ(count_open_files(), before + (sent == 1 ? 1 : 0)) << sent;
  }
  close(ends[0]);
  close(ends[1]);
}

TEST(IpcSocket, NobodyListensIsNoWait) {
  const std::uint64_t begin = util::now_ns();
  EXPECT_FALSE(channel::connect_to(0x1234567, begin + channel::kPatienceNs).valid());
  EXPECT_LT(util::now_ns() - begin, channel::kPatienceNs / 2);
}

CUresult no_memory(size_t* bytes, CUdevice) {
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

// One block, exported. Never destroyed, as in the library: the server's thread goes on.
struct World {
  World() {
    driver.cuDeviceTotalMem_v2 = no_memory;
    driver.cuDeviceGetName = no_name;
    driver.cuDeviceGetCount = one_device;
    device = new Device(driver, 0, settings);
    context = new Context(driver, reinterpret_cast<CUcontext>(0x1000), *device);
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  cuda::Driver driver;
  config::Settings settings;
  Device* device = nullptr;
  Context* context = nullptr;
  IpcExports exports;
  int file = -1;
  CUdeviceptr next_address = 0x10000;
};

World& world() {
  static World* const instance = new World;
  return *instance;
}

class IpcServer : public testing::Test {
 protected:
  IpcServer() {
    block_.address = world().next_address += 0x10000;
    block_.capacity = 0x10000;
    block_.requested = 700;
    block_.context = world().context;
    SharedMemory memory;
    memory.pool_file = util::KnownFile(world().file);
    memory.pool = 5;
    memory.pointer.reserved[0] = 42;
    EXPECT_TRUE(world().exports.add(block_, memory, &handle_));
  }
  ~IpcServer() override {
    world().exports.end(block_, IpcExports::Kept::memory);
    world().exports.take_ended(nullptr);
  }

  Descriptor connect() const { return channel::connect_to(handle_.exporter, deadline()); }
  static std::uint64_t deadline() { return util::now_ns() + channel::kPatienceNs; }

  Transfer ask(const Descriptor& socket, const Request& request, Reply* reply,
               Descriptor* file = nullptr) const {
    if (channel::send_message(socket.get(), &request, sizeof request, -1, deadline()) !=
        Transfer::done) {
      return Transfer::ended;
    }
    return channel::receive_message(socket.get(), reply, sizeof *reply, file, deadline());
  }
  Request open_request() const {
    Request request;
    request.sequence = 77;
    request.block = handle_.block;
    request.secret = handle_.secret;
    return request;
  }
  static bool wait_for_end() {
    for (int i = 0; i < 400 && !world().exports.any_ended(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return world().exports.any_ended();
  }

  Block block_;
  ipc::Handle handle_;
};

TEST_F(IpcServer, GivesTheMemoryToWhoHasTheHandle) {
  const Descriptor socket = connect();
  Reply reply;
  Descriptor file;
  ASSERT_EQ(ask(socket, open_request(), &reply, &file), Transfer::done);
  EXPECT_EQ(reply.status, Status::granted);
  EXPECT_EQ(reply.sequence, 77u);
  EXPECT_EQ(reply.pool, 5u);
  EXPECT_EQ(reply.requested, 700u);
  EXPECT_EQ(reply.pointer.reserved[0], 42);
  EXPECT_TRUE(file.valid());
  EXPECT_EQ(fcntl(file.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(IpcServer, GivesTheSameHandleAgain) {
  ipc::Handle again;
  ASSERT_TRUE(world().exports.handle_of(block_, &again));
  EXPECT_EQ(std::memcmp(&again, &handle_, sizeof again), 0);
}

// The program has closed the pool's file, and its own next one got the number.
TEST_F(IpcServer, GivesNobodyAFileOfTheProgram) {
  Block block;
  block.address = world().next_address += 0x10000;
  block.capacity = 0x10000;
  block.context = world().context;
  SharedMemory memory;
  const int number = open("/dev/null", O_RDONLY | O_CLOEXEC);
  memory.pool_file = util::KnownFile(number);
  ipc::Handle handle;
  ASSERT_TRUE(world().exports.add(block, memory, &handle));
  const int own = eventfd(0, 0);
  ASSERT_EQ(dup2(own, number), number);
  Request request = open_request();
  request.block = handle.block;
  request.secret = handle.secret;
  Reply reply;
  Descriptor file;
  const Descriptor socket = connect();
  ASSERT_EQ(ask(socket, request, &reply, &file), Transfer::done);
  EXPECT_EQ(reply.status, Status::unknown);
  EXPECT_FALSE(file.valid());
  ipc::Handle again;
  EXPECT_FALSE(world().exports.handle_of(block, &again)) << "to be exported once more";
  memory.pool_file = util::KnownFile(world().file);
  ASSERT_TRUE(world().exports.add(block, memory, &again));
  EXPECT_EQ(std::memcmp(&again, &handle, sizeof again), 0) << "the same block";
  ASSERT_EQ(ask(socket, request, &reply, &file), Transfer::done);
  EXPECT_EQ(reply.status, Status::granted);
  EXPECT_TRUE(file.valid());
  world().exports.end(block, IpcExports::Kept::memory);
  close(own);
  close(number);
}

TEST_F(IpcServer, GivesNothingForAWrongSecret) {
  const Descriptor socket = connect();
  Request request = open_request();
  request.secret[3] ^= 1;
  Reply reply;
  Descriptor file;
  ASSERT_EQ(ask(socket, request, &reply, &file), Transfer::done);
  EXPECT_EQ(reply.status, Status::unknown);
  EXPECT_EQ(reply.pointer.reserved[0], 0);
  EXPECT_FALSE(file.valid());
  EXPECT_TRUE(world().exports.end(block_, IpcExports::Kept::block)) << "no lease came of it";
}

TEST_F(IpcServer, ALeaseKeepsTheBlockUntilItIsClosed) {
  const Descriptor socket = connect();
  Reply reply;
  ASSERT_EQ(ask(socket, open_request(), &reply), Transfer::done);
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::block));
  EXPECT_EQ(world().exports.kept_bytes(*world().device), block_.capacity);
  // Freed by the program: nobody else gets it any more.
  ASSERT_EQ(ask(socket, open_request(), &reply), Transfer::done);
  EXPECT_EQ(reply.status, Status::unknown);
  Request close = open_request();
  close.verb = Verb::close;
  ASSERT_EQ(channel::send_message(socket.get(), &close, sizeof close, -1, deadline()),
            Transfer::done);
  ASSERT_TRUE(wait_for_end());
  EXPECT_EQ(world().exports.contexts_of_ended(), std::vector<Context*>{world().context});
  EXPECT_TRUE(world().exports.take_ended(nullptr).empty()) << "of that context alone";
  EXPECT_TRUE(world().exports.any_ended());
  const auto ended = world().exports.take_ended(world().context);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].block, &block_);
  EXPECT_EQ(world().exports.kept_bytes(*world().device), 0u);
  EXPECT_FALSE(world().exports.any_ended());
}

TEST_F(IpcServer, EachLeaseCounts) {
  const Descriptor first = connect();
  const Descriptor second = connect();
  Reply reply;
  ASSERT_EQ(ask(first, open_request(), &reply), Transfer::done);
  ASSERT_EQ(ask(second, open_request(), &reply), Transfer::done);
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::block));
  Request close = open_request();
  close.verb = Verb::close;
  // The second close of the first importer is none of its own leases.
  channel::send_message(first.get(), &close, sizeof close, -1, deadline());
  channel::send_message(first.get(), &close, sizeof close, -1, deadline());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(world().exports.any_ended());
  channel::send_message(second.get(), &close, sizeof close, -1, deadline());
  EXPECT_TRUE(wait_for_end());
}

// A process closes its sockets before its GPU work is stopped.
TEST_F(IpcServer, ALeaseOfAnEndedConnectionLastsAsLongAsTheProcess) {
  Reply reply;
  {
    const Descriptor socket = connect();
    ASSERT_EQ(ask(socket, open_request(), &reply), Transfer::done);
  }
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::block));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(world().exports.any_ended()) << "this process is still there";
}

TEST_F(IpcServer, ALeaseEndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Descriptor socket = connect();
    Reply reply;
    const bool granted = ask(socket, open_request(), &reply) == Transfer::done;
    const char byte = granted ? 1 : 0;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char granted = 0;
  ASSERT_EQ(read(ready[0], &granted, 1), 1);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(granted, 1);
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::block));
  EXPECT_FALSE(world().exports.any_ended());
  kill(child, SIGKILL);
  EXPECT_TRUE(wait_for_end());
  waitpid(child, nullptr, 0);
}

TEST_F(IpcServer, RefusesAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(9);
    const Descriptor socket = connect();
    Reply reply;
    Descriptor file;
    // Perhaps refused before the question went out.
    const Request request = open_request();
    channel::send_message(socket.get(), &request, sizeof request, -1, deadline());
    const Transfer got =
        channel::receive_message(socket.get(), &reply, sizeof reply, &file, deadline());
    const bool refused = got == Transfer::done && reply.status == Status::other_user;
    _exit(refused && !file.valid() && reply.pointer.reserved[0] == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(world().exports.end(block_, IpcExports::Kept::block)) << "no lease came of it";
}

TEST_F(IpcServer, SaysThatItIsOfAnotherVersion) {
  const Descriptor socket = connect();
  Request request = open_request();
  request.version = ipc::kVersion + 1;
  Reply reply;
  ASSERT_EQ(ask(socket, request, &reply), Transfer::done);
  EXPECT_EQ(reply.status, Status::other_version);
}

TEST_F(IpcServer, HangsUpOnNonsense) {
  Request request = open_request();
  request.magic = 1;
  Reply reply;
  EXPECT_EQ(ask(connect(), request, &reply), Transfer::ended);
  const Descriptor socket = connect();
  ASSERT_EQ(send(socket.get(), "hello", 5, MSG_NOSIGNAL), 5);
  EXPECT_EQ(channel::receive_message(socket.get(), &reply, sizeof reply, nullptr, deadline()),
            Transfer::ended);
}

TEST_F(IpcServer, HangsUpOnWhoSaysNothing) {
  const Descriptor socket = connect();
  Reply reply;
  const std::uint64_t begin = util::now_ns();
  EXPECT_EQ(channel::receive_message(socket.get(), &reply, sizeof reply, nullptr,
                                     begin + 3 * channel::kPatienceNs),
            Transfer::ended);
  EXPECT_LT(util::now_ns() - begin, 2 * channel::kPatienceNs);
}

TEST_F(IpcServer, ContextGoneLeavesTheMemoryToTheLease) {
  const Descriptor socket = connect();
  Reply reply;
  ASSERT_EQ(ask(socket, open_request(), &reply), Transfer::done);
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::memory));
  EXPECT_EQ(world().exports.kept_bytes(*world().device), 0u) << "the figures forgot it";
  Request close = open_request();
  close.verb = Verb::close;
  channel::send_message(socket.get(), &close, sizeof close, -1, deadline());
  ASSERT_TRUE(wait_for_end());
  const auto ended = world().exports.take_ended(nullptr);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].block, nullptr);
  EXPECT_EQ(ended[0].address, block_.address);
  EXPECT_EQ(ended[0].device, world().device);
}

TEST_F(IpcServer, ABlockThatGoesWithItsContextIsNotGivenOutAfterwards) {
  const Descriptor socket = connect();
  Reply reply;
  ASSERT_EQ(ask(socket, open_request(), &reply), Transfer::done);
  EXPECT_FALSE(world().exports.end(block_, IpcExports::Kept::block));
  Request close = open_request();
  close.verb = Verb::close;
  channel::send_message(socket.get(), &close, sizeof close, -1, deadline());
  ASSERT_TRUE(wait_for_end());
  EXPECT_TRUE(world().exports.end(block_, IpcExports::Kept::memory))
      << "no lease holds it: it goes at once";
  EXPECT_TRUE(world().exports.contexts_of_ended().empty())
      << "the record is another block's by now";
}

// The program's free of such a block finds no export, and not half of one.
TEST_F(IpcServer, ABlockWithoutARecordIsNotExported) {
  Block other;
  other.address = world().next_address += 0x10000;
  other.context = world().context;
  SharedMemory memory;
  memory.pool_file = util::KnownFile(world().file);
  ipc::Handle handle;
  {
    const test::EmptyHeap none;
    EXPECT_FALSE(world().exports.add(other, memory, &handle));
  }
  EXPECT_FALSE(world().exports.handle_of(other, &handle));
  EXPECT_TRUE(world().exports.end(other, IpcExports::Kept::block));
  EXPECT_TRUE(world().exports.add(other, memory, &handle)) << "with memory again";
  EXPECT_TRUE(world().exports.end(other, IpcExports::Kept::block));
}

TEST_F(IpcServer, KnowsItsOwnHandles) {
  EXPECT_TRUE(world().exports.is_self(handle_.exporter));
  EXPECT_FALSE(world().exports.is_self(handle_.exporter + 1));
}

}  // namespace
}  // namespace cupool::engine
