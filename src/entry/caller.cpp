// SPDX-License-Identifier: Apache-2.0
// Identifies libraries by the file name of the object that contains a return address.
#include "entry/caller.h"

#include <dlfcn.h>

#include <cstring>
#include <string_view>

namespace cupool::entry {
namespace {

// File names up to their ending. A library that is missing here counts as the program's: frees wait
// for more than they need to.
const char cuda_libraries[] =
    " libcublas libcublasLt libcublasMp libcudnn libcudnn_adv libcudnn_adv_infer "
    "libcudnn_adv_train libcudnn_cnn libcudnn_cnn_infer libcudnn_cnn_train "
    "libcudnn_engines_precompiled libcudnn_engines_runtime_compiled "
    "libcudnn_engines_tensor_ir libcudnn_ext libcudnn_graph libcudnn_heuristic "
    "libcudnn_ops libcudnn_ops_infer libcudnn_ops_train libcudss libcudss_commlayer_mpi "
    "libcudss_commlayer_nccl libcudss_commlayer_openmpi libcudss_mtlayer_gomp libcufft "
    "libcufftMp libcufftw libcupti libcurand libcusolver libcusolverMg libcusolverMp "
    "libcusparse libcusparseLt libcutensor libcutensorMg libcutensorMp libcutensornet "
    "libnccl libnppc libnppial libnppicc libnppicom libnppidei libnppif libnppig "
    "libnppim libnppist libnppisu libnppitc libnpps libnvJitLink libnvjpeg libnvjpeg2k "
    "libnvrtc libnvrtc-builtins libnvshmem libnvshmem_host ";
constexpr std::string_view kPluginOfNccl = "libnccl-";

// A library's file name up to its ending, and to the hash with which Python's wheels tell their
// copies apart. Empty: it has none.
std::string_view stem_of(std::string_view name) {
  constexpr std::size_t kHash = 8;
  const std::size_t ending = name.find(".so");
  if (ending == name.npos || (ending + 3 < name.size() && name[ending + 3] != '.')) return {};
  std::string_view stem = name.substr(0, ending);
  const std::size_t alternative = stem.rfind(".alt");
  if (alternative != stem.npos && alternative + 4 == stem.size()) stem.remove_suffix(4);
  const std::size_t dash = stem.rfind('-');
  if (dash != stem.npos && stem.size() - dash - 1 == kHash &&
      stem.find_first_not_of("0123456789abcdef", dash + 1) == stem.npos) {
    stem.remove_suffix(kHash + 1);
  }
  return stem;
}

}  // namespace

const char* object_of(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

// By path and address: a library reloaded from the same file at the same address counts as the
// same.
std::uint64_t object_id(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return 0;
  constexpr std::uint64_t kPrime = 1099511628211u;  // FNV-1a
  std::uint64_t id = 14695981039346656037u ^ reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  for (const char* c = info.dli_fname; *c != '\0'; ++c) {
    id = (id ^ static_cast<unsigned char>(*c)) * kPrime;
  }
  return id == 0 ? 1 : id;
}

bool is_own_code(const void* address) {
  Dl_info info = {};
  Dl_info own = {};
  return dladdr(address, &info) != 0 &&
         dladdr(reinterpret_cast<const void*>(&is_own_code), &own) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

bool is_cuda_library(const void* address) {
  const std::string_view name = object_of(address);
  if (name.substr(0, kPluginOfNccl.size()) == kPluginOfNccl) return true;
  const std::string_view stem = stem_of(name);
  const std::string_view all = cuda_libraries;
  for (std::size_t at = all.find(stem); !stem.empty() && at != all.npos;
       at = all.find(stem, at + 1)) {
    if (at != 0 && all[at - 1] == ' ' && all[at + stem.size()] == ' ') return true;
  }
  return false;
}

}  // namespace cupool::entry
