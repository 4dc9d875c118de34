// SPDX-License-Identifier: Apache-2.0
// Exported: initialisation, versions, error texts, and questions about devices.
#include <cudaProfiler.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver/entry.h"
#include "driver/lifecycle.h"

namespace cupool::sim {

namespace {

CUresult driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = world().settings.driver_version;
  return CUDA_SUCCESS;
}

const char* error_name(CUresult error) {
  switch (error) {
#define SIM_ERROR(name) \
  case name:            \
    return #name;
#include "driver/errors.def"
#undef SIM_ERROR
    default:
      return nullptr;
  }
}

CUresult error_text(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error_name(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult device_get(Entry& in, CUdevice* device, int ordinal) {
  Device* found = nullptr;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &found);
  if (result == CUDA_SUCCESS) *device = ordinal;
  return result;
}

CUresult device_count(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(world().devices.size());
  return CUDA_SUCCESS;
}

CUresult device_name(Entry& in, char* name, int length, CUdevice ordinal) {
  Device* device = nullptr;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result == CUDA_SUCCESS) {
    std::snprintf(name, static_cast<size_t>(length), "cupool simulated device");
  }
  return result;
}

CUresult device_memory(Entry& in, size_t* bytes, CUdevice ordinal) {
  Device* device = nullptr;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result == CUDA_SUCCESS) *bytes = device->total;
  return result;
}

CUresult device_uuid(Entry& in, CUuuid* uuid, CUdevice ordinal) {
  Device* device = nullptr;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  std::memset(uuid, 0, sizeof *uuid);
  std::memcpy(uuid->bytes, "cupool-sim", 10);
  const bool shared = device->shared != nullptr;
  const auto whose =
      static_cast<uint32_t>(shared ? device->shared->identity() : static_cast<uint64_t>(getpid()));
  std::memcpy(uuid->bytes + 10, &whose, sizeof whose);
  uuid->bytes[14] = static_cast<char>(shared);
  uuid->bytes[15] = static_cast<char>(ordinal);
  return CUDA_SUCCESS;
}

int attribute_of(CUdevice_attribute attribute) {
  const Settings& settings = world().settings;
  const int many = static_cast<int>(world().devices.size());
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return settings.pools ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return settings.pools && settings.pool_ipc != PoolIpc::no
                 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                 : 0;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD:
      return many > 1 ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return 1;
    default:
      return 0;
  }
}

CUresult device_attribute(Entry& in, int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  Device* device = nullptr;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result != CUDA_SUCCESS) return result;
  *value = attribute_of(attribute);
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value += ordinal;
  return CUDA_SUCCESS;
}

CUresult pci_bus_id(Entry& in, char* text, int length, CUdevice ordinal) {
  Device* device = nullptr;
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = in.device(ordinal, &device);
  if (result == CUDA_SUCCESS) {
    std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", ordinal + 1);
  }
  return result;
}

CUresult by_pci_bus_id(CUdevice* device, const char* text) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
  if (bus == 0 || bus > world().devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = static_cast<int>(bus) - 1;
  return CUDA_SUCCESS;
}

CUresult can_access_peer(Entry& in, int* can, CUdevice device, CUdevice peer) {
  Device* a = nullptr;
  Device* b = nullptr;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = in.device(device, &a);
  if (result == CUDA_SUCCESS) result = in.device(peer, &b);
  if (result == CUDA_SUCCESS) *can = a != b && world().settings.peers ? 1 : 0;
  return result;
}

CUresult p2p_attribute(Entry& in, int* value, CUdevice_P2PAttribute, CUdevice a, CUdevice b) {
  return can_access_peer(in, value, a, b);
}

}  // namespace

SIM_DEFINE_ANY_TIME(cuInit, (unsigned int flags), initialise(flags))
SIM_DEFINE_ANY_TIME(cuDriverGetVersion, (int* version), driver_version(version))
SIM_DEFINE_ANY_TIME(cuGetErrorName, (CUresult error, const char** text), error_text(error, text))
SIM_DEFINE_ANY_TIME(cuGetErrorString, (CUresult error, const char** text), error_text(error, text))
SIM_DEFINE_ANY_TIME(cuGetExportTable, (const void** table, const CUuuid*),
                    table == nullptr ? CUDA_ERROR_INVALID_VALUE
                                     : (*table = nullptr, CUDA_ERROR_NOT_FOUND))

SIM_DEFINE(cuProfilerInitialize, (const char*, const char*, CUoutput_mode), CUDA_SUCCESS)
SIM_DEFINE(cuProfilerStart, (), CUDA_SUCCESS)
SIM_DEFINE(cuProfilerStop, (), CUDA_SUCCESS)

SIM_DEFINE(cuDeviceGet, (CUdevice * device, int ordinal), device_get(in, device, ordinal))
SIM_DEFINE(cuDeviceGetCount, (int* count), device_count(count))
SIM_DEFINE(cuDeviceGetName, (char* name, int length, CUdevice device),
           device_name(in, name, length, device))
SIM_DEFINE(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), device_memory(in, bytes, device))
SIM_DEFINE(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), device_uuid(in, uuid, device))
SIM_DEFINE(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), device_uuid(in, uuid, device))
SIM_DEFINE(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device),
           device_attribute(in, value, attribute, device))
SIM_DEFINE(cuDeviceGetPCIBusId, (char* text, int length, CUdevice device),
           pci_bus_id(in, text, length, device))
SIM_DEFINE(cuDeviceGetByPCIBusId, (CUdevice * device, const char* text),
           by_pci_bus_id(device, text))
SIM_DEFINE(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer),
           can_access_peer(in, can, device, peer))
SIM_DEFINE(cuDeviceGetP2PAttribute,
           (int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to),
           p2p_attribute(in, value, attribute, from, to))

}  // namespace cupool::sim
