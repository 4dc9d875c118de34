# SPDX-License-Identifier: Apache-2.0
"""Running and recording for ordered.py, contract.py and pairs.py: variants of cupool, processes under
a time limit, the peak of device memory as the driver sees it, required properties, tables. Needs no
package but pynvml, and without that nvidia-smi.
"""
import csv
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

from common.machine import REPOSITORY, built

MIB = 1 << 20
OBVIOUS = "obvious-mapping"
LEGACY_COVERS_ALL = "legacy-wait-covers-all"
# Wrong in a lane.
LEAVES_WITHOUT = "leaves-without-a-wait"
OVERLAP = "launches-overlap"
UNORDERED = "forgets-the-order-of-allocations"
# Fences that cover less than is taken for complete.
FENCES = ("fence-before-free", "batch-grows-after-fence", "reuse-before-complete")
WRONG = (OBVIOUS, LEGACY_COVERS_ALL, LEAVES_WITHOUT, OVERLAP, UNORDERED, *FENCES)
# What each variant adds to the environment; legacy runs without the preload.
VARIANTS = {
    "legacy": None,
    "auto": {"CUPOOL_FREE_MODE": "auto"},
    "auto-64M": {"CUPOOL_FREE_MODE": "auto", "CUPOOL_MAX_PENDING": "64M"},
    "ordered": {"CUPOOL_FREE_MODE": "ordered"},
    "sync": {"CUPOOL_FREE_MODE": "sync"},
    # Wrong on purpose. In ordered mode, so that no other wait hides the fault.
    **{wrong: {"CUPOOL_FREE_MODE": "ordered", "CUPOOL_TEST_MUTATION": wrong} for wrong in (OBVIOUS, LEGACY_COVERS_ALL, *FENCES)},
    "lane": {"CUPOOL_LANE": "1"},
    "no lane": {"CUPOOL_LANE": "0"},
    **{wrong: {"CUPOOL_LANE": "1", "CUPOOL_TEST_MUTATION": wrong} for wrong in (LEAVES_WITHOUT, OVERLAP)},
    UNORDERED: {"CUPOOL_LANE": "0", "CUPOOL_TEST_MUTATION": UNORDERED},
    # The program has no non-blocking stream: its waits for the legacy stream take the place of fences.
    "blocking": {"CUPOOL_FREE_MODE": "auto"},
}


def spread(values, unit=""):
    if not values:
        return "-"
    return f"{statistics.median(values):.4g}{unit} ({min(values):.4g}–{max(values):.4g})"


class Memory:
    """Device memory in use, sampled from its start to stop(): the peak above what was used before."""

    INTERVAL = 0.001

    def __init__(self):
        self.peak = 0
        self.base = 0
        self.total = 0
        self.samples = 0
        self.stopping = threading.Event()
        self.smi = None
        try:
            import pynvml
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.read = lambda: pynvml.nvmlDeviceGetMemoryInfo(device)
            first = self.read()
            self.base, self.total = first.used, first.total
            self.thread = threading.Thread(target=self.poll, daemon=True)
        except Exception as error:  # no pynvml, or no NVML: nvidia-smi then, more coarsely
            print(f"  no pynvml ({error}): nvidia-smi every 20 ms", flush=True)
            query = ["nvidia-smi", "-i", "0", "--format=csv,noheader,nounits",
                     "--query-gpu=memory.used,memory.total"]
            used, total = subprocess.run(query, text=True, capture_output=True,
                                         timeout=30).stdout.split(",")
            self.base, self.total = int(used) * MIB, int(total) * MIB
            self.smi = subprocess.Popen(query + ["--loop-ms=20"], text=True, stdout=subprocess.PIPE)
            self.thread = threading.Thread(target=self.poll_smi, daemon=True)
        self.thread.start()

    def poll(self):
        while not self.stopping.is_set():
            self.peak = max(self.peak, self.read().used)
            self.samples += 1
            time.sleep(self.INTERVAL)

    def poll_smi(self):
        for line in self.smi.stdout:
            self.peak = max(self.peak, int(line.split(",")[0]) * MIB)
            self.samples += 1

    def stop(self):
        self.stopping.set()
        if self.smi is not None:
            self.smi.terminate()
            self.smi.wait()
        self.thread.join(timeout=5)
        return max(0, self.peak - self.base)


class Run:
    """A finished process: exit code, KEY=VALUE of its lines, cases, its report, memory."""

    def __init__(self, code, out, err, seconds, report):
        self.code = code
        self.out = out
        self.err = err
        self.seconds = seconds
        self.report = report
        self.memory = None
        self.memory_samples = 0
        self.results = [line for line in out.splitlines() if line.startswith("result ")]
        self.values = {}
        self.cases = {}
        for line in out.splitlines():
            kind, _, rest = line.partition(" ")
            pairs = dict(re.findall(r"(\w+)=([0-9.eE+-]+)", rest))
            if kind in ("result", "info", "time", "counts"):
                self.values.update({k: float(v) for k, v in pairs.items()})
            elif kind == "host":
                self.values.update({f"host_{k}": float(v) for k, v in pairs.items()})
            elif kind == "case":
                self.cases[rest.split()[0]] = int(pairs["wrong"])

    def counter(self, name):
        devices = self.report["devices"] if self.report else []
        return sum(device["counters"].get(name, 0) for device in devices)

    def peak(self, gauge):
        devices = self.report["devices"] if self.report else []
        return sum(device["gauges"].get(gauge, {}).get("peak", 0) for device in devices)

    def setting(self, name):
        for row in (self.report or {}).get("settings", []):
            if row["name"] == name:
                return row["value"]
        return None


class Process:
    """A started process; finish() waits for it, and kills it (and its children) at the limit."""

    def __init__(self, session, command, variant, setup=None, stdin=False):
        self.folder = tempfile.mkdtemp(prefix="cupool-ordered-")
        self.begin = time.monotonic()
        self.out = open(os.path.join(self.folder, "stdout"), "w+", encoding="utf-8", errors="replace")
        self.err = open(os.path.join(self.folder, "stderr"), "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            command, env=session.environment(variant, setup or {}, self.folder), cwd=REPOSITORY,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=self.out,
            stderr=self.err, text=True, start_new_session=True)

    def wait_ready(self, limit):
        end = time.monotonic() + limit
        while time.monotonic() < end and self.process.poll() is None:
            with open(self.out.name, encoding="utf-8", errors="replace") as file:
                if "ready" in file.read():
                    return
            time.sleep(0.05)

    def go(self):
        self.begin = time.monotonic()
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.close()
        except OSError:
            pass  # dead already: its exit code tells

    def finish(self, limit):
        try:
            code = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = "timeout"
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        seconds = time.monotonic() - self.begin
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        report = None
        for path in glob.glob(os.path.join(self.folder, "report-*")):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    report = json.load(file)
            except ValueError:
                texts[1] += f"\nreport is no JSON: {path}"
        shutil.rmtree(self.folder, ignore_errors=True)
        return Run(code, texts[0], texts[1], seconds, report)


class Session:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.budget
        self.rows = []
        self.properties = []
        self.tables = []
        self.log = []
        self.section = ""

    # -- running -------------------------------------------------------------------------------
    def environment(self, variant, setup, folder):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("CUPOOL_") and k != "LD_PRELOAD"}
        environment.update(setup)
        if VARIANTS[variant] is not None:
            wrong = variant in WRONG
            environment["LD_PRELOAD"] = built("libcupool_mutable.so") if wrong else self.options.library
            environment["CUPOOL_STATS"] = "off" if wrong else "json"
            environment["CUPOOL_STATS_FILE"] = os.path.join(folder, "report-%p")
            environment.update(VARIANTS[variant])
            environment.update(kv.split("=", 1) for kv in self.options.env)
        return environment

    def left(self, limit):
        return max(3.0, min(limit, self.deadline - time.monotonic()))

    def run(self, name, command, variant, limit=60, setup=None, memory=False, may_fail=False, index=0):
        sampler = Memory() if memory else None
        process = Process(self, command, variant, setup)
        run = process.finish(self.left(limit))
        if sampler is not None:
            run.memory = sampler.stop()
            run.memory_samples = sampler.samples
            run.memory_total = sampler.total
        self.record(name, variant, index, run, may_fail)
        return run

    def record(self, name, variant, index, run, may_fail=False):
        def row(metric, value):
            self.rows.append([self.section, name, variant, index, metric, value])
        row("exit", run.code)
        row("process_seconds", f"{run.seconds:.4f}")
        if run.memory is not None:
            row("peak_device_bytes", run.memory)
        for metric, value in {**run.values, **{f"wrong_{k}": v for k, v in run.cases.items()}}.items():
            row(metric, value)
        for counter in ("free_waits_total", "free_waits_host_copy_total", "free_waits_managed_total",
                        "free_waits_zero_copy_total", "free_waits_pending_limit_total",
                        "frees_unwaited_busy_total", "fences_total", "fence_queries_total",
                        "served_fresh_total", "trims_total"):
            if run.report:
                row(counter, run.counter(counter))
        for gauge in ("retired_bytes", "held_bytes", "device_bytes"):
            if run.report:
                row(f"{gauge}_peak", run.peak(gauge))
        print(f"  {name} {variant}: exit {run.code}, {run.seconds:.1f} s", flush=True)
        self.log.append(f"===== {self.section} {name} {variant} #{index}: exit {run.code}\n"
                        f"{run.out[-3000:]}\n{run.err[-3000:]}")
        if run.code != 0 and not may_fail:
            self.require(f"{name} runs to its end, {variant}", False, f"exit {run.code}",
                         f"exit 0 {(run.err.strip().splitlines() or [''])[-1][:120]}")

    def run_sections(self, sections):
        """Runs those functions of {name: function} that were asked for; says whether all is well."""
        for name, section in sections.items():
            if self.options.sections and name not in self.options.sections:
                continue
            self.section = name
            print(f"{name}:", flush=True)
            try:
                section(self)
            except Exception as error:  # one broken section must not hide the others
                self.require("the section ran", False, f"{type(error).__name__}: {error}",
                             "to its end")
        self.write()
        print("\n" + self.text())
        return self.conclude()

    # -- judging -------------------------------------------------------------------------------
    def conclude(self):
        """The last line of the log; true if nothing required is missing."""
        failed = self.failed()
        print(f"{len(failed)} of {len(self.properties)} required properties not met; "
              f"files in {self.options.out}", flush=True)
        return not failed

    def require(self, what, holds, measured, goal):
        self.properties.append([self.section, what, str(measured), goal, "yes" if holds else "NO"])
        if not holds:
            print(f"  NOT MET: {what}: {measured} (goal: {goal})", flush=True)

    def table(self, title, header, rows):
        lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
        self.tables.append("\n".join(lines) + "\n")
        self.write()

    # -- writing -------------------------------------------------------------------------------
    def write(self):
        out = self.options.out
        with open(os.path.join(out, "raw.csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["section", "program", "variant", "run", "metric", "value"])
            writer.writerows(self.rows)
        for name, text in (("table.md", self.text()), ("log.txt", "\n".join(self.log))):
            with open(os.path.join(out, name), "w", encoding="utf-8") as file:
                file.write(text)

    def text(self):
        header = "| section | property | measured | goal | met |\n|---|---|---|---|---|\n"
        summary = header + "".join("| " + " | ".join(row) + " |\n" for row in self.properties)
        return "\n".join(self.tables) + "\n### Required properties\n\n" + summary

    def failed(self):
        return [row for row in self.properties if row[4] != "yes"]


