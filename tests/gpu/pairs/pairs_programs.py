# SPDX-License-Identifier: Apache-2.0
"""The sections of pairs.py that run whole programs: PyTorch and CuPy against their own allocators,
Thrust against one written by hand, the demo against legacy, and the shortest program of all.
"""
import os
import re
import statistics
import subprocess
import time

from common.alternating import alternating, torch_runs
from common.machine import built, python
from common.session import VARIANTS, spread
from pairs_session import check_time, in_turn, plain_values, quartiles, ratio_goal

STARTS = 40
STARTUP_MS = 3.0


def table_rows(session, name, unit, times, base):
    rows = []
    for label, found in times.items():
        ratio = "-"
        if found and times[base]:
            ratio = f"{statistics.median(found) / statistics.median(times[base]):.3f}"
        rows.append([name, label, len(found), spread(found, f" {unit}"), ratio])
    return rows


def same_results(session, name, results):
    kinds = len(set().union(*results.values()))
    session.require(f"{name}: the same results", kinds == 1, f"{kinds} kinds", "1 kind")


def frameworks(session):
    rows = []
    times, results = torch_runs(session)
    same_results(session, "torch", results)
    rows += table_rows(session, "torch, cache off", "ms/step", times, "own allocator")
    ratio_goal(session, "PyTorch without its cache to its own allocator", times["cupool"],
               times["own allocator"], 1.00)
    check_time(session)
    times, results = alternating(
        session, "cupy", {"own pool": ("legacy", python("programs/cupy_loop.py", "200", "pool"), None),
                          "cupool": ("cupool", python("programs/cupy_loop.py", "200", "plain"), None)},
        "us_per_step", 60)
    same_results(session, "cupy", results)
    rows += table_rows(session, "cupy, pool off", "us/step", times, "own pool")
    ratio_goal(session, "CuPy without its pool to its own pool", times["cupool"], times["own pool"], 1.00)
    check_time(session)
    return rows


def thrust(session):
    loop = [built("thrust_loop"), "iterations=1500"]
    caching = [*loop, "allocator=caching"]  # the last argument
    times, results = alternating(
        session, "thrust", {"legacy": ("legacy", loop, None), "cupool": ("cupool", loop, None),
                            "hand-written cache": ("legacy", caching, None)}, "us_per_iteration", 30)
    same_results(session, "thrust", results)
    ratio_goal(session, "Thrust to the same with a hand-written caching allocator", times["cupool"],
               times["hand-written cache"], 1.00)
    return table_rows(session, "thrust", "us/iteration", times, "hand-written cache")


def demo(session):
    """The inference loop: the time of a request, cupool against legacy."""
    names = ["legacy", "cupool", "realtime"]
    found = {name: {"median_us": [], "p99_us": []} for name in names}
    sums = set()
    for i, name in in_turn(session, names):
        run = session.run("demo", [built("inference_loop"), "threads=4", "requests=1500"], name, 40,
                          index=i)
        printed = plain_values(run.out)
        if run.code != 0:
            continue
        sums.add((printed["checksum"], printed["wrong_bytes"]))
        for metric, numbers in found[name].items():
            numbers.append(printed[metric])
            session.rows.append([session.section, "demo", name, i, metric, printed[metric]])
    session.require("demo: the same results", len(sums) == 1 and next(iter(sums))[1] == 0,
                    f"{len(sums)} kinds", "1 kind, no wrong byte")
    legacy, mine = found["legacy"]["p99_us"], found["cupool"]["p99_us"]
    ratio = statistics.median(mine) / statistics.median(legacy) if mine and legacy else None
    session.require("demo: p99 of a request to legacy's", ratio is not None and ratio <= 0.5,
                    "no run" if ratio is None else f"{ratio:.3f}", "<= 0.50")
    rows = []
    for metric in ("median_us", "p99_us"):
        times = {name: numbers[metric] for name, numbers in found.items()}
        rows += table_rows(session, f"demo, {metric.removesuffix('_us')} of a request", "us", times,
                           "legacy")
    return rows


def python_pairs(session):
    """PyTorch's and CuPy's own allocators as peers in a pair; the interpreter is most of these."""
    rows = []
    for library in ("torch", "cupy"):
        times, _ = alternating(
            session, f"{library} pair",
            {"own allocator": ("legacy", python("pairs/pairs_python.py", library, "own"), None),
             "cupool": ("cupool", python("pairs/pairs_python.py", library, "plain"), None)},
            "ns_per_pair", 60)
        rows += table_rows(session, f"{library}: one allocation and its release from Python, 64 KiB", "ns",
                           times, "own allocator")
        check_time(session)
    return rows


def programs(session):
    rows = []
    for part in (frameworks, thrust, demo, python_pairs):
        try:
            check_time(session)
            rows += part(session)
        except Exception as error:  # a framework that is not installed must not hide the others
            session.require(f"{part.__name__} ran", False, f"{type(error).__name__}: {error}", "to its end")
    session.table("Whole programs, alternating runs",
                  ["program", "variant", "runs", "median (min–max)", "to the peer's"], rows)


# The driver's own start, in the first cudaMalloc, varies by more than all else takes.
PHASES = ("whole process", "before main", "main to the first block", "after it, in main", "after main")


def process_ms(arguments, environment):
    """Times of a process, in the order of PHASES, in ms. A wait without a time limit: subprocess polls
    coarsely with one."""
    begin = time.monotonic_ns()
    done = subprocess.run([built("start_up"), *arguments], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    end = time.monotonic_ns()
    if done.returncode != 0:
        raise RuntimeError(f"start_up {arguments}: exit {done.returncode}")
    clock = re.search(r"main_ns=(\d+) first_ns=(\d+) end_ns=(\d+)", done.stdout)
    moments = [begin, *map(int, clock.groups()), end]
    return [(b - a) / 1e6 for a, b in [(begin, end), *zip(moments, moments[1:])]]


def added_to(session, shape, arguments):
    """Time that cupool adds to a short program and its parts: differences of neighbouring runs."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CUPOOL_") and k != "LD_PRELOAD"}
    preloaded = {**clean, **VARIANTS["cupool"], "LD_PRELOAD": session.options.library,
                 **dict(kv.split("=", 1) for kv in session.options.env)}
    environments = {"legacy": clean, "cupool": preloaded}
    found = {name: [] for name in environments}
    for name in environments:  # files and the driver's cache are read once
        process_ms(arguments, environments[name])
    for i, name in in_turn(session, list(environments), STARTS):
        found[name].append(process_ms(arguments, environments[name]))
        for phase, milliseconds in zip(PHASES, found[name][-1]):
            metric = "process_ms" if phase == PHASES[0] else f"{phase}, ms".replace(",", "")
            session.rows.append([session.section, f"start_up, {shape}", name, i, metric, f"{milliseconds:.4f}"])
    rows = []
    for phase, legacy, mine in zip(PHASES, zip(*found["legacy"]), zip(*found["cupool"])):
        low, median, high = quartiles([b - a for a, b in zip(legacy, mine)])
        rows.append([shape, phase, spread(legacy), spread(mine), f"{median:.2f} ({low:.2f}–{high:.2f})"])
        if phase == PHASES[0]:
            session.require(f"start-up: time added to {shape}", median <= STARTUP_MS,
                            f"{median:.2f} ms (quartiles {low:.2f}–{high:.2f}, {STARTS} runs each)",
                            f"<= {STARTUP_MS:g} ms")
    return rows, found


def all_together(found):
    """The rows of added_to(), of the differences of all programs."""
    rows = []
    for index, phase in enumerate(PHASES):
        low, median, high = quartiles([mine[index] - legacy[index] for each in found
                                       for legacy, mine in zip(each["legacy"], each["cupool"])])
        rows.append(["all together", phase, "-", "-", f"{median:.2f} ({low:.2f}–{high:.2f})"])
    return rows


def startup(session):
    shapes = {"one cudaMalloc": [], "8 blocks, once": ["blocks=8"],
              "8 blocks, 30 times": ["blocks=8", "rounds=30"]}
    rows, found = [], []
    for shape, arguments in shapes.items():
        of_shape, times = added_to(session, shape, arguments)
        rows += of_shape
        found.append(times)
    session.table(f"Short programs, whole process, {STARTS} alternating runs (ms)",
                  ["program", "part", "without", "with cupool", "added: median (quartiles)"],
                  rows + all_together(found))
