# SPDX-License-Identifier: Apache-2.0
"""The table of public programs: medians and spread of time and peak memory, whether results are the same,
and in plain words whether cupool helps. One table for each kind of GPU.
"""
import statistics

from common.document import table
from programs import AS_IS, CALLS, CUPOOL, OWN

MIB = 1 << 20


class Measured:
    """The runs of one program on one machine, by way; those of one session only."""

    def __init__(self, row, runs):
        self.row = row
        self.runs = runs

    def good(self, way):
        return [run for run in self.runs.get(way, []) if run["exit"] == 0]

    def times(self, way):
        own = "time" in self.row
        return [run["time"] if own else run["seconds"] for run in self.good(way) if not own or run["time"] is not None]

    def peaks(self, way):
        return [run["peak_bytes"] for run in self.good(way) if run["peak_bytes"] is not None]

    def unit(self):
        return self.row["time"]["unit"] if "time" in self.row else "s"

    def ratio(self, way, base):
        """How many times as fast as base."""
        if not self.times(way) or not self.times(base) or not statistics.median(self.times(way)):
            return None
        return statistics.median(self.times(base)) / statistics.median(self.times(way))

    def results(self):
        """Whether exit code and output are the same; as it is, a program may differ from itself."""
        if any(run["exit"] != 0 for run in self.runs.get(AS_IS, [])):
            return "fails as it is: " + str(next(run["exit"] for run in self.runs[AS_IS] if run["exit"] != 0))
        if any(run["exit"] != 0 for run in self.runs.get(CUPOOL, [])):
            return "FAILS with cupool: " + str(next(run["exit"] for run in self.runs[CUPOOL] if run["exit"] != 0))
        plain = {run["digest"] for run in self.runs.get(AS_IS, [])}
        mine = {run["digest"] for run in self.runs.get(CUPOOL, [])}
        if not mine:
            return "no time to compare"
        if len(plain) > 1:
            return "exit codes; output varies by itself"
        if plain != mine:
            return "DIFFER"
        return "exit codes" if plain == {"-"} else "same"

    def wrong(self):
        return self.results().startswith(("DIFFER", "FAILS"))

    def verdict(self):
        """Faster or slower only if each run is; anything else is no difference."""
        plain, mine = self.times(AS_IS), self.times(CUPOOL)
        if not plain or not mine:
            return "no time was seen"
        if max(mine) < min(plain):
            return "faster in every run"
        return "does not help: " + ("slower in every run" if min(mine) > max(plain) else "no difference beyond the spread")

    def time_cell(self, way):
        bad = [run["exit"] for run in self.runs.get(way, []) if run["exit"] != 0]
        return f"fails: {bad[0]}" if bad else spread(self.times(way), self.unit())

    def cells(self):
        name = f"{self.row['name']} ({self.row['repository']})"
        ratio, to_own = self.ratio(CUPOOL, AS_IS), self.ratio(CUPOOL, OWN)
        return [name, self.row["measures"], self.row["time"]["what"] if "time" in self.row else "the process",
                *(self.time_cell(way) for way in (AS_IS, CUPOOL, OWN)),
                f"{ratio:.2f}" if ratio else "-", f"{to_own:.2f}" if to_own else "-",
                *(mebibytes(self.peaks(way)) for way in (AS_IS, CUPOOL, OWN)), self.results(), self.verdict()]

    def calls(self):
        """What the program allocates, as cupool's report of its last run counts it; None if it was not counted."""
        counted = [run["calls"] for run in self.good(CUPOOL) if "calls" in run]
        return [self.row["name"], *(f"{counted[-1].get(kind, 0):,}" for kind in CALLS)] if counted else None


def spread(values, unit):
    if not values:
        return "-"
    return f"{statistics.median(values):.4g} {unit} ({min(values):.4g}–{max(values):.4g})"


def mebibytes(values):
    return f"{statistics.median(values) / MIB:,.0f} MiB" if values else "-"


def measured(rows, records, gpu):
    """Of each program the session with the most complete runs; the later one of equals."""
    found = {}
    for row in rows:
        sessions = {}
        for record in records:
            if record["kind"] == "run" and record["program"] == row["name"] and record["gpu"] == gpu:
                sessions.setdefault(record["session"], {}).setdefault(record["way"], []).append(record)
        if sessions:
            best = max(sessions, key=lambda name: (min(len(runs) for runs in sessions[name].values()), name))
            found[row["name"]] = Measured(row, sessions[best])
    return found


def part(rows, records):
    """The Markdown of all kinds of GPU in the records; then what was not run."""
    sessions = [record for record in records if record["kind"] == "session"]
    lines = ["## Public programs that allocate in their loops", "",
             "Each program as it is, with cupool preloaded, and with its own pool where it has one; in turn, median (lowest–"
             "highest). Memory is the peak of the device above what was used before, as NVML sees it, the context included. "
             "A program is called faster only if each of its runs with cupool was.", ""]
    gpus = sorted({record["gpu"] for record in records if record["kind"] == "run"})
    for gpu in gpus:
        of_gpu = measured(rows, records, gpu)
        runs = sorted({len(m.runs.get(AS_IS, [])) for m in of_gpu.values()})
        helped = [m for m in of_gpu.values() if m.verdict().startswith("faster")]
        rest = [m.row["name"] for m in of_gpu.values() if not m.verdict().startswith("faster")]
        lines += [f"### {gpu.split(',')[0]}", "",
                  f"{len(of_gpu)} programs, {' to '.join(map(str, [runs[0], runs[-1]] if len(runs) > 1 else runs))} runs "
                  f"each way: {len(helped)} faster with cupool"
                  + (f"; it does not help {', '.join(rest)}" if rest else "") + ". "
                  + (f"Wrong results: {sum(m.wrong() for m in of_gpu.values())}."), "",
                  *(f"- {s['date']}: {s['gpu']}; {s['kernel']}; {s['versions']}; library {s['library']}; `{s['command']}`"
                    for s in sessions if s["gpu"] == gpu), "",
                  table(["program", "what it does", "time of", "as it is", "with cupool", "own pool", "times as fast",
                         "times as fast as its own pool", "peak as it is", "peak with cupool", "peak with its own pool",
                         "results", "verdict"], [m.cells() for m in of_gpu.values()])]
        counted = [calls for calls in (m.calls() for m in of_gpu.values()) if calls]
        if counted:
            lines += ["What they allocate: calls of one run, as cupool's report counts them.", "",
                      table(["program", *CALLS], counted)]
    ran = {record["program"] for record in records if record["kind"] == "run"}
    why = {record["program"]: record["why"] for record in records if record["kind"] == "not_run"}
    left = [[row["name"], row["repository"], why.get(row["name"], "no time")] for row in rows if row["name"] not in ran]
    owned = {record["program"] for record in records if record["kind"] == "run" and record["way"] == OWN}
    left += [[name.split(":")[0], name.split(":")[1], text] for name, text in why.items()
             if ":" in name and name.split(":")[0] not in owned]
    if left:
        lines += ["### Not run", "", table(["program", "of", "why"], left)]
    return "\n".join(lines)
