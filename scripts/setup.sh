# SPDX-License-Identifier: Apache-2.0
# Finds or installs what building and testing need (Debian 11, Ubuntu 22.04 and later). Sourced by
# the other scripts; quick if everything is installed. Defines `root` and `job_count`, and changes to
# `root`.
# shellcheck shell=bash
set -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
# A compiler needs half a gigabyte: fewer jobs than cores if memory is short.
memory_jobs=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 700000 + 1))
job_count=$(nproc)
[ "$memory_jobs" -lt "$job_count" ] && job_count=$memory_jobs

# Where a compiler cache is installed, a second clone compiles only what differs from the first.
if command -v ccache >/dev/null && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ]; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content
fi

step() { printf '\n== %s\n' "$*"; }

# package=witness: a file or command that exists if the package is installed
# shellcheck disable=SC2191
base_packages=(g++=g++ cmake=cmake ninja-build=ninja python3=python3 git=git binutils=readelf
  libspdlog-dev=/usr/include/spdlog/spdlog.h libfmt-dev=/usr/include/fmt/core.h
  nlohmann-json3-dev=/usr/include/nlohmann/json.hpp
  libgtest-dev=/usr/include/gtest/gtest.h libgmock-dev=/usr/include/gmock/gmock.h
  python3-jsonschema=/usr/lib/python3/dist-packages/jsonschema/__init__.py)

# find_missing PACKAGE=WITNESS...: sets the array `missing`.
find_missing() {
  local pair package witness
  missing=()
  for pair in "${base_packages[@]}" "$@"; do
    package=${pair%%=*}
    witness=${pair#*=}
    # A name without a slash is a command: this repository has a folder `cmake`.
    case $witness in
      /*) [ ! -e "$witness" ] || continue ;;
      *) ! command -v "$witness" >/dev/null || continue ;;
    esac
    missing+=("$package")
  done
}

# announce PACKAGE=WITNESS... [-- FETCHED...]: says what will be installed and what is fetched into the build
# folder, before any of it is. `setup_packages` and the others do it.
announce() {
  local missing=() pairs=() fetched=() by="as root"
  while [ $# -gt 0 ] && [ "$1" != -- ]; do pairs+=("$1") && shift; done
  [ $# -eq 0 ] || shift
  fetched=("$@")
  find_missing ${pairs[@]+"${pairs[@]}"}
  find_toolkit || fetched+=("headers and static runtime of CUDA 13.0, from PyPI (3 MB), into build/cuda")
  [ -e /usr/include/CLI/CLI.hpp ] || [ -e "$root/build/cli11/usr/include/CLI/CLI.hpp" ] ||
    fetched+=("headers of CLI11: the system's package, or Debian's into build/cli11")
  [ "$(id -u)" -eq 0 ] || by="with sudo"
  if [ ${#missing[@]} -eq 0 ] && [ ${#fetched[@]} -eq 0 ]; then
    step "nothing to install: all that is needed is here. The build goes to build/"
    return 0
  fi
  step "what is missing here is installed first; nothing else outside build/ is changed"
  [ ${#missing[@]} -eq 0 ] || echo "  by apt-get, $by: ${missing[*]}"
  [ ${#fetched[@]} -eq 0 ] || printf '  %s\n' "${fetched[@]}"
}

setup_packages() {
  local missing=()
  find_missing "$@"
  [ ${#missing[@]} -eq 0 ] && return 0
  step "installing ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "install these with your package manager: ${missing[*]}" >&2
    return 1
  fi
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  if ! { "${as_root[@]}" apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
      "${missing[@]}" >/dev/null; }; then
    echo "apt-get cannot install ${missing[*]}: see that its servers can be reached, or install these by hand" >&2
    return 1
  fi
}

# Debian 11 and Ubuntu 20.04 have no package of CLI11. It is headers alone: Debian 12's then goes into the
# build folder.
setup_cli11() {
  local folder=$root/build/cli11 archive=$root/build/cli11.deb
  local url=http://deb.debian.org/debian/pool/main/c/cli11/libcli11-dev_2.1.2%2bds-1_all.deb
  local digest=f1f6ee9ec053e0e0bcec47345e241b6a8ee006321248b4329e9ce88d2b4b64a8
  [ ! -e /usr/include/CLI/CLI.hpp ] || return 0
  if [ ! -e "$folder/usr/include/CLI/CLI.hpp" ]; then
    if ! command -v apt-cache >/dev/null || [ -n "$(apt-cache search --names-only '^libcli11-dev$')" ]; then
      setup_packages libcli11-dev=/usr/include/CLI/CLI.hpp
      return
    fi
    step "no package of CLI11 here: fetching Debian 12's headers into build/cli11"
    mkdir -p "$root/build"
    if ! { python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$url" "$archive" &&
      echo "$digest  $archive" | sha256sum --check --quiet && dpkg-deb -x "$archive" "$folder"; }; then
      echo "CLI11 is missing: install it to /usr, or unpack $url to build/cli11" >&2
      return 1
    fi
  fi
  export CLI11_ROOT=$folder/usr
}

# fetch_pypi FOLDER PACKAGE==VERSION...: unpacks packages of PyPI into a folder of the build.
fetch_pypi() {
  local folder=$1
  shift
  setup_packages python3-pip=pip3 ca-certificates=/etc/ssl/certs/ca-certificates.crt || return 1
  rm -rf "$folder" "$folder.part"
  # A folder named by --target is no part of the system's Python, so no distribution forbids it.
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps \
    --target "$folder.part" "$@" && mv "$folder.part" "$folder"
}

# Sets `toolkit`: a CUDA Toolkit that is here, "" for a distribution's package. Fails if there is none.
find_toolkit() {
  for toolkit in "${CUDAToolkit_ROOT:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [ -n "$toolkit" ] && [ -e "$toolkit/include/cuda.h" ] && return 0
  done
  toolkit=""
  [ ! -e /usr/include/cuda.h ] || return 0
  toolkit=$root/build/cuda/13.0.96/nvidia/cu13
  [ -e "$toolkit/include/cuda.h" ]
}

# Only the CUDA Toolkit's headers and static runtime are needed; no GPU, no driver, no nvcc. Where there is
# no toolkit, both come from PyPI (3 MB).
setup_toolkit() {
  local toolkit folder=$root/build/cuda/13.0.96
  local packages=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-profiler-api==13.0.85
    nvidia-nvtx==13.0.85)
  if find_toolkit; then
    # A distribution's package needs no name.
    [ -z "$toolkit" ] || export CUDAToolkit_ROOT=$toolkit
    return 0
  fi
  toolkit=$folder/nvidia/cu13
  step "no CUDA Toolkit here: fetching its headers and static runtime from PyPI into build/cuda"
  if ! fetch_pypi "$folder" "${packages[@]}"; then
    echo "the CUDA headers are missing: install a CUDA Toolkit to /usr/local/cuda, set" \
      "CUDAToolkit_ROOT, or, where there is a network, run" \
      "'pip install --no-deps --target DIR ${packages[*]}' and copy DIR to build/cuda/13.0.96" >&2
    return 1
  fi
  export CUDAToolkit_ROOT=$toolkit
}

# configure_preset NAME [OPTION...]: as `cmake --preset`, which CMake has since 3.21.
configure_preset() {
  local preset=$1 variables
  shift
  if cmake --list-presets >/dev/null 2>&1; then
    cmake --preset "$preset" "$@"
    return
  fi
  mapfile -t variables < <(python3 - "$preset" <<'END'
import json, sys
presets = {p["name"]: p for p in json.load(open("CMakePresets.json"))["configurePresets"]}
preset = presets[sys.argv[1]]
for name, value in {**presets["base"]["cacheVariables"], **preset["cacheVariables"]}.items():
    print(f"-D{name}={value}")
END
  )
  cmake -S . -B "build/$preset" -G Ninja "${variables[@]}" "$@"
}

# show_count WHAT: of the output of ninja or ctest, shows at a terminal how far it is, in one line that is gone
# at the end. Elsewhere nothing: a log needs no line for each file.
show_count() {
  local line count shown="" began=$SECONDS pattern='^(\[| *)([0-9]+/[0-9]+)(\]| Test)'
  if ! [ -t 1 ] || [ "${TERM:-dumb}" = dumb ]; then
    cat >/dev/null
    return
  fi
  while IFS= read -r line; do
    [[ $line =~ $pattern ]] || continue
    count=${BASH_REMATCH[2]}
    [ "$count" != "$shown" ] || continue
    shown=$count
    printf '\r\033[K   %s [%s] %s s' "$1" "$count" $((SECONDS - began))
  done
  printf '\r\033[K'
}

# build_preset NAME [TARGET...]: prints the output only of a failure. The release preset compiles file by file;
# the others use unity builds, which are quicker.
build_preset() {
  local preset=$1 unity=(-D CMAKE_UNITY_BUILD=ON) log status=0
  shift
  [ "$preset" != release ] || unity=(-U CMAKE_UNITY_BUILD)
  log=$(mktemp)
  { configure_preset "$preset" -D CUPOOL_BUILD_TESTS=ON "${unity[@]}" &&
    NINJA_STATUS='[%f/%t] ' cmake --build "build/$preset" -j "$job_count" ${1+--target "$@"}; } 2>&1 |
    tee "$log" | show_count "compiling the $preset preset" || status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || cat "$log"
  rm -f "$log"
  return "$status"
}

# show_sim_lines: what compiles a program for the simulated device of the release preset, and runs it there. After
# setup_toolkit, which knows the headers.
show_sim_lines() {
  echo "  export LD_LIBRARY_PATH=$root/build/release/tests/sim/lib CUPOOL_SIM_MODE=timed"
  echo "  g++ ${CUDAToolkit_ROOT:+-I$CUDAToolkit_ROOT/include }program.cpp -L\$LD_LIBRARY_PATH -lcudart -o program"
}
