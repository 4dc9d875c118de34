#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything that needs no GPU.
#   scripts/test.sh         formatting, dev tests, the library as it is released for this machine, its packages,
#                           address and thread sanitizer
#   scripts/test.sh quick   formatting and the dev tests
#   scripts/test.sh full    all tests under every preset, undefined behaviour too, with the released files of
#                           both architectures and Debian's launchers (Slurm, Open MPI, MPICH), and clang-tidy
#   scripts/test.sh portable  the released files alone: their bounds, the tests of library and command, packages
set -uo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$0")/setup.sh"
mode=${1:-default}
case $mode in default | quick | full | portable) ;; *) sed -n '3,10p' "$0"; exit 2 ;; esac

began=$SECONDS
failed=()

# stage NAME COMMAND...: runs a stage. A failure is reported at the end; later stages still run.
stage() {
  local name=$1 start=$SECONDS
  shift
  step "$name"
  if "$@"; then
    echo "-- $name: passed in $((SECONDS - start)) s"
  else
    echo "-- $name: FAILED after $((SECONDS - start)) s"
    failed+=("$name")
  fi
}

sources() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do
  [ -e "$f" ] && echo "$f"
done; }

# One version everywhere: other versions lay out a few constructs differently.
find_format() {
  format_tool=$(command -v clang-format-14 || command -v clang-format) &&
    "$format_tool" --version | grep -q 'version 14\.'
}

check_format() { sources '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -r "$format_tool" --dry-run -Werror; }

check_scripts() {
  local script status=0
  for script in $(sources 'scripts/check_*.py'); do
    echo "$script"
    python3 "$script" || status=1
  done
  return $status
}

# run_tests PRESET LOG [CTEST ARGUMENT...]: of a failed run, prints only the failures; the log has the
# rest. Runs twice as many tests as compilers, since tests mostly wait.
run_tests() {
  local preset=$1 log=$2 status
  shift 2
  # CMake before 3.20 has neither presets nor --test-dir.
  (cd "build/$preset" && ctest --output-on-failure -j $((2 * job_count)) --timeout 300 --no-tests=error "$@") 2>&1 |
    tee "$log" | show_count "testing the $preset preset"
  status=${PIPESTATUS[0]}
  # A pattern that CMake cannot compile selects everything.
  if grep '^RegularExpression' "$log"; then status=1; fi
  if [ "$status" -ne 0 ]; then
    grep -vE '^ +Start +[0-9]+:| Passed +[0-9.]+ sec$' "$log" | head -n 300
    echo "the whole log: $log"
  fi
  grep -E 'tests passed|^Total Test time' "$log"
  return "$status"
}

# build_and_test PRESET [--targets TARGET... --] [CTEST ARGUMENT...]
build_and_test() {
  local preset=$1 targets=()
  shift
  if [ "${1:-}" = --targets ]; then
    shift
    while [ "$1" != -- ]; do targets+=("$1") && shift; done
    shift
  fi
  build_preset "$preset" ${targets[@]+"${targets[@]}"} || return 1
  run_tests "$preset" "build/$preset/ctest.log" "$@"
}

# sanitized PRESET PATTERN [ONLY]: runs the preset's unit tests, without those of the simulated device and
# of the scripts, and those that only read headers. Then runs the dev preset's preload tests with this preset's library and programs, except
# tests whose names the pattern matches, and, if ONLY is given, those alone that match it.
sanitized() {
  local preset=$1 pattern=$2 only=${3:-.} status=0
  build_and_test "$preset" --targets tests/unit/all tested_programs -- \
    -L unit -E '^(sim|scripts|gpu_runners|Header)' || status=1
  PRELOAD_TEST_BUILD=$root/build/$preset run_tests dev "build/$preset/ctest_preload.log" \
    -L preload -E "$pattern" -R "$only" || status=1
  return $status
}

# The optimised library, with the programs of the dev tests. The target is the library's file name,
# since `cupool` is the command.
test_release_library() {
  build_preset release libcupool.so || return 1
  PRELOAD_TEST_LIBRARY=$root/build/release/libcupool.so \
    run_tests dev build/release/ctest.log -L preload
}

# The released library of this machine's architecture, with the programs of the dev tests; with `cli` the
# released command too, but for the tests that look at the build folder.
test_released_files() {
  local files=$root/build/portable/$(uname -m) labels=preload${1:+|$1}
  [ "$labels" = preload ] || build_preset dev || return 1
  PRELOAD_TEST_LIBRARY=$files/lib/libcupool.so CLI_TEST_COMMAND=$files/bin/cupool \
    run_tests dev build/portable/ctest.log -L "$labels" -E '^Install\.Works'
}

# Made of those files, installed, and run on the simulated device. (Debian has venv in a package of its own.)
test_packages() {
  python3 -c 'import ensurepip' 2>/dev/null || setup_packages python3-venv=no-file || return 1
  build_preset dev tests/sim/all libcupool.so probe_runtime_static || return 1
  scripts/package.sh packages "$(uname -m)" &&
    python3 tests/portable/packages_test.py --packages build/packages --driver build/dev/tests/sim/lib \
      --program build/dev/tests/preload/probes/probe_runtime_static
}

# Without unity builds, so that each file has its own compile command.
tidy() {
  configure_preset dev -B build/tidy -D CMAKE_UNITY_BUILD=OFF >/dev/null &&
    cmake --build build/tidy --target cupool_commit >/dev/null || return 1
  sources 'src/*.cpp' | xargs -r -n 1 -P "$job_count" clang-tidy -p build/tidy --quiet 2>/dev/null
}

# What the stages of this mode need beyond the common packages.
extra=()
fetched=()
find_format || extra+=(clang-format-14=clang-format-14)
launchers=(clang-tidy=clang-tidy slurm-wlm=/usr/sbin/slurmctld munge=/usr/sbin/munged
  openmpi-bin=mpirun.openmpi libopenmpi-dev="/usr/lib/$(uname -m)-linux-gnu/openmpi/include/mpi.h"
  mpich=mpiexec.hydra libmpich-dev="/usr/include/$(uname -m)-linux-gnu/mpich/mpi.h")
[ "$mode" != full ] || extra+=("${launchers[@]}")
if [ "$mode" != quick ]; then
  python3 -c 'import ensurepip' 2>/dev/null || extra+=(python3-venv=no-file)
  extra+=(rpm=rpmbuild)
  [ -n "${CUPOOL_ZIG:-}" ] || [ -e build/zig ] ||
    fetched+=("the compiler of the released files, ziglang from PyPI, into build/zig")
fi
announce ${extra[@]+"${extra[@]}"} -- ${fetched[@]+"${fetched[@]}"}
setup_packages || exit 1
find_format || setup_packages clang-format-14=clang-format-14 2>/dev/null
setup_cli11 || exit 1
setup_toolkit || exit 1
if [ "$mode" = full ]; then
  # Launchers that the dev tests start where they are installed.
  setup_packages "${launchers[@]}" || exit 1
fi
echo "mode $mode, $job_count jobs"

if [ "$mode" != portable ]; then
  if find_format; then stage "format" check_format; else step "format: not checked, since there is no clang-format 14"; fi
  stage "source checks" check_scripts
  # Preload tests run with the optimised library and the sanitized ones instead.
  [ "$mode" = default ] && dev=(-LE preload) || dev=()
  stage "dev tests" build_and_test dev ${dev[@]+"${dev[@]}"}
fi
case $mode in
  default)
    if scripts/package.sh compiler; then
      stage "portable build" scripts/package.sh build "$(uname -m)"
      stage "released library" test_released_files
      stage "packages" test_packages
    else
      echo "no portable build without its compiler: the release preset is tested in its place" >&2
      stage "release tests" test_release_library
    fi
    # Sanitizers find most faults in the engine, the routes, the threads and the ends of processes.
    left_out='FaultIn|/Bad\.|/Setting\.|RealtimeProfile'
    # Other projects' programs cannot load a sanitized library. The schema test is not part of
    # preload_tests, so each build runs its own (below).
    left_out+='|Foreign|StartUp|Elf\.|Audit|AnotherPreload|SecondCopy|Secure\.|Multiprocessing'
    left_out+='|report_schema'
    # Slow under a sanitizer; these variants run the same code with another setting.
    # (CMake's expressions have nine groups at most, of both lists together.)
    left_out+='|(ContextsComeAndGo|CopiesBetweenDevices|Captures|StepAside).*'
    left_out+='/(Sync|Malloc|Pool|DefaultPool|SmallDevice|WithoutPools|LittlePending)$'
    left_out+='|/Series_probe_[fr]|/Start_probe_[fr]|driver_queries|OldDriver.*WithoutPools'
    left_out+='|RunningAhead|ThatFindsNoRoom|LaneCalls|/Driver12_[24]$|/NoPools$|/PoolCreation|/Attributes|/Trim'
    # These mostly wait; the interpreter's own memory leaks.
    left_out+='|Sites\.OfPython|TheProgramsOnce|TenThousandGrow|ExporterThatIsStopped|Decay\.IsOn|Decay\.WhatIs'
    left_out+='|OddSystem|Observe\.|MayComeUntilTheVeryEnd|CallWithItsTime|IsBoundedAndSays'
    # The thread sanitizer runs what has threads, or other processes to answer. Of the ways of leaving a
    # lane and of ordering, those begin with c, j, m or t. It slows processes that wait for each other beyond
    # the times that the neighbours' tests allow.
    threads='Thread|threads_|Ipc|Lane|Neighbours|StreamOrder|Messages|Background|DeviceLimit|Trace|Decay|PoolStart'
    threads+='|Prealloc|LeavingBusy|Fork|HostSide|Series|Crossing|ReportOnSignal|Multiplying|Unloading|Ending|Closing'
    alone='IpcFault|Trace\.Comes|Trace\.IsBounded|Trace\.OnAFull|Trace\.ForChrome|Decay\.W|Decay\.Plain|Decay\.TheD'
    alone+='|Ways/.*/[abd-iklnp-su-z]|Neighbours\.Are'
    alone+='|CancelledOnes|Ipc\.LeaseEndsWithT|LateMpi|StreamOrder.*/c|probe_runtime_shared|Sites\.'
    stage "address sanitizer" sanitized asan "$left_out"
    stage "report schema" run_tests asan build/asan/ctest_schema.log -R '^report_schema$'
    stage "thread sanitizer" sanitized tsan "$left_out|$alone" "$threads"
    ;;
  full)
    stage "release tests" test_release_library
    stage "portable builds" scripts/package.sh build
    stage "released files" test_released_files cli
    stage "packages" test_packages
    stage "address sanitizer" build_and_test asan
    stage "thread sanitizer" build_and_test tsan
    stage "undefined-behaviour sanitizer" build_and_test ubsan
    stage "clang-tidy" tidy
    ;;
  portable)
    stage "portable builds" scripts/package.sh build
    stage "released files" test_released_files cli
    stage "packages" test_packages
    ;;
esac

step "done in $((SECONDS - began)) s"
if [ ${#failed[@]} -ne 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all passed ($mode)"
