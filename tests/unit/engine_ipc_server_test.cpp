// SPDX-License-Identifier: Apache-2.0
// The exporter's server beyond its common path: too many importers, those that do not read, memory
// that came back unseen, and descriptors that the program has closed (contract 8).
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "channel/socket.h"
#include "engine/context/context.h"
#include "engine/ipc/exports.h"
#include "engine_fake_driver.h"

namespace cupool::engine {
namespace {

// A process of its own, as far as exports are concerned. Never destroyed: the server's thread goes
// on.
struct Exporting {
  Exporting() {
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    static auto* const kept = new std::vector<Exporting*>;
    kept->push_back(this);
  }
  static cuda::Driver driver_without_peers() {
    cuda::Driver driver = test::fake_driver();
    driver.cuDeviceCanAccessPeer = [](int* can, CUdevice, CUdevice) {
      *can = 0;
      return CUDA_SUCCESS;
    };
    return driver;
  }
  cuda::Driver driver = driver_without_peers();
  config::Settings settings;
  Device device{driver, 0, settings};
  Device other_device{driver, 1, settings};
  Context context{driver, reinterpret_cast<CUcontext>(0x1000), device};
  IpcExports exports;
  int file = -1;
};

class IpcExporter : public testing::Test {
 protected:
  using Descriptor = util::Descriptor;
  using Transfer = channel::Transfer;

  IpcExporter() { set(block_, 0x10000); }
  void set(Block& block, CUdeviceptr address) {
    block.address = address;
    block.capacity = 0x10000;
    block.requested = 700;
    block.context = &world_.context;
  }
  ipc::Handle share(Block& block) {
    ipc::Handle handle;
    SharedMemory memory;
    memory.pool_file = util::KnownFile(world_.file);
    EXPECT_TRUE(world_.exports.add(block, memory, &handle));
    return handle;
  }
  static std::uint64_t deadline() { return util::now_ns() + channel::kPatienceNs; }
  static ipc::Request request_for(const ipc::Handle& handle, ipc::Verb verb) {
    ipc::Request request;
    request.verb = verb;
    request.sequence = 77;
    request.block = handle.block;
    request.secret = handle.secret;
    return request;
  }
  static Transfer send(const Descriptor& socket, const ipc::Request& request) {
    return channel::send_message(socket.get(), &request, sizeof request, -1, deadline());
  }
  static Transfer receive(const Descriptor& socket, ipc::Reply* reply,
                          std::uint64_t deadline_ns = deadline()) {
    Descriptor file;
    return channel::receive_message(socket.get(), reply, sizeof *reply, &file, deadline_ns);
  }
  // The answer to an open on this connection.
  static ipc::Status ask(const Descriptor& socket, const ipc::Handle& handle) {
    ipc::Reply reply;
    EXPECT_EQ(send(socket, request_for(handle, ipc::Verb::open)), Transfer::done);
    EXPECT_EQ(receive(socket, &reply), Transfer::done);
    return reply.status;
  }
  static void close_lease(const Descriptor& socket, const ipc::Handle& handle) {
    EXPECT_EQ(send(socket, request_for(handle, ipc::Verb::close)), Transfer::done);
  }
  // When it returns the server has done all that this connection asked for.
  static void settle(const Descriptor& socket, ipc::Handle handle) {
    handle.secret[0] ^= 1;
    EXPECT_EQ(ask(socket, handle), ipc::Status::unknown);
  }
  bool ends() {
    for (int i = 0; i < 400 && !world_.exports.any_ended(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return world_.exports.any_ended();
  }
  static Descriptor connect(const ipc::Handle& handle) {
    return channel::connect_to(handle.exporter, deadline());
  }

  Exporting& world_ = *new Exporting;
  Block block_;
};

TEST_F(IpcExporter, ServesAsManyImportersAsItHasFilesFor) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;  // a quarter of them are for importers
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const ipc::Handle handle = share(block_);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const Descriptor idle = connect(handle);
  settle(idle, handle);
  std::vector<Descriptor> served;
  for (int i = 0; i < 15; ++i) {
    served.push_back(connect(handle));
    EXPECT_EQ(ask(served.back(), handle), ipc::Status::granted);
  }
  ipc::Reply reply;
  EXPECT_EQ(receive(idle, &reply, 0), Transfer::late) << "there is room still";
  served.push_back(connect(handle));
  EXPECT_EQ(ask(served.back(), handle), ipc::Status::granted);
  EXPECT_EQ(receive(idle, &reply), Transfer::ended) << "one without a lease makes room";
  const Descriptor refused = connect(handle);
  EXPECT_EQ(receive(refused, &reply), Transfer::done);
  EXPECT_EQ(reply.status, ipc::Status::busy);
  EXPECT_EQ(reply.sequence, 0u) << "the connection, not a request";
  for (const Descriptor& each : served) close_lease(each, handle);
  for (const Descriptor& each : served) settle(each, handle);
  EXPECT_TRUE(world_.exports.end(block_, IpcExports::Kept::block));
}

TEST_F(IpcExporter, EachLeaseOfAConnectionCounts) {
  const ipc::Handle handle = share(block_);
  const Descriptor importer = connect(handle);
  EXPECT_EQ(ask(importer, handle), ipc::Status::granted);
  EXPECT_EQ(ask(importer, handle), ipc::Status::granted);
  EXPECT_FALSE(world_.exports.end(block_, IpcExports::Kept::block));
  close_lease(importer, handle);
  settle(importer, handle);
  EXPECT_FALSE(world_.exports.any_ended());
  close_lease(importer, handle);
  EXPECT_TRUE(ends());
}

TEST_F(IpcExporter, HangsUpOnAnUnknownVerb) {
  const ipc::Handle handle = share(block_);
  const Descriptor importer = connect(handle);
  EXPECT_EQ(send(importer, request_for(handle, static_cast<ipc::Verb>(9))), Transfer::done);
  ipc::Reply reply;
  EXPECT_EQ(receive(importer, &reply), Transfer::ended);
}

// What it does not read is no lease: otherwise the memory would never be free again.
TEST_F(IpcExporter, AnImporterHasTheLeasesWhoseAnswersItGot) {
  const ipc::Handle handle = share(block_);
  const Descriptor importer = connect(handle);
  constexpr int kRequests = 900;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(send(importer, request_for(handle, ipc::Verb::open)), Transfer::done);
  }
  // Only some of the answers have room in its socket.
  const Descriptor witness = connect(handle);
  settle(witness, handle);
  std::vector<ipc::Reply> replies;
  ipc::Reply reply;
  for (;;) {
    const std::uint64_t moment = util::now_ns() + 300'000'000;
    if (receive(importer, &reply, moment) != Transfer::done) break;
    EXPECT_EQ(reply.status, ipc::Status::granted);
    replies.push_back(reply);
  }
  ASSERT_FALSE(replies.empty());
  ASSERT_LT(replies.size(), std::size_t{kRequests}) << "the socket never was full";
  EXPECT_FALSE(world_.exports.end(block_, IpcExports::Kept::block));
  for (std::size_t i = 1; i < replies.size(); ++i) close_lease(importer, handle);
  settle(importer, handle);
  EXPECT_FALSE(world_.exports.any_ended());
  close_lease(importer, handle);
  EXPECT_TRUE(ends());
}

// The program freed it by a route that cupool does not see, and the address is another block's.
TEST_F(IpcExporter, MemoryThatCameBackUnseenIsAnotherExport) {
  const ipc::Handle old_handle = share(block_);
  const Descriptor importer = connect(old_handle);
  EXPECT_EQ(ask(importer, old_handle), ipc::Status::granted);
  Block block;
  set(block, block_.address);
  ipc::Handle handle;
  EXPECT_FALSE(world_.exports.handle_of(block, &handle)) << "that is not its own";
  handle = share(block);
  EXPECT_EQ(ask(importer, old_handle), ipc::Status::unknown);
  close_lease(importer, old_handle);
  EXPECT_EQ(ask(importer, handle), ipc::Status::granted);
  EXPECT_TRUE(world_.exports.end(block_, IpcExports::Kept::block)) << "nobody holds the old one";
  ipc::Handle again;
  EXPECT_TRUE(world_.exports.handle_of(block, &again)) << "the new one is not touched";
  EXPECT_FALSE(world_.exports.end(block, IpcExports::Kept::block));
  EXPECT_FALSE(world_.exports.handle_of(block, &again)) << "freed, and kept for its importer";
  EXPECT_EQ(world_.exports.kept_bytes(world_.device), block.capacity);
  EXPECT_EQ(world_.exports.kept_bytes(world_.other_device), 0u);
}

std::set<int> open_files() {
  std::set<int> files;
  for (int file = 0; file < 1024; ++file) {
    if (fcntl(file, F_GETFD) >= 0) files.insert(file);
  }
  return files;
}

// A program that closes what it does not know, and whose next file gets the number.
TEST_F(IpcExporter, AConnectionThatTheProgramHasClosedIsGivenUp) {
  const ipc::Handle handle = share(block_);
  const Descriptor witness = connect(handle);
  settle(witness, handle);
  const std::set<int> before = open_files();
  const Descriptor importer = connect(handle);
  settle(importer, handle);
  int lost = -1;
  for (const int file : open_files()) {
    if (before.count(file) == 0 && file != importer.get()) lost = file;
  }
  ASSERT_GE(lost, 0);
  const int own = eventfd(0, 0);
  ASSERT_EQ(dup2(own, lost), lost);
  // The server looks at its descriptors when somebody asks.
  settle(witness, handle);
  settle(witness, handle);
  ipc::Reply reply;
  EXPECT_EQ(receive(importer, &reply), Transfer::ended);
  EXPECT_GE(fcntl(lost, F_GETFD), 0) << "closed under the program's hands";
  std::uint64_t count = 5;
  EXPECT_EQ(write(lost, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  EXPECT_EQ(read(own, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  // The server may look at it still: no fault, but for the thread sanitizer, which is not told.
  syscall(SYS_close, lost);
  close(own);
}

}  // namespace
}  // namespace cupool::engine
