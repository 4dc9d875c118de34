# SPDX-License-Identifier: Apache-2.0
# Writes cupool_commit.h with the commit that is checked out, touching it only when that has changed.
# cmake -D SOURCE=... -D OUTPUT=... -P commit.cmake
cmake_minimum_required(VERSION 3.22)
find_program(git NAMES git)
set(CUPOOL_COMMIT "")
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=10 HEAD
                  OUTPUT_VARIABLE CUPOOL_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// Written by cmake/commit.cmake.\n#define CUPOOL_COMMIT \"@CUPOOL_COMMIT@\"\n" @ONLY)
