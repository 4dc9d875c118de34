#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs public programs that check their own results without and with cupool, and compares verdicts.

A verdict is the exit code and those lines of the output that programs.json names, with whatever
may differ from run to run (times, rates) masked. Writes a table and JSON; exits non-zero if a
verdict differed. Needs only Python's standard library. README.md beside this file says more.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", ".."))
from common import reports  # noqa: E402
from common.machine import REPOSITORY  # noqa: E402
from common.masks import compiled, masked  # noqa: E402

# Lines that carry a verdict where a row names none of its own.
VERDICT = (r"(?i)pass|fail|success|error|mismatch|verif|correct|\bok\b|\bwrong|invalid|match|"
           r"complete|validat|differ|abort|exception|waiv|unsupported|not support")
# A program that says so did not run its check here: too few GPUs, a feature missing.
WAIVED = re.compile(r"(?i)\bwaiv|\bskipp(?:ed|ing)\b|two GPUs are required")
# Said in these forms even by programs that then exit with 0.
FAILED = re.compile(r"\bFAIL(?:ED|URE)?\b|Test failed|wrong result|INVALID|API failed|[1-9]\d* failed")
KEPT_OUTPUT = 4000


class Program:
    """One row of programs.json: how to start a program and how to read its verdict."""

    def __init__(self, row, folder):
        self.name = row["name"]
        self.exercises = row["exercises"]
        self.binary = row.get("binary", self.name)  # rows may share one with other arguments
        self.folder = os.path.join(folder, self.binary)
        self.arguments = row.get("arguments", [])
        self.alone = row.get("alone", False)  # fills the memory, or looks at how much is free
        self.environment = row.get("environment", {})
        self.known = row.get("known")  # why its verdict differs, where that is documented
        verdict = row.get("verdict", {})
        self.exit_only = verdict.get("exit_only", False)
        self.any_order = verdict.get("any_order", False)
        self.lines = re.compile(verdict.get("lines", VERDICT))
        self.skip = re.compile(verdict["skip"]) if "skip" in verdict else None
        self.masks = compiled(verdict.get("mask", []))

    def built(self):
        return os.access(os.path.join(self.folder, self.binary), os.X_OK)

    def verdict_lines(self, text):
        if self.exit_only:
            return []
        lines = []
        for line in re.split(r"[\r\n]+", text):
            line = " ".join(line.split())
            if not line or not self.lines.search(line) or (self.skip and self.skip.search(line)):
                continue
            lines.append(masked(line, self.masks))
        return sorted(lines) if self.any_order else lines


class Run:
    """What one run of a program left behind."""

    def __init__(self, code, lines, seconds, output, counters):
        self.code = code
        self.lines = lines
        self.seconds = seconds
        self.output = output
        self.counters = counters

    def verdict(self):
        return (self.code, self.lines)

    def as_json(self):
        return {"exit": self.code, "seconds": round(self.seconds, 3), "verdict": self.lines,
                "counters": self.counters, "output_tail": self.output[-KEPT_OUTPUT:]}


def end_group(process):
    """A program that forks may leave children behind; they hold its memory and its pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def execute(program, options, preload, limit):
    scratch = tempfile.mkdtemp(prefix="cupool-public-")
    try:
        work = os.path.join(scratch, "work")
        shutil.copytree(program.folder, work)
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("CUPOOL_") and k != "LD_PRELOAD"}
        environment.update(program.environment)
        if preload:
            environment.update(LD_PRELOAD=options.library, **reports.variables(scratch))
            environment.update(pair.split("=", 1) for pair in options.env)
        # A file, not a pipe: a child that outlives the program must not make us wait for it.
        with open(os.path.join(scratch, "output"), "w+b") as file:
            begin = time.monotonic()
            process = subprocess.Popen([os.path.join(work, program.binary), *program.arguments],
                                       cwd=work, env=environment, stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                code = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = "timeout"
            seconds = time.monotonic() - begin
            end_group(process)
            process.wait()
            file.seek(0)
            output = file.read().decode(errors="replace")
        # A path of the scratch directory is another one in every run.
        output = output.replace(scratch, "")
        return Run(code, program.verdict_lines(output), seconds, output, reports.counters(scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def difference(plain, preloaded):
    """Exit codes and the first verdict line that differs, for a person to read."""
    text = [f"exit {plain.code} without, {preloaded.code} with"]
    for number, (a, b) in enumerate(zip(plain.lines, preloaded.lines), 1):
        if a != b:
            return text + [f"verdict line {number}", f"  without: {a}", f"  with:    {b}"]
    if len(plain.lines) != len(preloaded.lines):
        shorter = min(len(plain.lines), len(preloaded.lines))
        text.append(f"{len(plain.lines)} verdict lines without, {len(preloaded.lines)} with")
        longer = plain if len(plain.lines) > shorter else preloaded
        text.append(f"  only {'without' if longer is plain else 'with'}: {longer.lines[shorter]}")
    return text


class Session:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.limit
        self.print_lock = threading.Lock()

    def run(self, program, preload):
        left = self.deadline - time.monotonic()
        if left < 1:
            return None
        run = execute(program, self.options, preload, min(self.options.timeout, left))
        # Ended by the limit for everything, before its own time was over: says nothing.
        return None if run.code == "timeout" and left < self.options.timeout else run

    def compare(self, program):
        result = {"name": program.name, "exercises": program.exercises, "plain": [], "cupool": []}
        result["status"] = self.judge(program, result)
        self.show(result)
        for side in ("plain", "cupool"):
            result[side] = [run.as_json() for run in result[side]]
        return result

    def judge(self, program, result):
        if not program.built():
            return "missing"
        for _ in range(2):
            for side in ("plain", "cupool"):
                run = self.run(program, preload=side == "cupool")
                if run is None:
                    break
                result[side].append(run)
            if len(result["plain"]) != len(result["cupool"]) or not result["plain"]:
                break
            # One pair is enough where it agrees; where it does not, a second one tells a program
            # that differs from itself from one that differs because of us.
            if result["plain"][0].verdict() == result["cupool"][0].verdict():
                return self.agreement(program, result["plain"][0])
        plain, cupool = result["plain"], result["cupool"]
        if not plain or not cupool:
            return "no time"
        # Which line differs is looked up in the pair that differed first.
        result["difference"] = difference(plain[0], cupool[0])
        if any(run.code == "timeout" for run in plain):
            return "timeout without"
        if len(plain) > 1 and plain[0].verdict() != plain[1].verdict():
            return "flaky"
        if program.known:
            result["difference"].append(f"known: {program.known}")
            return "differs, known"
        if len(cupool) > 1 and plain[0].verdict() == cupool[1].verdict():
            return "DIFFERS at times"
        return "DIFFERS"

    @staticmethod
    def agreement(program, plain):
        if plain.code == "timeout":
            return "same timeout"
        if not program.exit_only and not plain.lines:
            return "no verdict"
        failed = plain.code != 0 or any(FAILED.search(line) for line in plain.lines)
        if (failed or len(plain.lines) < 2) and WAIVED.search(plain.output):
            return "same, waived"
        return "same failure" if failed else "same"

    def show(self, result):
        cells = [result["name"], result["status"]]
        for side in ("plain", "cupool"):
            runs = result[side]
            cells.append(f"{runs[0].code}, {runs[0].seconds:.1f} s" if runs else "-")
        counters = result["cupool"][0].counters if result["cupool"] else {}
        cells.append(str(counters.get("malloc_calls_total", "-")))
        lines = ["{:34} {:17} {:>15} {:>15} {:>9}".format(*cells)]
        lines += ["    " + line for line in result.get("difference", [])]
        with self.print_lock:
            print("\n".join(lines), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.path.join(REPOSITORY, ".public"), metavar="DIR",
                        help="folder with NAME/NAME for every row, or a tar archive of it "
                        "(default: .public)")
    parser.add_argument("--library", metavar="FILE",
                        default=os.path.join(REPOSITORY, "build", "release", "libcupool.so"))
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    parser.add_argument("--timeout", type=float, default=30, metavar="S", help="for one run")
    parser.add_argument("--limit", type=float, default=540, metavar="S", help="for everything")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE",
                        help="for the runs with cupool; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="programs at a time; those that fill the memory run alone, first")
    parser.add_argument("--json", metavar="FILE", help="write every run here")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    if any("=" not in pair for pair in options.env):
        parser.error("--env needs KEY=VALUE")
    if not options.list and not os.path.isfile(options.library):
        parser.error(f"no library at {options.library}: build it or name it with --library")
    return options


def main():
    options = parse()
    if not os.path.isfile(options.programs):
        return compare_all(options)
    with tempfile.TemporaryDirectory(prefix="cupool-public-") as folder:
        with tarfile.open(options.programs) as archive:
            archive.extractall(folder, filter="data")
        options.programs = folder
        return compare_all(options)


def compare_all(options):
    with open(os.path.join(HERE, "programs.json"), encoding="utf-8") as file:
        table = json.load(file)
    programs = [Program(row, options.programs) for row in table["programs"]
                if re.search(options.only, row["name"])]
    if options.list:
        for program in programs:
            print(f"{program.name:34} {'built' if program.built() else 'missing':8} "
                  f"{program.exercises}")
        return 0
    begin = time.monotonic()
    print("{:34} {:17} {:>15} {:>15} {:>9}".format("program", "verdict", "without", "with cupool",
                                                   "mallocs"))
    session = Session(options)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        results = [session.compare(program) for program in programs if program.alone]
        results += executor.map(session.compare, [p for p in programs if not p.alone])
    counts = {}
    for result in results:
        counts[result["status"]] = counts.get(result["status"], 0) + 1
    seconds = time.monotonic() - begin
    print(f"\n{len(results)} programs in {seconds:.0f} s: "
          + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema_version": 1, "library": os.path.basename(options.library),
                       "environment": options.env, "seconds": round(seconds, 1),
                       "counts": counts, "repositories": table["repositories"],
                       "results": results}, file, indent=1)
    if any(status.startswith("DIFFERS") for status in counts):
        return 1
    return 0 if any(status.startswith(("same", "differs, known")) for status in counts) else 2


if __name__ == "__main__":
    sys.exit(main())
