#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes of three kinds at the same time on one GPU, whose memory a filler takes but for what they
need together. Runs them without cupool, with it, and with it but for give-back (CUPOOL_DECAY_MS=0), and
prints how many allocations failed. Exits non-zero if any failed with cupool and none without."""

import argparse
import os
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PROGRAM = os.path.join(REPOSITORY, ".gpu/neighbours")
LIBRARY = os.path.join(REPOSITORY, ".gpu/libcupool.so")
KINDS = ("steady", "bursts", "phases")
# Beyond its blocks: a growth step of each pool, rounding, what the driver takes for itself.
MARGIN_MIB = 128


def start(environment, **arguments):
    """A process that has said that it is ready."""
    command = [PROGRAM, *(f"{name}={value}" for name, value in arguments.items())]
    process = subprocess.Popen(command, env={**os.environ, **environment}, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if process.stdout.readline() != "ready\n":
        sys.exit(f"{' '.join(command)} did not start")
    return process


def run(environment, each, peak_mib, seconds):
    """Lines of results of all processes."""
    workers = [start(environment, kind=kind, peak_mib=peak_mib, seconds=seconds, seed=seed)
               for kind in KINDS for seed in range(each)]
    filler = start({}, kind="filler", leave_mib=len(workers) * (peak_mib + MARGIN_MIB))
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    lines = []
    for worker in workers:
        output, _ = worker.communicate(timeout=seconds + 20)
        lines += [line for line in output.splitlines() if line.startswith("result ")]
        if worker.returncode != 0:
            lines.append(f"result exit={worker.returncode} failed=1")
    filler.communicate("\n", timeout=10)
    return lines


def failed_in(lines):
    """Allocations that failed."""
    return sum(int(word.partition("=")[2]) for line in lines for word in line.split()
               if word.startswith("failed="))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="processes of each kind")
    parser.add_argument("--peak-mib", type=int, default=1024, help="memory that each needs")
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    preload = {"LD_PRELOAD": LIBRARY, "CUPOOL_STATS": "off"}
    settings = {"without": {}, "cupool": preload,
                "no_give_back": {**preload, "CUPOOL_DECAY_MS": "0"}}
    failed = {}
    folder = os.environ.get("OUT", "out")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "neighbours.txt"), "w", encoding="utf-8") as table:
        for name, environment in settings.items():
            lines = run(environment, options.each, options.peak_mib, options.seconds)
            failed[name] = failed_in(lines)
            for line in [*(f"{name} {line}" for line in lines), f"{name} failed={failed[name]}"]:
                print(line, flush=True)
                print(line, file=table)
    return 1 if failed["cupool"] > 0 and failed["without"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
