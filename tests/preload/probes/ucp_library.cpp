// SPDX-License-Identifier: Apache-2.0
// UCX, as far as names go.
extern "C" __attribute__((visibility("default"))) int ucp_worker_progress(void*) {
  return 0;
}
