// SPDX-License-Identifier: Apache-2.0
// Driver hooks of the program's events, and of what a program takes away from kernels after a free.
// A free of cupool's does not wait for the GPU; these calls would show it
// (engine/context/thread_order).
#include <algorithm>

#include "engine/context/behind_frees.h"
#include "engine/context/submission.h"
#include "entry/default_stream.h"
#include "entry/forward.h"
#include "entry/hooks.h"

using cupool::engine::Lane;
using cupool::engine::LaneWork;
using cupool::engine::order_event;
using cupool::engine::take_away;
using cupool::engine::ThreadOrder;
using cupool::engine::wait_for_frees;
using cupool::engine::waited_in;
using cupool::entry::legacy;
using cupool::entry::per_thread;

namespace {

// Around the record of an event. It tells others that what comes before it is complete, so it comes
// behind the thread's frees. And the next free waits for it: no later work may.
class Record {
 public:
  Record(const cupool::cuda::Driver& real, CUstream stream) : in_lane_(Lane::holds(stream)) {
    if (in_lane_) {
      ThreadOrder::submits_in_lane();
    } else {
      if (ThreadOrder::is_on() && ThreadOrder::has_work()) order_event(real, stream);
      ThreadOrder::submits(real, stream);
    }
  }
  ~Record() {
    if (in_lane_) LaneWork::submitted();
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

 private:
  const bool in_lane_;
};

// The driver refuses while one of the events is pending. After its own free none of those before it
// is. If it refuses still when all work before the thread's frees is complete, the answer is the
// program's.
template <typename Call>
CUresult elapsed_time(const cupool::cuda::Driver& real, const Call& call) {
  CUresult result = call();
  if (result != CUDA_ERROR_NOT_READY) return result;
  wait_for_frees(real, [&] { return (result = call()) != CUDA_ERROR_NOT_READY; });
  return result;
}

// Only less access takes something away.
bool gives(const CUmemAccessDesc* access, size_t count) {
  return access == nullptr || std::all_of(access, access + count, [](const CUmemAccessDesc& each) {
           return each.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
         });
}

}  // namespace

extern "C" {

CUresult cupool_hook_cuEventRecord(CUevent event, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuEventRecord);
  const Record record(real, legacy(stream));
  return real.cuEventRecord(event, stream);
}

CUresult cupool_hook_cuEventRecord_ptsz(CUevent event, CUstream stream) {
  CUPOOL_REAL_OR_RETURN(cuEventRecord_ptsz);
  const Record record(real, per_thread(stream));
  return real.cuEventRecord_ptsz(event, stream);
}

CUresult cupool_hook_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuEventRecordWithFlags);
  const Record record(real, legacy(stream));
  return real.cuEventRecordWithFlags(event, stream, flags);
}

CUresult cupool_hook_cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream,
                                                 unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuEventRecordWithFlags_ptsz);
  const Record record(real, per_thread(stream));
  return real.cuEventRecordWithFlags_ptsz(event, stream, flags);
}

CUresult cupool_hook_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuStreamWaitEvent);
  const CUresult result = real.cuStreamWaitEvent(stream, event, flags);
  if (result == CUDA_SUCCESS) waited_in(real, legacy(stream));
  return result;
}

CUresult cupool_hook_cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  CUPOOL_REAL_OR_RETURN(cuStreamWaitEvent_ptsz);
  const CUresult result = real.cuStreamWaitEvent_ptsz(stream, event, flags);
  if (result == CUDA_SUCCESS) waited_in(real, per_thread(stream));
  return result;
}

// Before the call: an event that two processes may record is behind work that no lane has.
CUresult cupool_hook_cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  CUPOOL_REAL_OR_RETURN(cuIpcGetEventHandle);
  Lane::leave(Lane::End::unknown_work, "cuIpcGetEventHandle");
  return real.cuIpcGetEventHandle(handle, event);
}

CUresult cupool_hook_cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  CUPOOL_REAL_OR_RETURN(cuIpcOpenEventHandle);
  Lane::leave(Lane::End::unknown_work, "cuIpcOpenEventHandle");
  return real.cuIpcOpenEventHandle(event, handle);
}

CUresult cupool_hook_cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  CUPOOL_REAL_OR_RETURN(cuEventElapsedTime);
  return elapsed_time(real, [&] { return real.cuEventElapsedTime(milliseconds, start, end); });
}

CUresult cupool_hook_cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  CUPOOL_REAL_OR_RETURN(cuEventElapsedTime_v2);
  return elapsed_time(real, [&] { return real.cuEventElapsedTime_v2(milliseconds, start, end); });
}

CUresult cupool_hook_cuTexObjectDestroy(CUtexObject texture) {
  CUPOOL_REAL_OR_RETURN(cuTexObjectDestroy);
  return take_away(real, [&] { return real.cuTexObjectDestroy(texture); });
}

CUresult cupool_hook_cuSurfObjectDestroy(CUsurfObject surface) {
  CUPOOL_REAL_OR_RETURN(cuSurfObjectDestroy);
  return take_away(real, [&] { return real.cuSurfObjectDestroy(surface); });
}

CUresult cupool_hook_cuLibraryUnload(CUlibrary library) {
  CUPOOL_REAL_OR_RETURN(cuLibraryUnload);
  return take_away(real, [&] { return real.cuLibraryUnload(library); });
}

CUresult cupool_hook_cuCtxDisablePeerAccess(CUcontext peer) {
  CUPOOL_REAL_OR_RETURN(cuCtxDisablePeerAccess);
  return take_away(real, [&] { return real.cuCtxDisablePeerAccess(peer); });
}

CUresult cupool_hook_cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                    const CUmemAccessDesc* access, size_t count) {
  CUPOOL_REAL_OR_RETURN(cuMemSetAccess);
  const auto call = [&] { return real.cuMemSetAccess(address, bytes, access, count); };
  return gives(access, count) ? call() : take_away(real, call);
}

CUresult cupool_hook_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access,
                                        size_t count) {
  CUPOOL_REAL_OR_RETURN(cuMemPoolSetAccess);
  const auto call = [&] { return real.cuMemPoolSetAccess(pool, access, count); };
  return gives(access, count) ? call() : take_away(real, call);
}

CUresult cupool_hook_cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CUPOOL_REAL_OR_RETURN(cuMemUnmap);
  return take_away(real, [&] { return real.cuMemUnmap(address, bytes); });
}

}  // extern "C"
