# SPDX-License-Identifier: Apache-2.0
"""What the sections of pairs.py share: the allocators that are compared, runs of them in turn, the
medians and ratios, and the goals. A shape is what one measurement is made of: threads, sizes, streams.
"""
import os
import re
import statistics
import time

from common.machine import REPOSITORY, built
from common.session import VARIANTS, spread

REALTIME = os.path.join(REPOSITORY, "config", "realtime.env")
# The allocator of each: the program that has it, and its name there.
ALLOCATORS = {
    "legacy": ("pairs", "runtime"),
    "cupool": ("pairs", "runtime"),
    "realtime": ("pairs", "runtime"),
    "beside": ("pairs", "runtime"),
    "async": ("pairs", "async"),
    "cub": ("pairs", "cub"),
    "rmm-pool": ("pairs_rmm", "rmm-pool"),
    "rmm-arena": ("pairs_rmm", "rmm-arena"),
    "none": ("pairs", "none"),
}
PEERS = ("legacy", "async", "cub", "rmm-pool", "rmm-arena")
# What Session knows of environments: cupool as installed, and its profile; the others without it.
VARIANTS.update({name: None for name in ALLOCATORS if name not in VARIANTS})
VARIANTS.update({"cupool": {}, "realtime": {"CUPOOL_PROFILE": REALTIME}})


class OutOfTime(Exception):
    """The budget is spent: what was not run must show, so the section fails."""


def check_time(session):
    if time.monotonic() > session.deadline:
        raise OutOfTime(f"the budget of {session.options.budget:.0f} s was spent before the end")


def in_turn(session, labels, rounds=None):
    """(round, label), each round begun by another, so that no one is always first or last."""
    for i in range(rounds or session.options.rounds):
        shift = i % len(labels)
        for label in labels[shift:] + labels[:shift]:
            check_time(session)
            yield i, label


def present(names):
    """Without those whose program was not built; the section says that they are missing."""
    return [name for name in names if ALLOCATORS[name][0] == "pairs" or os.path.exists(built("pairs_rmm"))]


# What is measured is the state after the pools' start; start_up has that.
STEADY = {"CUPOOL_POOL_START": "first"}


def measure(session, shape, names, rounds=None, cudart="shared"):
    """Runs of a shape by allocator; only those that went well."""
    label = "pairs " + " ".join(f"{k}={v}" for k, v in {"cudart": cudart, **shape}.items())
    limit = 20 + 6e-3 * float(shape.get("limit_ms", session.options.limit_ms))
    runs = {name: [] for name in names}
    for i, name in in_turn(session, list(runs), rounds):
        program, allocator = ALLOCATORS[name]
        path = built(f"pairs_{cudart}" if program == "pairs" else program)
        arguments = {"limit_ms": session.options.limit_ms, **shape, "allocator": allocator}
        command = [path, *[f"{k}={v}" for k, v in arguments.items()]]
        run = session.run(label, command, name, limit, index=i, setup=STEADY)
        wrong = sum(run.values.get(k, 0) for k in ("errors", "free_errors", "overlaps"))
        if run.code == 0 and wrong:
            session.require(f"no error and no overlap, {name}, {label}", False, f"{wrong:.0f}", "0")
        elif run.code == 0 and right_counts(session, run, name, label):
            runs[name].append(run)
    return runs


def right_counts(session, run, name, label):
    """Whether the report counts what the program counted: a pair that is not counted is not one that
    cupool served. Runs without cupool have no report, some programs print no counts."""
    if VARIANTS[name] is None or "mallocs" not in run.values:
        return True
    expected = (run.values["mallocs"], run.values["frees"])
    counted = (run.counter("malloc_calls_total"), run.counter("free_calls_total"))
    if counted != expected:
        session.require(f"the report counts every call, {name}, {label}", False, f"{counted}", f"{expected}")
    return counted == expected


def values(runs, metric):
    return [run.values[metric] for run in runs if metric in run.values]


def middle(runs, metric):
    found = values(runs, metric)
    return statistics.median(found) if found else None


def goal(session, what, runs, metric, most, unit="ns"):
    """Required: the median of the runs is at most this."""
    found = values(runs, metric)
    holds = bool(found) and statistics.median(found) <= most
    session.require(what, holds, spread(found, f" {unit}"), f"<= {most:g} {unit}")


def not_slower(session, what, runs, names):
    """Required: a pair costs cupool no more than the best of the others."""
    costs = {name: middle(runs[name], "ns_per_pair") for name in names if runs.get(name)}
    mine = middle(runs.get("cupool", []), "ns_per_pair")
    best = min(((cost, name) for name, cost in costs.items() if cost is not None), default=None)
    if best is None:
        session.require(f"no slower than the best peer, {what}", False, f"{mine} ns", "a peer that ran")
        return
    session.require(f"no slower than the best peer, {what}", mine is not None and mine <= best[0],
                    "no run" if mine is None else f"{mine:.1f} ns", f"<= {best[0]:.1f} ns ({best[1]})")


def quartiles(found):
    """Lower quartile, median, upper quartile; of one value, it three times."""
    if len(found) < 2:
        return (found * 3)[:3]
    return statistics.quantiles(found, n=4, method="inclusive")


def ratio_goal(session, what, mine, others, most):
    """Required: the median of the ratios, run by run, is at most this within its spread, which is to
    say that the lower quartile is. Returns the ratios as text."""
    ratios = [a / b for a, b in zip(mine, others)]
    if not ratios:
        session.require(what, False, "no run", f"<= {most:.2f}")
        return "-"
    low, median, high = quartiles(ratios)
    text = f"{median:.3f} (quartiles {low:.3f}–{high:.3f}, {len(ratios)} runs)"
    complete = len(mine) == len(others) == session.options.rounds
    session.require(what, complete and low <= most, text, f"<= {most:.2f} within its spread")
    return text


LATENCY_HEADER = [f"{call} {share}" for call in ("malloc", "free")
                  for share in ("p50", "p99", "p99.9", "max")]


def latencies(runs):
    """Medians over the runs, in ns, in the order of LATENCY_HEADER."""
    keys = [f"{call}_{share}_ns" for call in ("malloc", "free") for share in ("p50", "p99", "p999", "max")]
    found = [middle(runs, key) for key in keys]
    return ["-" if value is None else f"{value:.0f}" for value in found]


def pair_rows(title, runs):
    """A row for each allocator: cost of a pair, throughput, and the single calls."""
    rows = []
    for name, found in runs.items():
        rate = middle(found, "pairs_per_second")
        rows.append([title, name, spread(values(found, "ns_per_pair")),
                     "-" if rate is None else f"{rate / 1e6:.3g}", *latencies(found),
                     spread(values(found, "timer_p50_ns"))])
    return rows


PAIR_HEADER = ["shape", "allocator", "ns per pair: median (min–max)", "million pairs/s together",
               *[f"{column}, ns" for column in LATENCY_HEADER], "clock itself, ns"]


def plain_values(text):
    """The KEY=VALUE lines of the demo, which prints for people."""
    return {k: float(v) for k, v in re.findall(r"^(\w+)=([0-9.]+)$", text, re.MULTILINE)}
