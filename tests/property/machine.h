// SPDX-License-Identifier: Apache-2.0
// Runs a program against the driver and holds what it sees against the contract (docs/design.md).
// The device's judge watches foreign accesses (contract 2, I1, I2) and the host's side
// of free; this side watches results, addresses, contents and captures (contract 1, 3, 4, 6, 9).
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "crew.h"
#include "peer.h"
#include "program.h"

namespace cupool::property {

/// A stream, as seen by an operation of some thread. Numbers of streams are never reused.
struct StreamRef {
  CUstream handle = nullptr;
  std::uint64_t number = 0;
  int context = 0;
  std::uint64_t thread = 0;  ///< number of the naming thread
  bool per_thread = false;   ///< the handle means this stream only for that thread
  bool non_blocking = false;
  bool legacy = false;

  bool none() const { return number == 0; }
};

struct Block {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;
  int context = 0;
  std::uint64_t owner = 0;   ///< its name for the judge; never reused
  std::uint64_t offset = 0;  ///< the words that its kernels use
  std::uint64_t words = 0;
  StreamRef last;  ///< last used there; later uses are ordered after it
  /// The thread of the last use has freed other memory since, or has ended after that: its next
  /// use, or any, comes behind the last one by itself (contract 2).
  bool freed_behind = false;
  bool left_behind = false;
  bool racy = false;     ///< used without one order since the last synchronisation
  bool checked = false;  ///< since then, or copied to a block that may be
  bool known = false;    ///< holds `value`
  std::uint32_t value = 0;
  unsigned users = 0;   ///< contexts whose pending work may use it, one bit each
  bool shared = false;  ///< known outside the process, without an order

  CUdeviceptr was = 0;  ///< address of the last freed block of this slot
  int was_context = 0;
};

struct Buffer {
  static constexpr std::uint64_t kBytes = 4096;
  enum Type { pinned, mapped, managed, registered };
  void* host = nullptr;
  CUdeviceptr device = 0;  ///< 0: kernels have no access
  Type type = pinned;
  int context = 0;
  /// Kernels have no access by another address, but by that of the host.
  bool is_host_address() const { return type == pinned || type == registered; }
  std::vector<std::uint64_t> pending;  ///< streams that may still use it
  std::shared_ptr<void> own;           ///< registered: the program's own memory
};

/// Page-locked memory, used by work of any context.
struct HostBlock {
  void* memory = nullptr;
  std::uint64_t size = 0;
  std::uint64_t owner = 0;  ///< its name for the judge
  int context = 0;          ///< current when it was allocated
};

/// The program's own stream-ordered memory, whose uses are ordered.
struct PoolBlock {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;
  int context = 0;
  StreamRef last;
  bool freed_behind = false;  ///< its last user has freed a block since, which orders what follows
};

/// A block that another process has open; the program may have freed it.
struct LentBlock {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;
  std::uint64_t owner = 0;  ///< of the block; its address may be that of another one by now
};

struct Event {
  CUevent handle = nullptr;
  int context = 0;
};

struct Capture {
  bool active = false;
  bool harmed = false;  ///< invalidated by the program itself
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  unsigned thread = 0;
  std::vector<StreamRef> members;                          ///< the first one is the origin
  std::vector<std::pair<unsigned, std::uint64_t>> blocks;  ///< slot and owner
  std::vector<std::pair<unsigned, void*>> buffers;
  CUgraph into = nullptr;  ///< target graph, if the program named one
};

struct Graph {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  Capture made_by;
};

/// All objects of a program. The threads share one set, or each has its own.
struct Slots {
  Block blocks[kBlocks];
  StreamRef streams[kStreams];
  Event events[kEvents];
  Buffer buffers[kBuffers];
  HostBlock host_blocks[kHostBlocks];
  PoolBlock pool_blocks[kPoolBlocks];
  LentBlock lent_blocks[kLentBlocks];
  Capture captures[kGraphs];
  Graph graphs[kGraphs];
};

class Machine;

/// The blocks that a callback of the program frees and allocates (callback_operations.cpp).
struct Errand {
  Machine* machine = nullptr;
  std::uint64_t size = 0;
  std::mutex mutex;      ///< held by the callback while it runs
  bool dropped = false;  ///< dropped with its context: it will not run
  Block gift;            ///< freed by the callback, or by the program after a refusal
  Block taken;           ///< allocated by the callback, if it could
};

enum class FreeMode { automatic, ordered, sync };

class Machine {
 public:
  /// `aligns_large`: large blocks are 2 MiB aligned.
  Machine(FreeMode free_mode, bool aligns_large);

  /// Empty: no failure.
  std::string run(const Program& program);
  /// Between programs: the other process opens the block and closes it again, if it is memory that
  /// cupool can share. False: it could not.
  bool lend_once(CUdeviceptr address);

  const Machinery& machinery() const { return machinery_; }

 private:
  struct ContextState {
    CUcontext handle = nullptr;
    CUfunction stamp = nullptr, check = nullptr, copy = nullptr, trap = nullptr;
    std::uint64_t* mismatches = nullptr;
    std::uint64_t generation = 0;  ///< 0: no context; never reused
  };
  /// For expect(): the thread's context; without one, no call can return a sticky error.
  static constexpr int kEntered = -1;
  static constexpr int kNoContext = -2;

  // machine.cpp: the run and its checks
  void step(const Operation& op);
  void run_on_this_thread(const Operation& op);
  void finish_program();
  void end_captures(Slots& slots);
  void finish_slots(Slots& slots);
  void finish_context(int context);
  void look_for_harm();
  /// Ends the program with the judge's complaint, of which `what` is a consequence, or with `what`
  /// alone.
  void fail(const std::string& what);
  bool expect(CUresult result, const char* call, int context = kEntered);
  bool is_sticky(CUresult result, const char* call, int context = kEntered);
  bool has_failed(int context);
  bool failed() const { return failed_.load(); }
  Slots& slots_of(const Operation& op) { return slots_[concurrent_ ? op.thread : 0]; }

  // context_operations.cpp
  bool alive(int context) const { return contexts_[context].handle != nullptr; }
  bool enter(int context);
  void open_primary(int context);
  void load_kernels(ContextState& context);
  bool may_synchronize(int context);
  void settled(Slots& slots, int context);
  bool await_guests(Slots& slots, const Block& block);
  bool await_guests_of(int context);
  void forget_context(int context);
  bool end_context(int context);
  bool code_has_room();
  void context_life(const Operation& op);
  void seek_memory(CUcontext context, const std::atomic<bool>& enough);
  bool use_up(CUcontext context, std::uint64_t size, std::vector<Block>* left);
  void primary_life(const Operation& op);
  void context_create();
  void context_destroy();
  void primary_reset(const Operation& op);
  void peer_access(const Operation& op);
  bool reaches(int context, const Block& block) const;
  void trap(const Operation& op);
  void thread_restart(const Operation& op);

  // memory_operations.cpp
  void allocate(const Operation& op);
  void release(const Operation& op);
  void release_block(Slots& slots, Block& block, unsigned thread, int current);
  void adopt(Block& block, CUdeviceptr address, std::uint64_t size, int context);
  void share_block(const Operation& op);
  void release_again(const Operation& op);
  void release_in_stream(const Operation& op);
  void disown(const Block& block);
  void own_again(const Block& block);
  void host_is_safe(Slots& slots, int context);
  void next_uses_are_ordered(Slots& slots, unsigned thread, int context);
  void memory_info();
  void buffer_create(const Operation& op);
  void buffer_destroy(const Operation& op);
  void buffer_mistake(const Operation& op);
  void buffer_register(Buffer& buffer);
  void host_touch(const Operation& op);

  // host_operations.cpp
  void host_allocate(const Operation& op);
  void host_release(const Operation& op);
  bool host_release(HostBlock& block, int current);
  void host_stamp(const Operation& op);
  void host_callback(const Operation& op);
  void host_copy(const Operation& op);

  // work_operations.cpp
  StreamRef stream(const Operation& op, unsigned slot, int context);
  bool use(Slots& slots, unsigned slot, const StreamRef& stream);
  void use_buffer(Slots& slots, unsigned slot, const StreamRef& stream);
  CUresult launch(CUfunction function, const StreamRef& stream, void** arguments);
  CUresult launch_early(CUfunction function, const StreamRef& stream, void** arguments);
  void stamp(const Operation& op);
  void check(const Operation& op);
  void kernel_on_buffer(const Operation& op);
  void kernel_on_address(const Operation& op);
  void stream_create(const Operation& op);
  void stream_destroy(const Operation& op);
  static void lose_stream(Slots& slots, StreamRef& stream);
  void stream_synchronize(const Operation& op);
  void context_synchronize(const Operation& op);
  void event(const Operation& op);

  // copy_operations.cpp
  void copy_blocks(const Operation& op);
  void copy_buffer(const Operation& op, bool to_device);
  void stamp_abroad(const Operation& op);
  void copy_abroad(const Operation& op);
  void batch_copy(const Operation& op);
  void fill_buffer(const Operation& op);

  // pool_operations.cpp
  void pool_allocate(const Operation& op);
  void pool_stamp(const Operation& op);
  void pool_release(const Operation& op);
  void pool_release(PoolBlock& block, const StreamRef* in_order);
  void pool_release_of(int context);
  void pool_use(const PoolBlock& block, const StreamRef& where);
  bool reachable(Slots& slots, const StreamRef& where, unsigned thread);
  void pool_settings(const Operation& op);

  // crowd_operations.cpp
  void fill_device(const Operation& op);
  void fill_device(std::uint64_t bytes);
  void crowd(const Operation& op);
  void many_copies(const Operation& op);
  void step_aside();

  // green_operations.cpp
  bool enter_green();
  bool make_green();
  void green_stream(const Operation& op);
  void green_memory(const Operation& op);
  void green_synchronize();
  void green_end();

  // process_operations.cpp
  bool ask_peer(const PeerOrder& order, PeerAnswer* answer);
  void lend(const Operation& op);
  void lent_stamp(const Operation& op);
  void lent_close(const Operation& op);
  void close_lent(Slots& slots, unsigned slot);
  static bool is_lent(const Slots& slots, const Block& block);

  // callback_operations.cpp
  void callback(const Operation& op);
  void errand(const Operation& op);
  void run_errand(Errand& errand);
  void finish_errands();
  void forget_errands(int context);
  void slow_synchronize(const Operation& op);
  void open_gate();

  // capture_operations.cpp
  Capture* capture_of(Slots& slots, const StreamRef& stream);
  bool captures_in(int context);
  /// Whether the driver would refuse a potentially unsafe call of this thread.
  bool unsafe_allowed(unsigned thread);
  bool legacy_allowed(int context);
  void capture_begin(const Operation& op);
  bool capture_into(const Operation& op, const StreamRef& where, CUstreamCaptureMode mode,
                    Capture* capture);
  void capture_fork(const Operation& op);
  void capture_join(const Operation& op);
  void capture_end(const Operation& op);
  void end_capture(Slots& slots, unsigned index, bool join);
  void lose_capture(Slots& slots, unsigned index);
  void graph_launch(const Operation& op);
  void graph_destroy(const Operation& op);
  void graph_destroy(Graph& graph);
  void thread_mode(const Operation& op);

  const FreeMode free_mode_;
  const bool aligns_large_;
  Machinery machinery_;
  Crew crew_;
  ContextState contexts_[kContexts];
  Slots slots_[kThreads];
  bool concurrent_ = false;
  bool late_ = false;
  bool captures_ = false;  ///< the program has captures
  bool traps_ = false;
  CUstreamCaptureMode modes_[kThreads] = {};
  std::uint64_t thread_numbers_[kThreads] = {};
  std::atomic<std::uint64_t> last_number_{1000};
  std::atomic<bool> failed_{false};
  /// The generation of a context whose error cupool has met, in a hooked call.
  std::atomic<std::uint64_t> told_[kContexts] = {};
  /// The generation of a context whose kernels may touch memory of the other device.
  std::atomic<std::uint64_t> reaching_[kContexts] = {};
  std::atomic<bool> refused_{false};  ///< a call of the program was refused because of a capture
  std::mutex mutex_;                  ///< protects the next four members
  std::string failure_;
  std::map<CUdeviceptr, std::uint64_t> live_;  ///< end by begin
  std::set<CUdeviceptr> shared_;               ///< freed, while other agents may use it
  std::list<Errand> errands_;                  ///< of earlier programs too: callbacks point to them
  std::list<HostBlock> host_writes_;           ///< of this program, for its host functions
  unsigned long long invalidated_ = 0;
  unsigned long long invalidated_by_others_ = 0;
  unsigned long long complaints_ = 0;  ///< before the program
  std::atomic<bool> primary_lives_{false};
  CUgreenCtx green_ = nullptr;          ///< of the first primary context
  int syncing_thread_ = -1;             ///< in slow_synchronize()
  std::atomic<bool> pool_used_{false};  ///< the program has had memory of its own pool
  cuuint64_t threshold_ = 0;            ///< of device 0's default pool, as the program has set it
  std::mutex peer_mutex_;               ///< protects the next two members
  Peer peer_;
  unsigned long long peer_complaints_ = 0;
};

}  // namespace cupool::property
