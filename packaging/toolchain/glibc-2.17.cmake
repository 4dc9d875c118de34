# SPDX-License-Identifier: Apache-2.0
# Builds for every Linux with glibc 2.17 or later (RHEL 7, 2014), x86-64 or aarch64. The compiler is
# clang as zig packs it, with the C library's symbols of any version and a static C++ runtime.
#   cmake -D CMAKE_TOOLCHAIN_FILE=... -D CUPOOL_ZIG=/path/to/zig -D CUPOOL_ARCH=x86_64|aarch64
#         -D CUPOOL_HEADERS=FOLDER   (with spdlog, fmt, nlohmann and CLI; never /usr/include itself)
# scripts/package.sh does all of it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${CUPOOL_ARCH})
set(CMAKE_LIBRARY_ARCHITECTURE ${CUPOOL_ARCH}-linux-gnu)
# The tools have to be one file each (the compilers as well, before CMake 3.19), for its trials the same.
if(NOT CUPOOL_ZIG_TOOLS)
  set(CUPOOL_ZIG_TOOLS ${CMAKE_BINARY_DIR})
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CUPOOL_ZIG CUPOOL_ARCH CUPOOL_HEADERS CUPOOL_ZIG_TOOLS)
set(target_of_cc " -target ${CUPOOL_ARCH}-linux-gnu.2.17")
set(target_of_c++ ${target_of_cc})
foreach(tool cc c++ ar ranlib)
  set(file ${CUPOOL_ZIG_TOOLS}/zig-${tool})
  if(NOT EXISTS ${file})
    file(WRITE ${file} "#!/bin/sh\nexec '${CUPOOL_ZIG}' ${tool}${target_of_${tool}} \"$@\"\n")
    execute_process(COMMAND chmod 755 ${file})  # CMake does so itself since 3.19
  endif()
endforeach()
set(CMAKE_C_COMPILER ${CUPOOL_ZIG_TOOLS}/zig-cc)
set(CMAKE_CXX_COMPILER ${CUPOOL_ZIG_TOOLS}/zig-c++)
set(CMAKE_ASM_COMPILER ${CUPOOL_ZIG_TOOLS}/zig-cc)
set(CMAKE_ASM_COMPILER_ID Clang)  # CMake cannot tell by itself
set(CMAKE_AR ${CUPOOL_ZIG_TOOLS}/zig-ar)
set(CMAKE_RANLIB ${CUPOOL_ZIG_TOOLS}/zig-ranlib)

# Zig would add checks that end the program.
set(CMAKE_C_FLAGS_INIT "-fno-sanitize=all -isystem '${CUPOOL_HEADERS}'")
set(CMAKE_CXX_FLAGS_INIT "-fno-sanitize=all -isystem '${CUPOOL_HEADERS}'")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
