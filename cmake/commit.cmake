# SPDX-License-Identifier: Apache-2.0
# Writes cupool_commit.h with the commit that is checked out and its day, touching it only when that has changed.
# cmake -D SOURCE=... -D OUTPUT=... -P commit.cmake
cmake_minimum_required(VERSION 3.18)
find_program(git NAMES git)
set(CUPOOL_COMMIT "")
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=10 HEAD
                  OUTPUT_VARIABLE CUPOOL_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${git} -C ${SOURCE} show -s --format=%cd --date=short HEAD
                  OUTPUT_VARIABLE CUPOOL_COMMIT_DATE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT CUPOOL_COMMIT_DATE)
  string(TIMESTAMP CUPOOL_COMMIT_DATE "%Y-%m-%d" UTC)  # SOURCE_DATE_EPOCH, if it is set
endif()
string(CONCAT text "// Written by cmake/commit.cmake.\n"
       "#define CUPOOL_COMMIT \"${CUPOOL_COMMIT}\"\n"
       "#define CUPOOL_COMMIT_DATE \"${CUPOOL_COMMIT_DATE}\"\n")
# (The file(CONFIGURE) of CMake 3.18 drops the ends of lines.)
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
