// SPDX-License-Identifier: Apache-2.0
// The build updates the header with the commit.
#include "cli/version.h"

#include "cupool_commit.h"

namespace cupool::cli {

std::string version_text() {
  const std::string commit = CUPOOL_COMMIT;
  return std::string("cupool " CUPOOL_VERSION " (") +
         (commit.empty() ? "" : "commit " + commit + ", ") +
         "built for CUDA " CUPOOL_BUILT_FOR_CUDA ")";
}

std::string version_date() {
  return CUPOOL_COMMIT_DATE;
}

}  // namespace cupool::cli
