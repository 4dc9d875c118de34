# SPDX-License-Identifier: Apache-2.0
# Finds the CUDA headers and, if it is there, the static runtime. CMake's own module asks for nvcc in some
# versions, which the packages of PyPI lack. Takes and sets variables under that module's names.
find_program(CUPOOL_NVCC nvcc)
set(toolkits ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH})
if(CUPOOL_NVCC)
  get_filename_component(nvcc_folder "${CUPOOL_NVCC}" REALPATH)
  get_filename_component(nvcc_folder "${nvcc_folder}" DIRECTORY)
  list(APPEND toolkits ${nvcc_folder}/..)
endif()
list(APPEND toolkits /usr/local/cuda)
set(machine_folder targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(machine_folder targets/sbsa-linux)
endif()
find_path(CUPOOL_CUDA_INCLUDE cuda_runtime_api.h HINTS ${toolkits}
          PATH_SUFFIXES include ${machine_folder}/include NO_CMAKE_FIND_ROOT_PATH)
if(NOT CUPOOL_CUDA_INCLUDE)
  message(FATAL_ERROR "No CUDA headers (cuda_runtime_api.h): install a CUDA Toolkit, or name its folder with "
                      "-D CUDAToolkit_ROOT=FOLDER. scripts/demo.sh fetches the headers from PyPI.")
endif()
find_library(CUPOOL_CUDA_RUNTIME cudart_static HINTS ${toolkits}
             PATH_SUFFIXES lib64 lib ${machine_folder}/lib NO_CMAKE_FIND_ROOT_PATH)

set(CUDAToolkit_INCLUDE_DIRS ${CUPOOL_CUDA_INCLUDE})
file(STRINGS ${CUPOOL_CUDA_INCLUDE}/cuda.h cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE "[^0-9]" "" cuda_version "${cuda_version}")
math(EXPR CUDAToolkit_VERSION_MAJOR "${cuda_version} / 1000")
math(EXPR CUDAToolkit_VERSION_MINOR "${cuda_version} % 1000 / 10")
message(STATUS "CUDA ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}: ${CUPOOL_CUDA_INCLUDE}")

if(CUPOOL_CUDA_RUNTIME AND NOT TARGET CUDA::cudart_static)
  find_package(Threads REQUIRED)
  add_library(CUDA::cudart_static UNKNOWN IMPORTED GLOBAL)
  set_target_properties(CUDA::cudart_static PROPERTIES IMPORTED_LOCATION ${CUPOOL_CUDA_RUNTIME})
  set_property(TARGET CUDA::cudart_static PROPERTY INTERFACE_LINK_LIBRARIES
                                                   Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()
