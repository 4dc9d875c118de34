#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of a pair of cudaMalloc and cudaFree on a real GPU, against legacy and other allocators.

Runs everything side by side, in alternating rounds: one thread by size, many threads, GPU busy, what
libcudart adds, single calls with the realtime profile, idle memory, whole programs, start-up. Writes environment.txt,
raw.csv, table.md and log.txt into the output folder; exits non-zero if a figure that is asked for is
missed. Usually started by run_pairs.sh. scripts/plots.py draws raw.csv.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from common.machine import (argument_parser, built, first_line, parse_arguments,  # noqa: E402
                            write_environment)
from common.session import VARIANTS, Session, spread  # noqa: E402
from pairs_beside import beside  # noqa: E402
from pairs_idle import idle  # noqa: E402
from pairs_programs import programs, startup  # noqa: E402
from pairs_session import (PAIR_HEADER, PEERS, goal, measure, middle, not_slower,  # noqa: E402
                           pair_rows, present, values)

KIB = 1 << 10
MIB = 1 << 20
# A look of the thread that keeps streams busy finds one that ran dry; more would be an idle GPU.
DRY_SHARE = 0.02


def counted(number, thing):
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size_text(size):
    if isinstance(size, str):
        return size
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def of_size(size):
    """mixed sizes keep 16 blocks live, a single size one: the pair that the table of facts has."""
    return {"sizes": "mixed", "blocks": 16} if size == "mixed" else {"size": size}


def single(session):
    rows = []
    for size in (65536, 512, 4096, "mixed", MIB, 4 * MIB, 16 * MIB):
        few = None if size == 65536 else min(3, session.options.rounds)
        names = present(["none", "cupool", *PEERS])
        runs = measure(session, {"threads": 1, **of_size(size), "streams": 0}, names, few)
        rows += pair_rows(f"1 thread, {size_text(size)}, idle", runs)
        not_slower(session, f"1 thread, {size_text(size)}, idle", runs, PEERS)
        if size == 65536:
            goal(session, "1 thread, 64 KiB, GPU idle, shared libcudart", runs["cupool"],
                 "ns_per_pair", 50)
    session.table("One thread, GPU idle", PAIR_HEADER, rows)


def threads(session):
    rows = []
    goals = {512: 100, 65536: 100, "mixed": 100, 4 * MIB: 1000}
    for size, most in goals.items():
        names = present(["none", "cupool", *PEERS])
        runs = measure(session, {"threads": 16, **of_size(size), "streams": 0}, names)
        what = f"16 threads, {size_text(size)}, idle"
        rows += pair_rows(what, runs)
        goal(session, what, runs["cupool"], "ns_per_pair", most)
        not_slower(session, what, runs, PEERS)
        if most == 100:
            rate = middle(runs["cupool"], "pairs_per_second") or 0.0
            session.require(f"{what}: pairs together", rate >= 150e6, f"{rate / 1e6:.1f} million/s",
                            ">= 150 million/s")
    for count in (1, 2, 4, 8):  # with 16 above: the curve of a picture
        names = present(["cupool", *PEERS])
        runs = measure(session, {"threads": count, **of_size("mixed"), "streams": 0}, names,
                       min(2, session.options.rounds))
        rows += pair_rows(f"{counted(count, 'thread')}, mixed, idle", runs)
    for count in (2, 16):
        names = present(["none", "cupool", *PEERS])
        shape = {"mode": "producer", "threads": count, "size": 65536, "streams": 0}
        runs = measure(session, shape, names)
        what = f"{count // 2} x producer and consumer, 64 KiB, idle"
        rows += pair_rows(what, runs)
        goal(session, what, runs["cupool"], "ns_per_pair", 250)
    session.table("Threads (16, unless said otherwise), GPU idle", PAIR_HEADER, rows)


def lane(session):
    rows = []
    for count, most in ((1, 30), (16, 50)):
        names = present(["cupool", *(["beside"] if session.options.beside else []), *PEERS])
        runs = measure(session, {"threads": count, "size": 65536, "streams": 0, "lane": 1}, names)
        what = f"{counted(count, 'thread')}, 64 KiB, in one lane"
        rows += pair_rows(what, runs)
        goal(session, what, runs["cupool"], "ns_per_pair", most)
    session.table("In one lane", PAIR_HEADER, rows)


def busy(session):
    rows, states = [], []
    goals = {(1, 1): 200, (1, 4): 300, (1, 32): 600, (16, 4): None}
    for (count, streams), most in goals.items():
        names = present(["cupool", *PEERS])
        rounds = None if most else min(2, session.options.rounds)
        shape = {"threads": count, "size": 65536, "streams": streams}
        runs = measure(session, shape, names, rounds)
        what = f"{counted(count, 'thread')}, 64 KiB, {counted(streams, 'busy stream')}"
        rows += pair_rows(what, runs)
        for name, found in runs.items():
            reported = any(run.report for run in found)
            waits = sum(run.counter("free_waits_total") for run in found)
            retired = max((run.peak("retired_bytes") for run in found), default=0) / MIB
            states.append([what, name, spread(values(found, "busy_kernels")),
                           spread(values(found, "busy_dry_share")),
                           waits if reported else "-", f"{retired:.0f}" if reported else "-"])
        if not most:
            continue
        goal(session, what, runs["cupool"], "ns_per_pair", most)
        goal(session, f"the GPU was busy, {what}", runs["cupool"], "busy_dry_share", DRY_SHARE, "dry")
        reported = all(run.report for run in runs["cupool"]) and bool(runs["cupool"])
        waits = sum(run.counter("free_waits_total") for run in runs["cupool"])
        session.require(f"no wait on the host, {what}", reported and waits == 0,
                        waits if reported else "no report", "0 waits")
    session.table("GPU kept busy", PAIR_HEADER, rows)
    session.table("What kept it busy", ["shape", "allocator", "kernels", "share of looks at a dry stream",
                                        "frees that waited", "peak retired MiB"], states)


def route(session):
    """Static libcudart: the pair less libcudart's own part, which is what the same pair through
    cuMemAlloc does not cost."""
    shape = {"mode": "libcudart", "threads": 1, "size": 65536, "limit_ms": 1000}
    runs = measure(session, shape, ["cupool"], cudart="static")["cupool"]
    goal(session, "1 thread, 64 KiB, GPU idle, static libcudart, less libcudart's part", runs,
         "driver_ns", 50)
    session.table("Static libcudart: slices of cudaMalloc and of cuMemAlloc in turn, in one process (ns)",
                  ["allocator", "pair through cudaMalloc", "pair through cuMemAlloc", "libcudart adds",
                   "its lower quartile", "its upper quartile"],
                  [["cupool", *[spread(values(runs, f"{key}_ns")) for key in
                                ("runtime", "driver", "libcudart", "libcudart_q1", "libcudart_q3")]]])
    runs = measure(session, {"threads": 1, "size": 65536, "streams": 0}, ["cupool", "legacy"],
                   cudart="static")
    session.table("One thread, GPU idle, static libcudart", PAIR_HEADER,
                  pair_rows("1 thread, 64 KiB, idle", runs))


def calls(session):
    """Single calls after warm-up: the realtime profile's promise, and the curve of a picture."""
    rows = []
    for count, streams in ((1, 0), (1, 4), (4, 0)):
        names = present(["realtime", "cupool", *PEERS])
        shape = {"threads": count, **of_size("mixed"), "streams": streams, "curve": 1}
        runs = measure(session, shape, names)
        what = f"{counted(count, 'thread')}, mixed, {counted(streams, 'busy stream')}"
        rows += pair_rows(what, runs)
        for call in ("malloc", "free"):
            goal(session, f"p99.9 of {call} with the realtime profile, {what}",
                 runs.get("realtime", []), f"{call}_p999_ns", 2000)
    session.table("Single calls", PAIR_HEADER, rows)


SECTIONS = {f.__name__: f for f in (single, threads, lane, busy, route, calls, idle, programs, startup)}
# Only when asked for by name: it needs a second library.
ASKED_FOR = {"beside": beside}


def add_environment(options):
    """What matters here beyond machine.py's lines: the processor, its clock, the version of RMM."""
    lines = ["processor: " + first_line(["sh", "-c", "grep -m1 'model name' /proc/cpuinfo"]),
             "clock source: " + first_line(
                 ["cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"]),
             "librmm: " + (first_line(["cat", built("rmm_version.txt")])
                           if os.path.exists(built("rmm_version.txt")) else "not built")]
    with open(os.path.join(options.out, "environment.txt"), "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


def main():
    parser = argument_parser(__doc__, budget=1600)
    parser.add_argument("sections", nargs="*",
                        help=f"of {' '.join([*SECTIONS, *ASKED_FOR])} (default: all but the last)")
    parser.add_argument("--rounds", type=int, default=5, help="alternating runs of each (default 5)")
    parser.add_argument("--limit-ms", type=int, default=150, help="of each pass of pairs (default 150)")
    parser.add_argument("--beside", metavar="LIBRARY", help="the other library of section beside")
    options = parse_arguments(parser, {**SECTIONS, **ASKED_FOR})
    if options.beside:
        VARIANTS["beside"] = {"LD_PRELOAD": os.path.abspath(options.beside)}
    missing = [name for name in ("pairs_shared", "pairs_static", "start_up", "thrust_loop",
                                 "inference_loop") if not os.path.exists(built(name))]
    if missing:
        parser.error(f"not in .gpu: {' '.join(missing)}: tests/gpu/build.sh makes them")
    write_environment(options)
    add_environment(options)
    session = Session(options)
    if not present(["rmm-pool"]):
        session.require("RMM's resources are measured", False, "no .gpu/pairs_rmm", "built")
    chosen = {**SECTIONS, **ASKED_FOR} if options.sections else SECTIONS
    return 0 if session.run_sections(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
