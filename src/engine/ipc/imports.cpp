// SPDX-License-Identifier: Apache-2.0
// The importer's side of a lease.
#include "engine/ipc/imports.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "cuda/errors.h"
#include "cuda/scopes.h"
#include "engine/context/context.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mutation.h"
#include "util/uncancelled.h"

namespace cupool::engine {

using channel::Transfer;

namespace {

void warn_refused(ipc::Status status) {
  switch (status) {
    case ipc::Status::other_user:
      CUPOOL_WARN_ONCE(
          "cannot open GPU memory of another process: it runs as another user. Run both as the "
          "same user");
      return;
    case ipc::Status::busy:
      CUPOOL_WARN_ONCE(
          "cannot open GPU memory of another process: too many processes have its memory open. "
          "Raise its limit of open files (ulimit -n)");
      return;
    case ipc::Status::other_version:
      CUPOOL_WARN_ONCE(
          "cannot open GPU memory of another process: it runs another version of cupool. Preload "
          "the same version into both");
      return;
    case ipc::Status::granted:
    case ipc::Status::unknown:
      break;
  }
  CUPOOL_WARN_ONCE(
      "cannot open GPU memory of another process: that process has freed it, or the handle was "
      "altered in transit. Pass on all 64 bytes, and free the memory last");
}

// The program's error for a step that the driver refused to cupool.
CUresult answer_of(CUresult result) {
  const bool as_it_is = cuda::is_final(result) || result == CUDA_ERROR_OUT_OF_MEMORY;
  return result == CUDA_SUCCESS || as_it_is ? result : CUDA_ERROR_MAP_FAILED;
}

// False: it was there.
bool add_context(std::vector<Context*>& contexts, Context& context) {
  if (std::find(contexts.begin(), contexts.end(), &context) != contexts.end()) return false;
  contexts.push_back(&context);
  return true;
}

}  // namespace

// Without a context it is closed.
void IpcImports::remove_context(Import& import, const Context& context) {
  std::vector<Context*>& contexts = import.contexts;
  contexts.erase(std::remove(contexts.begin(), contexts.end(), &context), contexts.end());
  if (contexts.empty()) import.references = 0;
}

CUresult IpcImports::open(const ipc::Handle& handle, Context& context, CUdeviceptr* address) try {
  const util::Uncancelled throughout;
  release_closed();
  const std::lock_guard lock(exchange_mutex_);
  forget_dead_exporters();
  CUresult result = CUDA_SUCCESS;
  if (reopen(handle, context, address, &result)) return result;
  return import(handle, context, address);
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// For a block that is already open, or closed by the program and not yet released.
bool IpcImports::reopen(const ipc::Handle& handle, Context& context, CUdeviceptr* address,
                        CUresult* result) {
  std::uint64_t pool = 0;
  bool added = false;
  {
    const std::lock_guard lock(table_mutex_);
    const auto found = std::find_if(imports_.begin(), imports_.end(), [&](const auto& entry) {
      const Import& import = entry.second;
      return import.exporter == handle.exporter && import.block == handle.block &&
             ipc::equal(import.secret, handle.secret);
    });
    if (found == imports_.end()) return false;
    added = add_context(found->second.contexts, context);
    ++found->second.references;
    *address = found->first;
    pool = found->second.pool;
  }
  *result = answer_of(admit(exporters_.at(handle.exporter).pools.at(pool), context));
  if (*result == CUDA_SUCCESS) return true;
  const std::lock_guard lock(table_mutex_);
  Import& import = imports_.at(*address);
  import.references -= std::min(1u, import.references);  // its contexts may have ended meanwhile
  if (added) remove_context(import, context);
  return true;
}

// What needs host memory comes before the lease, which nobody could end otherwise.
CUresult IpcImports::import(const ipc::Handle& handle, Context& context, CUdeviceptr* address) {
  Exporter& exporter = exporters_[handle.exporter];
  Imports made;
  Import& import = made[0];  // its address is not known yet
  import.contexts.push_back(&context);
  const std::size_t most_unsent = exporter.unsent.size() + exporter.imports + 1;
  if (exporter.unsent.capacity() < most_unsent) exporter.unsent.reserve(2 * most_unsent);
  ipc::Reply reply;
  util::Descriptor pool_file;
  if (!ask(exporter, handle, &reply, &pool_file)) return CUDA_ERROR_MAP_FAILED;
  CUdeviceptr mapped = 0;
  const CUresult result = map(exporter, reply, pool_file, context, &mapped);
  if (result != CUDA_SUCCESS) {
    end_lease(exporter, handle.block);
    if (!cuda::has_shut_down(driver_)) {
      CUPOOL_WARN_ONCE(
          "cannot open GPU memory of another process: the driver refused it (error %d). With "
          "CUPOOL_BACKEND=malloc, that process exports handles of the driver instead",
          static_cast<int>(result));
    }
    return answer_of(result);
  }
  import.exporter = handle.exporter;
  import.block = handle.block;
  import.pool = reply.pool;
  import.requested = reply.requested;
  import.secret = handle.secret;
  import.references = 1;
  ++exporter.imports;
  auto node = made.extract(made.begin());
  node.key() = mapped;
  const std::lock_guard lock(table_mutex_);
  imports_.insert(std::move(node));
  count_.store(imports_.size(), std::memory_order_release);
  *address = mapped;
  return CUDA_SUCCESS;
}

// Asks the exporter for a lease. Connects again if the exporter has closed the connection, as it
// does with connections without a lease when it needs room.
bool IpcImports::ask(Exporter& exporter, const ipc::Handle& handle, ipc::Reply* reply,
                     util::Descriptor* pool_file) {
  const std::uint64_t deadline = util::now_ns() + channel::kPatienceNs;
  ipc::Request request;
  request.version = handle.version;
  request.block = handle.block;
  request.secret = handle.secret;
  Transfer transfer = Transfer::ended;
  for (bool fresh = false; transfer == Transfer::ended && !fresh;) {
    fresh = !exporter.socket.keeps();
    if (fresh && !connect(exporter, handle.exporter, deadline)) break;
    request.sequence = ++exporter.last_sequence;
    transfer = exchange(exporter, request, reply, pool_file, deadline);
    if (transfer == Transfer::ended) exporter.socket.reset();
  }
  if (transfer == Transfer::done) {
    if (reply->status == ipc::Status::granted && pool_file->valid()) return true;
    warn_refused(reply->status);
    if (reply->status == ipc::Status::granted) end_lease(exporter, handle.block);
    return false;
  }
  // The answer may still come; a lease that it grants must not stay.
  if (transfer == Transfer::late) end_lease(exporter, handle.block);
  CUPOOL_WARN_ONCE(
      "cannot open GPU memory of another process: that process has ended, is stopped, or is not "
      "reachable. Both must run on the same machine, in the same network namespace");
  return false;
}

bool IpcImports::connect(Exporter& exporter, std::uint64_t name, std::uint64_t deadline_ns) {
  exporter.unsent.clear();  // the leases ended with the old connection
  exporter.socket = channel::connect_to(name, deadline_ns);
  channel::Peer peer;
  if (!exporter.socket.valid() || !channel::peer_of(exporter.socket.get(), &peer)) return false;
  if (channel::admits(geteuid(), peer.user)) return true;
  warn_refused(ipc::Status::other_user);
  exporter.socket.reset();
  return false;
}

Transfer IpcImports::exchange(Exporter& exporter, const ipc::Request& request, ipc::Reply* reply,
                              util::Descriptor* pool_file, std::uint64_t deadline_ns) {
  const int socket = exporter.socket.get();
  send_unsent(exporter);
  Transfer transfer = channel::send_message(socket, &request, sizeof request, -1, deadline_ns);
  // An exporter that refuses the connection says so and closes it, possibly before the request.
  while (transfer != Transfer::late) {
    const Transfer received = channel::receive_message(
        socket, reply, sizeof *reply, pool_file, transfer == Transfer::done ? deadline_ns : 0);
    if (received != Transfer::done) return received == Transfer::late ? received : Transfer::ended;
    if (reply->magic != ipc::kMagic) return Transfer::ended;
    if (reply->sequence == request.sequence || reply->sequence == 0) return Transfer::done;
    pool_file->reset();  // the reply to an abandoned request
  }
  return transfer;
}

void IpcImports::end_lease(Exporter& exporter, std::uint64_t block) {
  if (!exporter.socket.keeps()) return;
  ipc::Request request;
  request.verb = ipc::Verb::close;
  request.block = block;
  exporter.unsent.push_back(request);
  send_unsent(exporter);
}

// In order and without waiting. Messages that do not fit in are sent before the next request.
bool IpcImports::send_unsent(Exporter& exporter) {
  auto next = exporter.unsent.begin();
  while (next != exporter.unsent.end() &&
         channel::send_message(exporter.socket.get(), &*next, sizeof *next, -1, 0) ==
             Transfer::done) {
    ++next;
  }
  exporter.unsent.erase(exporter.unsent.begin(), next);
  return exporter.unsent.empty();
}

// The driver calls: imports the pool once, gives this device access, imports the pointer.
CUresult IpcImports::map(Exporter& exporter, const ipc::Reply& reply,
                         const util::Descriptor& pool_file, Context& context,
                         CUdeviceptr* address) {
  if (driver_.cuMemPoolImportFromShareableHandle == nullptr ||
      driver_.cuMemPoolImportPointer == nullptr || driver_.cuMemPoolSetAccess == nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const cuda::RelaxedCaptureScope relaxed(driver_);
  auto known = exporter.pools.find(reply.pool);
  const bool first = known == exporter.pools.end();
  if (first) {
    try {
      known = exporter.pools.emplace(reply.pool, Pool{}).first;
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;  // the caller has a lease to end
    }
    void* const file = reinterpret_cast<void*>(static_cast<std::intptr_t>(pool_file.get()));
    const CUresult result = driver_.cuMemPoolImportFromShareableHandle(
        &known->second.handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
      exporter.pools.erase(known);
      return result;
    }
  }
  Pool& pool = known->second;
  CUresult result = admit(pool, context);
  if (result != CUDA_SUCCESS) return result;
  CUmemPoolPtrExportData pointer = reply.pointer;
  result = driver_.cuMemPoolImportPointer(address, pool.handle, &pointer);
  if (result == CUDA_SUCCESS && first) admit_peers(pool, *address);
  return result;
}

CUresult IpcImports::admit(Pool& pool, Context& context) {
  const int device = context.device().ordinal();
  bool& is_admitted = pool.admitted[static_cast<std::size_t>(device)];
  if (is_admitted) return CUDA_SUCCESS;
  const cuda::RelaxedCaptureScope relaxed(driver_);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = driver_.cuMemPoolSetAccess(pool.handle, &access, 1);
  is_admitted = result == CUDA_SUCCESS;
  return result;
}

// As with cupool's own pools: a copy between devices into memory without access for the other
// device would write nothing (measured).
void IpcImports::admit_peers(Pool& pool, CUdeviceptr address) {
  int owner = -1;
  int count = 0;
  driver_.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  driver_.cuDeviceGetCount(&count);
  for (int device = 0; device < std::min(count, stats::kMaxDevices); ++device) {
    int can = 0;
    bool& is_admitted = pool.admitted[static_cast<std::size_t>(device)];
    if (device == owner || is_admitted ||
        driver_.cuDeviceCanAccessPeer(&can, device, owner) != CUDA_SUCCESS || can == 0) {
      continue;
    }
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    is_admitted = driver_.cuMemPoolSetAccess(pool.handle, &access, 1) == CUDA_SUCCESS;
  }
}

std::optional<CUresult> IpcImports::close(CUdeviceptr address) {
  if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const util::Uncancelled throughout;
  {
    const std::lock_guard lock(table_mutex_);
    const auto found = imports_.find(address);
    if (found == imports_.end()) return std::nullopt;
    if (found->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references != 0) return CUDA_SUCCESS;
  }
  const CUresult result = release(address);
  release_closed();
  return cuda::is_final(result) ? result : CUDA_SUCCESS;
}

// Waits for the work of the contexts that opened the memory, returns it to the driver, and ends the
// lease, in this order. If one of these steps is not possible now, the import stays closed for the
// program and held for the exporter. The next open() or close() tries again.
CUresult IpcImports::release(CUdeviceptr address) {
  std::vector<Context*> contexts;
  {
    const std::lock_guard lock(table_mutex_);
    const auto found = imports_.find(address);
    if (found == imports_.end() || found->second.references != 0 || found->second.in_release) {
      return CUDA_SUCCESS;
    }
    try {
      contexts = found->second.contexts;
    } catch (const std::bad_alloc&) {
      return CUDA_SUCCESS;
    }
    found->second.in_release = true;
  }
  WaitResult wait;
  for (Context* context : contexts) {
    // A context with a sticky error runs no more work, and the driver's answer below reports the
    // error.
    const ContextVisit visit(*context);
    if (wait.complete() && visit && context->usable() &&
        !CUPOOL_MUTATED("closes-with-work-pending")) {
      wait = context->ordering().wait(context->ordering().epochs().open());
    }
  }
  const std::lock_guard exchange(exchange_mutex_);
  {
    const std::lock_guard lock(table_mutex_);
    Import& import = imports_.at(address);             // in_release keeps the entry
    if (!wait.complete() || import.references != 0) {  // or opened again
      import.in_release = false;
      return wait.error;
    }
  }
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const CUresult result = driver_.cuMemFree_v2(address);
  if (result != CUDA_SUCCESS) {
    const std::lock_guard lock(table_mutex_);
    imports_.at(address).in_release = false;
    return result;
  }
  std::uint64_t exporter_name = 0;
  std::uint64_t block = 0;
  {
    const std::lock_guard lock(table_mutex_);
    const auto found = imports_.find(address);
    exporter_name = found->second.exporter;
    block = found->second.block;
    imports_.erase(found);
    count_.store(imports_.size(), std::memory_order_release);
  }
  Exporter& exporter = exporters_.at(exporter_name);
  --exporter.imports;
  end_lease(exporter, block);
  return CUDA_SUCCESS;
}

void IpcImports::release_closed() {
  if (count_.load(std::memory_order_acquire) == 0) return;
  const auto next_closed = [this](CUdeviceptr behind) {
    const std::lock_guard lock(table_mutex_);
    const auto next = std::find_if(imports_.upper_bound(behind), imports_.end(),
                                   [](const auto& each) { return each.second.references == 0; });
    return next == imports_.end() ? 0 : next->first;
  };
  for (CUdeviceptr each = next_closed(0); each != 0; each = next_closed(each)) release(each);
}

std::optional<IpcImports::Seen> IpcImports::find(CUdeviceptr base) {
  if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::lock_guard lock(table_mutex_);
  const auto found = imports_.find(base);
  if (found == imports_.end() || found->second.references == 0) return std::nullopt;
  return Seen{found->second.contexts.front()->handle(), found->second.requested};
}

bool IpcImports::holds(CUdeviceptr address) {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(table_mutex_);
  return imports_.count(address) != 0;
}

void IpcImports::context_gone(const Context& context) {
  const std::lock_guard lock(table_mutex_);
  for (auto& entry : imports_) remove_context(entry.second, context);
}

// Drops pools of processes that have ended, and pools without open imports whose process hung up.
void IpcImports::forget_dead_exporters() {
  for (auto which = exporters_.begin(); which != exporters_.end();) {
    Exporter& exporter = which->second;
    const bool alive = exporter.socket.keeps() && !channel::has_ended(exporter.socket.get());
    if (exporter.imports != 0 || alive) {
      ++which;
      continue;
    }
    const cuda::RelaxedCaptureScope relaxed(driver_);
    for (const auto& pool : exporter.pools) driver_.cuMemPoolDestroy(pool.second.handle);
    which = exporters_.erase(which);
  }
}

}  // namespace cupool::engine
