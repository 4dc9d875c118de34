#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/measurements from the raw results kept there.

plots.py [FOLDER...]: each folder has a raw.csv of tests/gpu/pairs/pairs.py. Without arguments, all such
folders of docs/measurements. Writes beside raw.csv the pictures for which it has rows: pair_by_size,
throughput_by_threads, whole_programs and latencies (svg; --format png).
Only drawing needs matplotlib.
"""
import argparse
import csv
import glob
import os
import statistics
import sys
from collections import defaultdict

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
# Name in raw.csv: name in the pictures, colour. cupool has the most visible colour; "none" is not drawn.
ALLOCATORS = {
    "cupool": ("cupool", "#d55e00"),
    "realtime": ("cupool, realtime profile", "#cc79a7"),
    "legacy": ("cudaMalloc", "#000000"),
    "async": ("cudaMallocAsync", "#0072b2"),
    "cub": ("CUB CachingDeviceAllocator", "#009e73"),
    "rmm-pool": ("RMM pool", "#e69f00"),
    "rmm-arena": ("RMM arena", "#56b4e9"),
}
TAILS = 16
# Program: (metric, the run that the others are divided by, title).
PROGRAMS = {
    "torch": ("ms_per_step", "own allocator", "PyTorch step\nto its own allocator"),
    "cupy": ("us_per_step", "own pool", "CuPy step\nto its own pool"),
    "thrust": ("us_per_iteration", "hand-written cache", "Thrust loop\nto a hand-written cache"),
    "demo": ("p99_us", "legacy", "inference loop, p99\nto cudaMalloc"),
}


# -- reading ------------------------------------------------------------------------------------
def read(path):
    """Rows of a raw.csv as dictionaries, with the shape of pair runs taken apart."""
    with open(path, newline="", encoding="utf-8") as file:
        return [with_shape(row) for row in csv.DictReader(file)]


def with_shape(row):
    kind, _, rest = row["program"].partition(" ")
    row["shape"] = dict(word.split("=", 1) for word in rest.split()) if kind == "pairs" else None
    return row


def is_of_pairs(rows):
    return any(row["shape"] for row in rows)


def pair_values(rows, section, metric, key, **wanted):
    """{allocator: {the shape's key: values of all rounds}} where the shape is as wanted; a wanted None
    means that the shape must not have the key."""
    found = defaultdict(lambda: defaultdict(list))
    for row in rows:
        shape = row["shape"]
        if not shape or row["section"] != section or row["metric"] != metric or key not in shape:
            continue
        if all(shape.get(name) == value for name, value in wanted.items()):
            found[row["variant"]][shape[key]].append(float(row["value"]))
    return {name: {k: list(v) for k, v in points.items()} for name, points in found.items()}


def curve(points):
    """x, median, and the distances to the lowest and the highest value, sorted by x."""
    xs = sorted(points, key=float)
    middle = [statistics.median(points[x]) for x in xs]
    below = [m - min(points[x]) for x, m in zip(xs, middle)]
    above = [max(points[x]) - m for x, m in zip(xs, middle)]
    return [float(x) for x in xs], middle, (below, above)


def by_size(rows):
    return pair_values(rows, "single", "ns_per_pair", "size", threads="1", streams="0", cudart="shared")


def by_threads(rows):
    return pair_values(rows, "threads", "pairs_per_second", "threads", sizes="mixed", streams="0",
                       mode=None)


def tails(rows, call):
    """{allocator: [(share of calls that are slower, ns)]}, medians over the rounds, as far as a run had
    samples for a share."""
    found = defaultdict(list)
    samples = pair_values(rows, "calls", f"{call}_samples", "threads", threads="1", streams="0")
    for halvings in range(1, TAILS + 1):
        values = pair_values(rows, "calls", f"{call}_tail{halvings}_ns", "threads", threads="1",
                             streams="0")
        for name, points in values.items():
            if samples.get(name) and min(samples[name]["1"]) < 2 ** halvings:
                continue
            found[name].append((0.5 ** halvings, statistics.median(points["1"])))
    return dict(found)


def program_ratios(rows):
    """{program: {variant: median divided by that of the base}}, of programs whose base ran."""
    found = defaultdict(lambda: defaultdict(list))
    for row in rows:
        program, _, label = row["program"].partition(", ")
        if row["section"] != "programs" or program not in PROGRAMS or row["metric"] != PROGRAMS[program][0]:
            continue
        found[program][label or row["variant"]].append(float(row["value"]))
    ratios = {}
    for program in PROGRAMS:
        base = found[program].get(PROGRAMS[program][1])
        if base:
            ratios[program] = {label: statistics.median(values) / statistics.median(base)
                               for label, values in found[program].items()}
    return ratios


# -- drawing ------------------------------------------------------------------------------------
def drawn(found):
    return [name for name in ALLOCATORS if name in found]


def style(name):
    label, colour = ALLOCATORS[name]
    return {"label": label, "color": colour, "linewidth": 2.4 if name == "cupool" else 1.3}


def finish(axes, title, x, y):
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(figure, axes):
    """Draws the legend below the plots: inside it would cover lines."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3, frameon=False,
                  fontsize=8)


def size_label(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def draw_by_size(pyplot, rows):
    found = by_size(rows)
    if not drawn(found):
        return None
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    ticks = set()
    for name in drawn(found):
        x, y, spread = curve(found[name])
        ticks.update(x)
        axes.errorbar(x, y, yerr=spread, marker="o", markersize=4, capsize=2, **style(name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(ticks), [size_label(tick) for tick in sorted(ticks)])
    finish(axes, "Pair of malloc and free, one thread, GPU idle", "size of the block", "ns per pair")
    legend(figure, axes)
    return figure


def draw_by_threads(pyplot, rows):
    found = by_threads(rows)
    if not drawn(found):
        return None
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    ticks = set()
    for name in drawn(found):
        x, y, (below, above) = curve(found[name])
        ticks.update(x)
        spread = [[value / 1e6 for value in side] for side in (below, above)]
        axes.errorbar(x, [value / 1e6 for value in y], yerr=spread, marker="o", markersize=4, capsize=2,
                      **style(name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    finish(axes, "All threads together, 256 B to 64 KiB, GPU idle", "threads", "million pairs a second")
    legend(figure, axes)
    return figure


def draw_programs(pyplot, rows):
    ratios = program_ratios(rows)
    if not ratios:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    bars = [(program, label, ratio) for program, labels in ratios.items()
            for label, ratio in labels.items() if label != PROGRAMS[program][1]]
    for place, (_, label, ratio) in enumerate(bars):
        known = ALLOCATORS["legacy" if label == "legacy" else "realtime" if label == "realtime" else "cupool"]
        axes.barh(place, ratio, color=known[1], height=0.7)
        axes.annotate(f"{ratio:.2f}", (ratio, place), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8)
    axes.axvline(1.0, color="#444444", linewidth=1, linestyle="--")
    names = [f"{ALLOCATORS[label][0] if label in ALLOCATORS else label}: {PROGRAMS[program][2]}"
             for program, label, _ in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.invert_yaxis()
    finish(axes, "Whole programs: time, shorter is better", "ratio of medians", "")
    return figure


def draw_latencies(pyplot, rows):
    found = {call: tails(rows, call) for call in ("malloc", "free")}
    if not any(drawn(one) for one in found.values()):
        return None
    figure, both = pyplot.subplots(1, 2, figsize=(9, 4.2), sharey=True)
    for axes, (call, one) in zip(both, found.items()):
        for name in drawn(one):
            axes.plot([ns for _, ns in one[name]], [share for share, _ in one[name]], **style(name))
        axes.set_xscale("log")
        axes.set_yscale("log")
        finish(axes, f"Single calls of {call}", "ns, the clock's own cost included",
               "share of calls that take longer" if call == "malloc" else "")
    legend(figure, both[0])
    return figure


PICTURES = {"pair_by_size": draw_by_size, "throughput_by_threads": draw_by_threads,
            "whole_programs": draw_programs, "latencies": draw_latencies}


def draw(folder, rows, kind):
    """Draws a folder's pictures; returns the names of the files."""
    import matplotlib
    matplotlib.use("Agg")
    # The same rows give the same file: no date, no random names inside.
    matplotlib.rcParams["svg.hashsalt"] = "cupool"
    # Text as text: its outlines would be most of the file.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot
    written = []
    for name, picture in PICTURES.items():
        figure = picture(pyplot, rows)
        if figure is None:
            continue
        path = os.path.join(folder, f"{name}.{kind}")
        figure.tight_layout()
        figure.savefig(path, dpi=150, bbox_inches="tight",
                       metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)
        written.append(path)
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="with a raw.csv each (default: of docs/measurements)")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    options = parser.parse_args()
    named = options.folders
    folders = named or sorted(map(os.path.dirname,
                                  glob.glob(os.path.join(ROOT, "docs", "measurements", "*", "raw.csv"))))
    written = []
    for folder in folders:
        rows = read(os.path.join(folder, "raw.csv"))
        if not is_of_pairs(rows):
            if named:
                print(f"{folder}/raw.csv has no rows of tests/gpu/pairs/pairs.py", file=sys.stderr)
            continue
        written += draw(folder, rows, options.format)
    print("\n".join(written) or "nothing to draw")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
