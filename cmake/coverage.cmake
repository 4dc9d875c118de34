# SPDX-License-Identifier: Apache-2.0
# Counts the branches and conditions of engine and entry that tests decide (scripts/coverage.sh). Clang 18 or later.
option(CUPOOL_COVERAGE "Instrument engine, entry and their unit tests (scripts/coverage.sh)" OFF)
# Compiled in: the tests' programs get an environment that names no file.
set(CUPOOL_PROFILES ${PROJECT_BINARY_DIR}/profiles)

function(cupool_measure target)
  if(CUPOOL_COVERAGE)
    target_compile_options(${target} PRIVATE -fprofile-instr-generate=${CUPOOL_PROFILES}/%4m.profraw
                                             -fprofile-update=atomic -fcoverage-mapping -fcoverage-mcdc)
    target_link_options(${target} PRIVATE -fprofile-instr-generate)
  endif()
endfunction()
