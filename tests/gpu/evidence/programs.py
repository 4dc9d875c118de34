# SPDX-License-Identifier: Apache-2.0
"""A public program in three ways: as it is, with cupool, with its own pool. What one run of it leaves:
exit code, output without what varies, time, the peak of device memory.
"""
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from common import reports
from common.masks import compiled, masked
from common.session import Memory

AS_IS, CUPOOL, OWN = "as it is", "cupool", "own pool"
KEPT_OUTPUT = 400
# Calls by kind of memory, and those that cupool served, as its report counts them.
CALLS = {"cudaMalloc": "malloc_calls_total", "page-locked": "host_malloc_calls_total",
         "page-locked, served": "host_served_total", "stream-ordered": "own_async_malloc_calls_total",
         "stream-ordered, served": "own_async_served_total", "managed": "managed_malloc_calls_total",
         "arrays": "array_calls_total"}


class Program:
    """A row of programs.json, with its place in the folder of prepared programs."""

    def __init__(self, row, folder):
        self.row = row
        self.name = row["name"]
        self.folder = os.path.abspath(folder)
        self.limit = row.get("limit", 60)
        self.masks = compiled(row.get("ignore", []))
        self.time = re.compile(row["time"]["pattern"]) if "time" in row else None
        self.ways = [AS_IS, CUPOOL] + ([OWN] if "own" in row else [])

    def filled(self, word):
        return word.replace("{folder}", self.folder).replace("{python}", sys.executable)

    def command(self, way):
        first, *more = self.own(way).get("command", self.row["command"])
        first = self.filled(first) if "{" in first else os.path.join(self.folder, first)
        return [first, *map(self.filled, more)]

    def own(self, way):
        return self.row["own"] if way == OWN else {}

    def working_folder(self, scratch):
        return os.path.join(self.folder, self.row["run_in"]) if "run_in" in self.row else scratch

    def missing(self, way=AS_IS):
        """What is not in the folder, or None."""
        wanted = [word for word in self.command(way) if word.startswith(self.folder)]
        if "run_in" in self.row:
            wanted.append(self.working_folder(""))
        for path in wanted:
            if not os.path.exists(path):
                return "not found: " + os.path.relpath(path, self.folder)
        return None

    def environment(self, way, options, scratch):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("CUPOOL_") or key.startswith("CUPOOL_SIM_")}
        environment.pop("LD_PRELOAD", None)
        changes = {**self.row.get("environment", {}), **self.own(way).get("environment", {})}
        for key, value in changes.items():
            environment.pop(key, None)
            if value is not None:  # null takes a variable away
                environment[key] = self.filled(value)
        if way == CUPOOL:
            environment.update(LD_PRELOAD=options.library, **reports.variables(scratch))
            environment.update(pair.split("=", 1) for pair in options.env)
        return environment

    def run(self, way, options, left):
        """A record of one run. left: the seconds that there are for it, if that is less than its limit."""
        scratch = tempfile.mkdtemp(prefix="cupool-evidence-")
        try:
            return self.run_in(scratch, way, options, left)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def run_in(self, scratch, way, options, left):
        memory = sampler()
        with open(os.path.join(scratch, "stdout"), "w+b") as out, open(os.path.join(scratch, "stderr"), "w+b") as err:
            begin = time.monotonic()
            try:
                process = subprocess.Popen(
                    self.command(way), env=self.environment(way, options, scratch), start_new_session=True,
                    cwd=self.working_folder(scratch), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                code = wait(process, max(0, min(self.limit, left)))
            except OSError as error:
                code = str(error)
            seconds = time.monotonic() - begin
            peak = memory.stop() if memory else None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace").replace(scratch, ""))
        counters = reports.counters(scratch)
        record = {"exit": code, "seconds": round(seconds, 4), "peak_bytes": peak, "time": self.own_time(texts[0]),
                  "digest": self.digest(texts[0])}
        if way == CUPOOL:
            record["calls"] = {kind: counters.get(key, 0) for kind, key in CALLS.items()}
        if code != 0:
            record["tail"] = " ".join((texts[0] + texts[1]).split())[-KEPT_OUTPUT:]
        return record

    def own_time(self, text):
        """The sum of the times that the program prints; None if it prints none."""
        found = self.time.findall(text) if self.time else []
        return sum(map(float, found)) if found else None

    def digest(self, text):
        if self.row.get("output") == "exit":
            return "-"
        return hashlib.sha256(masked(text, self.masks).encode()).hexdigest()[:12]


def wait(process, limit):
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def sampler():
    """The sampler of device memory; None where neither NVML nor nvidia-smi is."""
    try:
        return Memory()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
