#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the real-GPU programs without and with cupool, alternating, and compares them.

For each program: the same "result" lines and exit code, the report's counts against the program's
own, one report per run, and the times side by side. Writes environment.txt, raw.csv, table.md,
reports.txt and failures.txt into the output folder; exits non-zero if anything differed.
Usually started by run_all.sh. Needs only Python's standard library.
"""
import csv
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from common.machine import (REPOSITORY, argument_parser, built, parse_arguments,  # noqa: E402
                            python, write_environment)

DEMO_TIMES = ("median_us", "p99_us", "requests_per_second")


class Program:
    """One program and what can be compared of it.

    counts: "own" (the program prints what it asked for), "profiled" (a separate run without the
    preload learns it from CUPTI), None (unknown)."""

    def __init__(self, name, command, metric=None, counts="own", runs=None, limit=60, setup=None):
        self.name = name
        self.command = command
        self.metric = metric
        self.counts = counts
        self.runs = runs
        self.limit = limit
        self.setup = setup or {}


PROGRAMS = [
    Program("semantics", [built("semantics")], counts=None, runs=1),
    Program("legacy_static", [built("legacy_loop_static")], "ms_per_iteration"),
    Program("legacy_shared", [built("legacy_loop_shared")], "ms_per_iteration"),
    Program("driver", [built("driver_api")], "us_per_iteration",
            setup={"CUPOOL_TEST_MODULE": built("kernels.fatbin")}),
    Program("demo", [built("inference_loop"), "threads=4", "requests=500"], "median_us", counts=None),
    Program("thrust", [built("thrust_loop")], "us_per_iteration"),
    Program("cupy", python("programs/cupy_loop.py", "200"), "us_per_step", limit=90),
    Program("torch", python("programs/torch_train.py", "60"), "ms_per_step", counts="profiled", limit=120),
]


class Output:
    """The lines of a run that mean something; see gpu_test.h."""

    def __init__(self, text):
        self.results = [line for line in text.splitlines() if line.startswith("result ")]
        self.infos = [line for line in text.splitlines() if line.startswith("info ")]
        self.counts = {}
        self.times = {}
        for line in text.splitlines():
            if line.startswith("counts "):
                self.counts = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", line)}
            if line.startswith("time "):
                self.times.update({k: float(v) for k, v in re.findall(r"(\w+)=([0-9.eE+-]+)", line)})
        # The demo prints for people: one value a line.
        values = re.findall(r"^(\w+)=([0-9.]+)$", text, re.MULTILINE)
        self.times.update({k: float(v) for k, v in values if k in DEMO_TIMES})
        self.results += [f"{k}={v}" for k, v in values if k not in DEMO_TIMES]


class Run:
    def __init__(self, code, out, err, seconds, reports, text_report):
        self.code = code
        self.err = err
        self.seconds = seconds
        self.reports = reports
        self.text_report = text_report
        self.output = Output(out)
        self.out = out


class Session:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.budget
        self.failures = []
        self.rows = []
        self.table = []
        self.reports = []

    # -- running -------------------------------------------------------------------------------
    def environment(self, program, preload):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("CUPOOL_") and k != "LD_PRELOAD"}
        environment.update(program.setup)
        if preload:
            environment["LD_PRELOAD"] = self.options.library
            environment.update(kv.split("=", 1) for kv in self.options.env)
        return environment

    def execute(self, program, command, preload):
        folder = tempfile.mkdtemp(prefix="cupool-gpu-")
        environment = self.environment(program, preload)
        if preload:
            environment["CUPOOL_STATS"] = "text,json"
            environment["CUPOOL_STATS_FILE"] = os.path.join(folder, "report-%p")
        left = self.deadline - time.monotonic()
        begin = time.monotonic()
        try:
            done = subprocess.run(command, env=environment, cwd=REPOSITORY, text=True,
                                  errors="replace", capture_output=True, stdin=subprocess.DEVNULL,
                                  timeout=max(5.0, min(program.limit, left)))
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code = "timeout"
            out = (error.stdout or b"").decode(errors="replace")
            err = (error.stderr or b"").decode(errors="replace")
        except OSError as error:
            code, out, err = str(error), "", ""
        seconds = time.monotonic() - begin
        reports, text_report = [], ""
        for path in sorted(glob.glob(os.path.join(folder, "*"))):
            with open(path, encoding="utf-8", errors="replace") as file:
                content = file.read()
            if not path.endswith(".json"):
                text_report += content
                continue
            try:
                reports.append(json.loads(content))
            except ValueError as error:
                self.fail(program, f"report is no JSON: {error}\n{content[:2000]}")
        shutil.rmtree(folder, ignore_errors=True)
        return Run(code, out, err, seconds, reports, text_report)

    def fail(self, program, message):
        self.failures.append(f"{program.name}: {message}")
        print(f"  FAILED {program.name}: {message.splitlines()[0]}", flush=True)

    # -- checking ------------------------------------------------------------------------------
    def check_end(self, program, run, variant):
        if run.code == 0:
            return True
        self.fail(program, f"{variant}: exit {run.code}\n--- stdout\n{run.out[-3000:]}"
                           f"\n--- stderr\n{run.err[-3000:]}")
        return False

    def check_same(self, program, reference, run, variant):
        if run.output.results == reference.output.results and run.output.results:
            return
        theirs, ours = reference.output.results, run.output.results
        lines = [f"  without: {a}\n  {variant}: {b}"
                 for a, b in zip(theirs, ours) if a != b]
        if len(theirs) != len(ours):
            lines.append(f"  {len(theirs)} lines without, {len(ours)} lines {variant}")
        self.fail(program, f"{variant}: results differ in {len(lines)} lines\n" + "\n".join(lines))

    def check_report(self, program, run, expected):
        if len(run.reports) != 1:
            self.fail(program, f"{len(run.reports)} reports instead of one\n{run.err[-2000:]}")
            return None
        totals, counts_text = {}, []
        for device in run.reports[0]["devices"]:
            for key, value in device["counters"].items():
                totals[key] = totals.get(key, 0) + value
            gauge = {k: v["current"] for k, v in device["gauges"].items()}
            held = sum(gauge[k] for k in ("application_bytes", "rounding_bytes", "retired_bytes",
                                          "cached_bytes"))
            if held != gauge["held_bytes"]:
                self.fail(program, f"the identity does not add up: {gauge}")
            slack = device["driver_slack_bytes"]
            if slack is not None and slack < 0:
                self.fail(program, f"the pools reserve {-slack} bytes less than they gave: {gauge}")
        for key, name in (("mallocs", "malloc_calls_total"), ("frees", "free_calls_total")):
            if key not in expected:
                continue
            reported = totals.get(name)
            if program.counts == "profiled" and key == "mallocs":
                # CUPTI counts calls; those for 0 bytes allocate nothing and are reported apart.
                reported += totals.get("malloc_zero_total", 0)
            same = reported == expected[key]
            counts_text.append(f"{reported} {'=' if same else '≠'} {expected[key]}")
            if not same:
                self.fail(program, f"report says {name} = {reported}, "
                                   f"the program's own count is {expected[key]}")
        return ", ".join(counts_text) if counts_text else f"{totals.get('malloc_calls_total')}"

    # -- one program ---------------------------------------------------------------------------
    def compare(self, program):
        runs = program.runs or self.options.runs
        print(f"{program.name}: {' '.join(os.path.relpath(c, REPOSITORY) if '/' in c else c for c in program.command)}",
              flush=True)
        expected = {}
        if program.counts == "profiled":
            profiled = self.execute(program, program.command + ["count"], preload=False)
            if self.check_end(program, profiled, "profiled"):
                expected = profiled.output.counts
        times = {"without": [], "with": []}
        reference, counted = None, "-"
        for i in range(runs):
            if time.monotonic() > self.deadline:
                self.fail(program, f"no time left after {i} of {runs} runs")
                break
            # Alternating, and the order within a pair too: neither side gets the warmer machine.
            for variant in (("without", "with") if i % 2 == 0 else ("with", "without")):
                run = self.execute(program, program.command, preload=variant == "with")
                good = self.check_end(program, run, variant)
                self.rows.append([program.name, variant, i, "exit", run.code])
                self.rows.append([program.name, variant, i, "process_seconds", f"{run.seconds:.4f}"])
                for name, value in run.output.times.items():
                    self.rows.append([program.name, variant, i, name, value])
                if not good:
                    continue
                if reference is None and variant == "without":
                    reference = run
                elif reference is not None:
                    self.check_same(program, reference, run, variant)
                if program.metric:
                    times[variant].append(run.output.times[program.metric])
                if variant == "with":
                    if program.counts == "own":
                        expected = run.output.counts
                    counted = self.check_report(program, run, expected) or "-"
                    if i == 0:
                        self.keep_report(program, run)
                elif program.name == "semantics":
                    self.reports.append(f"===== {program.name}, without: "
                                        f"{len(run.output.results)} result lines\n"
                                        + "\n".join(run.output.infos) + "\n")
        self.add_row(program, times, counted)

    def keep_report(self, program, run):
        self.reports.append(f"===== {program.name}, with cupool\n"
                            + "\n".join(run.output.infos) + "\n" + run.text_report + "\n"
                            + "\n".join(json.dumps(r, indent=1) for r in run.reports) + "\n"
                            + (f"--- stderr\n{run.err[-4000:]}\n" if run.err else ""))

    def add_row(self, program, times, counted):
        def cell(values):
            if not values:
                return "-"
            return f"{statistics.median(values):.4g} ({min(values):.4g}–{max(values):.4g})"
        ratio = "-"
        if times["without"] and times["with"]:
            ratio = f"{statistics.median(times['without']) / statistics.median(times['with']):.2f}"
        failed = sum(1 for f in self.failures if f.startswith(program.name + ":"))
        self.table.append([program.name, program.metric or "-", cell(times["without"]),
                           cell(times["with"]), ratio, counted,
                           "same" if failed == 0 else f"{failed} FAILED"])

    # -- writing -------------------------------------------------------------------------------
    def write(self):
        out = self.options.out
        with open(os.path.join(out, "raw.csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["program", "variant", "run", "metric", "value"])
            writer.writerows(self.rows)
        header = ["program", "unit", "without: median (min–max)", "with cupool", "speed-up",
                  "mallocs, frees: report = program", "results"]
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in self.table]
        text = "\n".join(lines) + "\n"
        for name, content in (("table.md", text), ("reports.txt", "\n".join(self.reports)),
                              ("failures.txt", "\n\n".join(self.failures))):
            with open(os.path.join(out, name), "w", encoding="utf-8") as file:
                file.write(content)
        print("\n" + text)
        print(f"{len(self.failures)} failures; files in {out}", flush=True)




def main():
    parser = argument_parser(__doc__, budget=450)
    parser.add_argument("sections", nargs="*", help="programs to run: "
                        + " ".join(p.name for p in PROGRAMS) + " (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind (default 5)")
    options = parse_arguments(parser, [p.name for p in PROGRAMS])
    write_environment(options)
    session = Session(options)
    for program in PROGRAMS:
        if options.sections and program.name not in options.sections:
            continue
        try:
            session.compare(program)
        except Exception as error:  # one broken program must not hide the others' results
            session.fail(program, f"{type(error).__name__}: {error}")
    session.write()
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
