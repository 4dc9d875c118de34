// SPDX-License-Identifier: Apache-2.0
// A library of the program that uses UCX itself: what it needs says so.
extern "C" __attribute__((visibility("default"))) int ucp_worker_progress(void*);
extern "C" __attribute__((visibility("default"))) int use_ucx() {
  return ucp_worker_progress(nullptr);
}
