// SPDX-License-Identifier: Apache-2.0
// Libraries that let other agents into device memory are told by their names (docs/design.md).
#include "engine/context/rdma_libraries.h"

#include <gtest/gtest.h>

namespace cupool::engine {
namespace {

TEST(Agents, AreKnownByTheirFileName) {
  EXPECT_TRUE(is_rdma_library("/usr/lib/x86_64-linux-gnu/libmpi.so.40"));
  EXPECT_TRUE(is_rdma_library("libucp.so.0"));
  EXPECT_TRUE(is_rdma_library("/opt/amazon/efa/lib/libfabric.so.1"));
  EXPECT_TRUE(is_rdma_library("/opt/cray/libmpi_gnu_123.so.12"));
}

TEST(Agents, OthersAreNotTakenForThem) {
  EXPECT_FALSE(is_rdma_library(""));
  EXPECT_FALSE(is_rdma_library("/usr/lib/libmpifr.so.4"));
  EXPECT_FALSE(is_rdma_library("/home/libmpi.so/program"));
  EXPECT_FALSE(is_rdma_library("/usr/lib/libcufile.so.0"));
  EXPECT_FALSE(is_rdma_library("libc.so.6"));
}

TEST(Agents, PartsOfMpiAreNoUsersOfIt) {
  for (const char* part : {"/usr/lib/libmpi_mpifh.so.40",
                           "/opt/lib/openmpi/mca_pml_ucx.so",
                           "libopen-pal.so.80",
                           "libuct_cuda.so.0",
                           "libfabric.so.1",
                           "/lib/openmpi/libfabric/libverbs-fi.so",
                           "/usr/lib/libibverbs/libmlx5-rdmav34.so",
                           "librxe-rdmav34.so",
                           "librdmacm.so.1",
                           "libmpi.so.12",
                           "/opt/cray/libmpi_gnu_123.so.12",
                           "libmpi_usempif08.so.40",
                           "libmpifort.so.12",
                           "libpmpi.so.12",
                           "libopen-orted-mpir.so",
                           "libucs.so.0",
                           "libucs_signal.so.0",
                           "libucm_cuda.so.0",
                           "libucc_tl_ucp.so",
                           "libhcoll.so.1"}) {
    EXPECT_TRUE(is_part_of_mpi(part)) << part;
  }
  for (const char* other :
       {"", "/opt/libmpi/program", "libnixl.so", "libtorch_ucc.so", "libnvshmem_host.so.3",
        "liboshmem.so.40", "libc.so.6", "libucxx.so", "libucxx.cpython-311-x86_64-linux-gnu.so",
        "libucx_py.so", "libmpi_exchange.so", "libmpifr.so.4", "libopen-data.so", "libfabrics.so",
        "libmlx.so", "libsharpen.so"}) {
    EXPECT_FALSE(is_part_of_mpi(other)) << other;
  }
}

TEST(Agents, NoneIsLoadedHere) {
  EXPECT_EQ(rdma_user_beside_mpi(), nullptr);
  EXPECT_EQ(loaded_rdma_library(), nullptr);
}

}  // namespace
}  // namespace cupool::engine
