#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what is released: the library and the command, for every Linux with glibc 2.17 or later.
#   scripts/package.sh build [x86_64|aarch64]...   build/portable/ARCH: bin, lib, include, share, stripped;
#                                                  build/portable/ARCH-debug: the debug information
#   scripts/package.sh packages [x86_64|aarch64]...  those, and from them build/packages: wheel, .tar.gz, .deb,
#                                                  .rpm, list of contents (SPDX), checksums
#   scripts/package.sh programs [x86_64|aarch64]...  the simulated device and the programs of the tests, in
#                                                  build/portable-ARCH, for PRELOAD_TEST_BUILD
#   scripts/package.sh compiler                    only the compiler
# CUPOOL_ZIG names a zig to compile with; otherwise PyPI's, of the version below, is put into build/zig.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$0")/setup.sh"
zig_version=0.17.1

# Clang, a linker, and the C library's symbols of every version since 2.17, in one package.
setup_zig() {
  zig=${CUPOOL_ZIG:-}
  if [ -z "$zig" ]; then
    zig=$root/build/zig/$zig_version/ziglang/zig
    if [ ! -x "$zig" ]; then
      step "fetching ziglang $zig_version from PyPI"
      fetch_pypi "build/zig/$zig_version" "ziglang==$zig_version" || {
        echo "ziglang $zig_version is missing: set CUPOOL_ZIG to a zig of that version, or, where there is a" \
          "network, run 'pip install --no-deps --target DIR ziglang==$zig_version' and copy DIR to" \
          "build/zig/$zig_version" >&2
        return 1
      }
    fi
  fi
  [ "$("$zig" version)" = "$zig_version" ] || echo "note: $zig is not version $zig_version" >&2
  # Objects that are up to date are kept here; the folder may be deleted at any time.
  export ZIG_GLOBAL_CACHE_DIR=$root/build/zig/cache ZIG_LOCAL_CACHE_DIR=$root/build/zig/cache
}

# The headers of other projects alone: those of this system's C library must not be seen.
setup_headers() {
  local name
  headers=$root/build/portable/headers
  mkdir -p "$headers"
  for name in spdlog fmt nlohmann CLI; do
    ln -sfn "/usr/include/$name" "$headers/$name"
    # CLI11 may be in the build folder (setup.sh).
    [ "$name" != CLI ] || ln -sfn "${CLI11_ROOT:-/usr}/include/CLI" "$headers/CLI"
  done
}

find_objcopy() {
  local arch=$1
  [ "$arch" != "$(uname -m)" ] || { objcopy=objcopy && return; }
  for objcopy in "$arch-linux-gnu-objcopy" llvm-objcopy; do
    if command -v "$objcopy" >/dev/null; then return; fi
  done
  objcopy=$arch-linux-gnu-objcopy
  setup_packages "binutils-${arch//_/-}-linux-gnu=$objcopy"
}

# quietly COMMAND...: prints the output only of a failure.
quietly() {
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { cat "$log" && rm -f "$log" && return 1; }
  rm -f "$log"
}

configure() {
  local arch=$1 tests=$2 folder=build/portable-$1 gtest=() host_command="" compiler
  # CMake would keep the compiler that it began with.
  compiler="$zig, $(cksum <packaging/toolchain/glibc-2.17.cmake)"
  [ "$(cat "$folder/zig.txt" 2>/dev/null)" = "$compiler" ] || rm -rf "$folder"
  mkdir -p "$folder"
  echo "$compiler" >"$folder/zig.txt"
  # Of another architecture nothing is built that needs GoogleTest, which CMake looks for all the same.
  [ "$tests" = OFF ] || gtest=(-D "GTest_DIR=$(dirname "$(find /usr/lib -name GTestConfig.cmake | head -n 1)")")
  # What runs here writes the manual page: the new command itself, or that of this architecture.
  [ "$arch" = "$(uname -m)" ] || host_command=$root/build/portable/$(uname -m)/bin/cupool
  # The launcher of the environment, such as ccache, knows no compiler of two words.
  CMAKE_C_COMPILER_LAUNCHER='' CMAKE_CXX_COMPILER_LAUNCHER='' quietly cmake -S . -G Ninja \
    -B "$folder" ${gtest[@]+"${gtest[@]}"} -D CMAKE_BUILD_TYPE=RelWithDebInfo \
    -D CMAKE_TOOLCHAIN_FILE="$root/packaging/toolchain/glibc-2.17.cmake" \
    -D CUPOOL_ZIG="$zig" -D CUPOOL_ARCH="$arch" -D CUPOOL_HEADERS="$headers" \
    -D CUPOOL_HOST_COMMAND="$host_command" \
    -D CMAKE_INSTALL_LIBDIR=lib -D CUPOOL_BUILD_TESTS="$tests"
}

compile() {
  local arch=$1
  shift
  quietly cmake --build "build/portable-$arch" -j "$job_count" --target "$@"
}

# split FILE DEBUG_FOLDER: moves the debug information of a file beside it.
split() {
  local debug=$2/${1##*/}.debug
  "$objcopy" --only-keep-debug --compress-debug-sections "$1" "$debug"
  chmod -x "$debug"
  "$objcopy" --strip-all --add-gnu-debuglink="$debug" "$1"
}

build() {
  local arch=$1 stage=build/portable/$1
  [ "$arch" = "$(uname -m)" ] || [ -x "build/portable/$(uname -m)/bin/cupool" ] || build "$(uname -m)"
  step "portable build for $arch"
  find_objcopy "$arch"
  # Tests that were configured before stay so.
  configure "$arch" "$(grep -q '^CUPOOL_BUILD_TESTS:BOOL=ON' "build/portable-$arch/CMakeCache.txt" \
    2>/dev/null && echo ON || echo OFF)"
  compile "$arch" libcupool.so cupool_command cupool_reference
  rm -rf "$stage" "$stage-debug"
  mkdir -p "$stage-debug"
  quietly cmake --install "build/portable-$arch" --prefix "$stage"
  split "$stage/lib/libcupool.so" "$stage-debug"
  split "$stage/bin/cupool" "$stage-debug"
  python3 tests/portable/bounds.py --machine "$arch" --exports "build/portable-$arch/src/exports.txt" \
    "$stage/lib/libcupool.so" "$stage/bin/cupool"
}

programs() {
  step "programs of the tests for $1"
  configure "$1" ON
  compile "$1" tested_programs tests/libcupool_mutable.so
}

packages() {
  local arch=$1 version
  build "$arch"
  setup_packages rpm=rpmbuild
  version=$(sed -n 's/^project(cupool VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  step "packages of $version for $arch"
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s) quietly \
    python3 packaging/packages.py --arch "$arch" --version "$version" --files "build/portable/$arch" \
    --zig "$(dirname "$(readlink -f "$zig")")" --zig-version "$("$zig" version)" --out build/packages
  (cd build/packages && sha256sum -- cupool[-_]"$version"[-_]* >SHA256SUMS && ls)
}

usage() { sed -n '4,13p' "$0" && exit 2; }
command=${1:-}
case $command in build | packages | programs | compiler) shift ;; *) usage ;; esac
[ $# -gt 0 ] || set -- x86_64 aarch64
for arch in "$@"; do
  case $arch in x86_64 | aarch64) ;; *) usage ;; esac
done
if [ "$command" = compiler ]; then
  setup_zig
  exit
fi
setup_packages
setup_cli11
setup_toolkit
setup_zig
setup_headers
for arch in "$@"; do
  "$command" "$arch"
done
