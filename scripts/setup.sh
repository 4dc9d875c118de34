# SPDX-License-Identifier: Apache-2.0
# Finds or installs what building and testing need (Debian 12, Ubuntu 22.04 and later). Sourced by
# the other scripts; quick if everything is installed. Defines `root` and `job_count`, and changes to
# `root`.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
# A compiler needs half a gigabyte: fewer jobs than cores if memory is short.
memory_jobs=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 700000 + 1))
job_count=$(nproc)
[ "$memory_jobs" -lt "$job_count" ] && job_count=$memory_jobs

step() { printf '\n== %s\n' "$*"; }

# package=witness: a file or command that exists if the package is installed
setup_packages() {
  local missing=() pair package witness
  for pair in g++=g++ cmake=cmake ninja-build=ninja python3=python3 git=git binutils=readelf \
    libspdlog-dev=/usr/include/spdlog/spdlog.h libfmt-dev=/usr/include/fmt/core.h \
    nlohmann-json3-dev=/usr/include/nlohmann/json.hpp libcli11-dev=/usr/include/CLI/CLI.hpp \
    libgtest-dev=/usr/include/gtest/gtest.h \
    python3-jsonschema=/usr/lib/python3/dist-packages/jsonschema/__init__.py "$@"; do
    package=${pair%%=*}
    witness=${pair#*=}
    if [ -e "$witness" ] || command -v "$witness" >/dev/null; then continue; fi
    missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  step "installing ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "install these with your package manager: ${missing[*]}" >&2
    return 1
  fi
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get -qq update &&
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -qq install -y --no-install-recommends \
      "${missing[@]}" >/dev/null
}

# Only the CUDA Toolkit's headers and static runtime are needed; no GPU, no driver, no nvcc.
setup_toolkit() {
  local toolkit
  for toolkit in "${CUDAToolkit_ROOT:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [ -n "$toolkit" ] && [ -e "$toolkit/include/cuda.h" ] && break
    toolkit=""
  done
  if [ -z "$toolkit" ] && [ -e /usr/include/cuda.h ]; then return 0; fi  # a distribution's package
  if [ -z "$toolkit" ]; then
    echo "the CUDA Toolkit is missing: install it to /usr/local/cuda, or set CUDAToolkit_ROOT" >&2
    return 1
  fi
  export CUDAToolkit_ROOT=$toolkit
}

# build_preset NAME [TARGET...]: quiet unless it fails. The release preset compiles file by file; the
# others use unity builds, which are quicker.
build_preset() {
  local preset=$1 unity=(-D CMAKE_UNITY_BUILD=ON) log
  shift
  [ "$preset" != release ] || unity=(-U CMAKE_UNITY_BUILD)
  log=$(mktemp)
  if ! { cmake --preset "$preset" -D CUPOOL_BUILD_TESTS=ON "${unity[@]}" &&
    cmake --build --preset "$preset" -j "$job_count" ${1+--target "$@"}; } >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
