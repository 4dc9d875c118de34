#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the real-GPU programs into .gpu/ with nvcc (sm_90 code, compute_75 PTX for other GPUs), so
# that they can be carried to a machine that has a GPU and nothing else; library and command go
# without their debug information. Needs no GPU itself.
# Two programs use what others have built, which is taken from folders and put beside them in .gpu/; without
# it they are left out:
#   RMM_ROOT (default .whl/rmm)  librmm-cu13 26.10 and rapids-logger 0.3, unpacked side by side: pairs_rmm
#   MPI_ROOT (default .whl/mpi)  Open MPI 5.0, installed, with UCX 1.22 and its transports for CUDA, whose
#                                modules are in lib/openmpi/ucx: mpi_exchange
set -euo pipefail
cd "$(dirname "$0")/../.."

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
# nvcc of a distribution package or a redirected toolkit: the usual place is then right.
[ -e "$toolkit/lib64/libcudart_static.a" ] || toolkit=/usr/local/cuda
out=.gpu
mkdir -p "$out"

here=tests/gpu
# shellcheck disable=SC2054  # the commas are nvcc's
flags=(-O2 -std=c++17 -Xcompiler -Wall -I"$here"
       -gencode arch=compute_90,code=sm_90 -gencode arch=compute_75,code=compute_75)
build() { echo "building $out/$1"; shift; "$@"; }

build legacy_loop_static "$nvcc" "${flags[@]}" -cudart static \
  "$here/programs/legacy_loop.cu" -o "$out/legacy_loop_static"
build legacy_loop_shared "$nvcc" "${flags[@]}" -cudart shared \
  -Xlinker -rpath -Xlinker "\$ORIGIN" "$here/programs/legacy_loop.cu" -o "$out/legacy_loop_shared"
cp -L "$toolkit/lib64/libcudart.so.13" "$out/libcudart.so.13"
build driver_api "$nvcc" "${flags[@]}" -cudart none \
  "$here/programs/driver_api.cpp" -o "$out/driver_api" -L"$toolkit/lib64/stubs" -lcuda
build driver_facts "$nvcc" "${flags[@]}" -cudart none \
  "$here/proofs/driver_facts.cpp" -o "$out/driver_facts" -L"$toolkit/lib64/stubs" -lcuda
build kernels.fatbin "$nvcc" "${flags[@]}" -fatbin "$here/common/kernels.cu" -o "$out/kernels.fatbin"
build semantics "$nvcc" "${flags[@]}" -cudart static \
  "$here/proofs/semantics.cu" -o "$out/semantics" -L"$toolkit/lib64/stubs" -lcuda
build thrust_loop "$nvcc" "${flags[@]}" -cudart static \
  -Xlinker --wrap=cudaMalloc -Xlinker --wrap=cudaFree \
  "$here/programs/thrust_loop.cu" -o "$out/thrust_loop"
for program in ordered_stress lane_stress kernel_then_free host_reliance host_memory async_serve overlap overlap_facts neighbours; do
  build "$program" "$nvcc" "${flags[@]}" -cudart static "$here/proofs/$program.cu" -o "$out/$program"
done
for program in host_memory async_serve; do
  build "${program}_shared" "$nvcc" "${flags[@]}" -cudart shared -Xlinker -rpath -Xlinker "\$ORIGIN" \
    "$here/proofs/$program.cu" -o "$out/${program}_shared"
done
build dense_stress "$nvcc" "${flags[@]}" -cudart static \
  "$here/proofs/dense_stress.cu" -o "$out/dense_stress" -L"$toolkit/lib64/stubs" -lcuda
for program in ipc_pair fill_memory other_allocators peers contexts default_pool; do
  build "$program" "$nvcc" "${flags[@]}" -cudart static \
    "$here/proofs/contract/$program.cu" -o "$out/$program" -L"$toolkit/lib64/stubs" -lcuda
done
for program in captures lifecycle; do
  build "$program" "$nvcc" "${flags[@]}" -cudart static "$here/proofs/contract/$program.cu" -o "$out/$program"
done
# Probes of the tests without a GPU that mean something on one.
for program in capture_calls capture_contexts step_aside stream_order free_holds allocation_order dependent_launches; do
  build "$program" "$nvcc" "${flags[@]}" -cudart static \
    "tests/preload/probes/probe_$program.cpp" -o "$out/$program" -L"$toolkit/lib64/stubs" -lcuda
done
build inference_loop "$nvcc" "${flags[@]}" -cudart static \
  tests/demo/inference_loop.cpp -o "$out/inference_loop"

build pairs_static "$nvcc" "${flags[@]}" -cudart static \
  "$here/pairs/pairs.cu" -o "$out/pairs_static" -L"$toolkit/lib64/stubs" -lcuda
build pairs_shared "$nvcc" "${flags[@]}" -cudart shared -Xlinker -rpath -Xlinker "\$ORIGIN" \
  "$here/pairs/pairs.cu" -o "$out/pairs_shared" -L"$toolkit/lib64/stubs" -lcuda
build idle_memory "$nvcc" "${flags[@]}" -cudart static \
  "$here/pairs/idle_memory.cu" -o "$out/idle_memory"
build start_up "$nvcc" "${flags[@]}" -cudart static "$here/programs/start_up.cu" -o "$out/start_up"
rmm=${RMM_ROOT:-.whl/rmm}
if [ -e "$rmm/librmm/lib64/librmm.so" ]; then
  # RMM brings the CCCL that it was built with, which must come before the toolkit's.
  build pairs_rmm "$nvcc" "${flags[@]}" -cudart static -I"$rmm/librmm/include/rapids" \
    -I"$rmm/librmm/include" -I"$rmm/rapids_logger/include" -Xlinker -rpath -Xlinker "\$ORIGIN" \
    "$here/pairs/pairs_rmm.cu" -o "$out/pairs_rmm" \
    "$rmm/librmm/lib64/librmm.so" "$rmm/rapids_logger/lib64/librapids_logger.so"
  cp "$rmm/librmm/lib64/librmm.so" "$rmm/rapids_logger/lib64/librapids_logger.so" "$out/"
  cp "$rmm/librmm/VERSION" "$out/rmm_version.txt"
else
  rm -f "$out/pairs_rmm"
  echo "pairs_rmm is left out: no $rmm/librmm (the head of this script says what it takes)"
fi

mpi=${MPI_ROOT:-.whl/mpi}
rm -rf "$out/mpi"
if [ -e "$mpi/include/mpi.h" ]; then
  mkdir -p "$out/mpi"
  cp -r "$mpi/." "$out/mpi/"
  rm -r "$out/mpi/include"
  build mpi_exchange "$nvcc" "${flags[@]}" -cudart none -I"$mpi/include" "$here/programs/mpi_exchange.cpp" \
    -o "$out/mpi_exchange" -L"$toolkit/lib64/stubs" -lcuda -L"$out/mpi/lib" -l:libmpi.so.40 \
    -Xlinker --allow-shlib-undefined
  build mpi_alone "$nvcc" "${flags[@]}" -cudart none -DALONE "$here/programs/mpi_exchange.cpp" \
    -o "$out/mpi_alone" -L"$toolkit/lib64/stubs" -lcuda
else
  echo "mpi_exchange is left out: no $mpi/include/mpi.h (the head of this script says what it takes)"
fi

if [ -e build/release/libcupool.so ]; then
  strip --strip-debug -o "$out/libcupool.so" build/release/libcupool.so
else
  echo "build/release/libcupool.so is not there yet: run cmake --build --preset release, then this again"
fi
if [ -e build/release/cupool ]; then strip -o "$out/cupool" build/release/cupool; fi
# The engine that tests make wrong on purpose (run_ordered.sh): never the shipped library.
for preset in release dev; do
  mutable=build/$preset/tests/libcupool_mutable.so
  if [ -e "$mutable" ]; then
    strip --strip-debug -o "$out/libcupool_mutable.so" "$mutable"
    break
  fi
done
[ -e "$out/libcupool_mutable.so" ] || echo "libcupool_mutable.so is not there yet: cmake --build --preset release"
du -sh "$out"
