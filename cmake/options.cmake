# SPDX-License-Identifier: Apache-2.0
# Compile options that every target of this project shares, as one interface target.
add_library(cupool_options INTERFACE)
target_include_directories(cupool_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_include_directories(cupool_options SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(cupool_options INTERFACE -Wall -Wextra -Wshadow
                                                $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                                                -fvisibility=hidden -fno-omit-frame-pointer
                                                -ffunction-sections -fdata-sections
                                                -ftls-model=initial-exec)
target_compile_definitions(cupool_options INTERFACE CUPOOL_VERSION="${PROJECT_VERSION}")
if(CUPOOL_WERROR)
  target_compile_options(cupool_options INTERFACE -Werror)
endif()
if(CUPOOL_SANITIZE)
  target_compile_options(cupool_options INTERFACE -fsanitize=${CUPOOL_SANITIZE})
  target_link_options(cupool_options INTERFACE -fsanitize=${CUPOOL_SANITIZE})
  if(CUPOOL_SANITIZE STREQUAL "undefined")
    target_compile_options(cupool_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
