# SPDX-License-Identifier: Apache-2.0
"""The table of public programs on made-up ones: one that cupool helps, one that it does not, one whose results
differ, one that is not there.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from common import records  # noqa: E402
from programs import AS_IS, CUPOOL, OWN  # noqa: E402
from table import Measured, measured, part  # noqa: E402

# A library that any program bears as a preload: it is there already.
HARMLESS = glob.glob("/lib*/*/libm.so.6") + glob.glob("/lib*/libm.so.6") + glob.glob("/usr/lib*/libm.so.6")
SHELL = "#!/bin/sh\n"
FILES = {
    # Prints a time that depends on how it runs, and counts its runs.
    "helped": SHELL + 'echo "took $$ ms, step ${LD_PRELOAD:+1}0 us, done"\n',
    "unhelped": SHELL + 'echo "step 7 us"\n',
    "wrong": SHELL + 'echo "sum ${LD_PRELOAD:-3}"\n',
    "varies": SHELL + 'echo "random $$"\n',
    "broken": SHELL + '[ -z "$LD_PRELOAD" ]\n',
    "fails": SHELL + "echo no data >&2; exit 3\n",
    "hangs": SHELL + '[ -z "$LD_PRELOAD" ] || exec sleep 100\n',
    # Slow as nothing but the first run of a program on a machine is.
    "cold": SHELL + 'if [ -e "$WARM" ]; then exit 0; fi; touch "$WARM"; sleep 2\n',
    # Leaves a report, as a process under cupool does.
    "reports": SHELL + """[ -z "$LD_PRELOAD" ] || echo '{"devices": [{"counters": {
        "malloc_calls_total": 12, "managed_malloc_calls_total": 3, "array_calls_total": 1}}]}' > "$CUPOOL_STATS_FILE"\n""",
    "pooled": SHELL + 'echo "step ${POOL-9} us"\n',
}
STEP = {"pattern": "step ([0-9]+)", "unit": "us", "what": "a step"}


class OfEvidence(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.out = os.path.join(self.scratch.name, "out")
        self.rows = []
        for name, text in FILES.items():
            path = os.path.join(self.scratch.name, "programs", name, "main")
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
            self.rows.append({"name": name, "repository": "made up", "command": [f"{name}/main"], "measures": "-"})
        self.row("unhelped")["time"] = self.row("helped")["time"] = self.row("pooled")["time"] = STEP
        self.row("pooled").update(environment={"POOL": "8"}, own={"name": "pool", "environment": {"POOL": None}})
        self.rows.append({"name": "absent", "repository": "made up", "command": ["absent/main"], "measures": "-"})

    def tearDown(self):
        self.scratch.cleanup()

    def row(self, name):
        return next(row for row in self.rows if row["name"] == name)

    def run_programs(self, *arguments):
        rows = os.path.join(self.scratch.name, "programs.json")
        with open(rows, "w", encoding="utf-8") as file:
            json.dump({"programs": self.rows}, file)
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "run.py"), "--folder", os.path.join(self.scratch.name, "programs"),
             "--list", rows, "--out", self.out, "--library", HARMLESS[0], "--runs", "2", *arguments,
             "--write", os.path.join(self.scratch.name, "evidence.md")], text=True, capture_output=True, timeout=60)
        self.assertNotIn("Traceback", done.stderr)
        with open(os.path.join(self.scratch.name, "evidence.md"), encoding="utf-8") as file:
            self.text = file.read()
        self.cells = {line.split("|")[1].split()[0]: [cell.strip() for cell in line.split("|")[1:-1]]
                      for line in reversed(self.text.splitlines()) if line.startswith("|")}
        return done.returncode

    def test_the_table_says_what_was_seen(self):
        self.row("hangs")["limit"] = 0.2
        self.assertEqual(self.run_programs(), 1, "results differ")
        self.assertEqual({name: cells[-2] for name, cells in self.cells.items() if len(cells) == 13 and name in FILES}, {
            "helped": "same", "unhelped": "same", "wrong": "DIFFER", "varies": "exit codes; output varies by itself",
            "broken": "FAILS with cupool: 1", "hangs": "FAILS with cupool: timeout", "cold": "same",
            "reports": "same", "pooled": "same"})
        self.assertIn("does not help: slower", self.cells["helped"][-1])
        self.assertEqual(self.cells["unhelped"][-1], "does not help: no difference beyond the spread")
        self.assertEqual(self.cells["pooled"][3:8], ["8 us (8–8)", "8 us (8–8)", "9 us (9–9)", "1.00", "1.12"])
        self.assertEqual(self.cells["fails"], ["fails", "made up", "fails as it is: exit 3: no data"])
        self.assertEqual(self.cells["absent"], ["absent", "made up", "not found: absent/main"])
        self.assertIn("it does not help", self.text)
        self.assertIn("| reports | 12 | 0 | 0 | 0 | 0 | 3 | 1 |", self.text)
        self.assertIn("| unhelped | 0 | 0 | 0 | 0 | 0 | 0 | 0 |", self.text)

    def test_a_run_goes_on_where_it_ended(self):
        self.assertEqual(self.run_programs("unhelped", "--budget", "0"), 2)
        self.assertEqual(self.run_programs("unhelped", "pooled"), 0)
        ran = sum(record["kind"] == "run" for record in records.read([self.out]))
        self.assertEqual(ran, 4 + 6)
        self.run_programs("unhelped", "pooled")
        self.assertEqual(sum(record["kind"] == "run" for record in records.read([self.out])), ran)

    def test_a_hang_does_not_outlast_the_budget(self):
        begin = time.monotonic()
        self.assertEqual(self.run_programs("hangs", "--budget", "4"), 3)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual({record["way"] for record in records.read([self.out]) if record["kind"] == "run"} - {AS_IS}, set())

    def test_a_cold_first_run_is_no_estimate_of_the_others(self):
        self.row("cold")["environment"] = {"WARM": os.path.join(self.scratch.name, "warm")}
        self.assertEqual(self.run_programs("cold", "--budget", "6"), 0)

    def test_the_later_of_two_sessions_counts(self):
        rows = [{"name": "helped"}]
        def of_session(session, seconds, ways=(AS_IS, CUPOOL)):
            return [{"kind": "run", "program": "helped", "gpu": "a", "session": session, "way": way, "exit": 0,
                     "seconds": seconds} for way in ways]
        both = of_session("2026-02", 2) + of_session("2026-01", 1)
        self.assertEqual(measured(rows, both, "a")["helped"].times(AS_IS), [2])
        more = both + of_session("2026-01", 1)
        self.assertEqual(measured(rows, more, "a")["helped"].times(AS_IS), [1, 1], "the one with more runs")

    def test_a_pool_that_ran_later_is_not_missing(self):
        row = {"name": "helped", "repository": "made up", "measures": "-"}
        missing = {"kind": "not_run", "program": "helped:own pool", "why": "not found: pool"}
        run = {"kind": "run", "program": "helped", "gpu": "a", "session": "2026-01", "exit": 0, "seconds": 1, "digest": "-",
               "peak_bytes": None}
        ways = [{**run, "way": way} for way in (AS_IS, CUPOOL)]
        self.assertIn("not found: pool", part([row], [missing, *ways]))
        self.assertNotIn("not found: pool", part([row], [missing, *ways, {**run, "way": OWN}]))

    def test_only_what_is_faster_in_every_run_is_called_so(self):
        def found(plain, mine):
            return Measured({}, {way: [{"exit": 0, "seconds": s, "digest": "x", "peak_bytes": None} for s in seconds]
                                 for way, seconds in ((AS_IS, plain), (CUPOOL, mine))})
        self.assertEqual(found([3, 4, 5], [1, 2, 2.5]).verdict(), "faster in every run")
        self.assertIn("no difference", found([3, 4, 5], [1, 2, 3]).verdict())
        self.assertIn("slower in every run", found([3, 4], [5, 6]).verdict())
        self.assertEqual(found([], [1]).verdict(), "no time was seen")
        self.assertAlmostEqual(found([3, 4, 5], [1, 2, 2.5]).ratio(CUPOOL, AS_IS), 2)

    def test_each_kind_of_gpu_has_its_table_of_one_session(self):
        rows = [{"name": "p", "repository": "r", "measures": "-"}]
        seen = [{"kind": "run", "program": "p", "way": way, "gpu": gpu, "session": session, "exit": 0, "seconds": 1,
                 "digest": "x", "peak_bytes": 1 << 20, "time": None}
                for gpu, session, count in (("A, 580", "1", 1), ("A, 580", "2", 3), ("B, 580", "3", 2))
                for way in (AS_IS, CUPOOL, OWN) for _ in range(count)]
        self.assertEqual(len(measured(rows, seen, "A, 580")["p"].runs[OWN]), 3)
        text = part(rows, seen)
        self.assertIn("### A\n\n1 programs, 3 runs", text)
        self.assertIn("### B\n\n1 programs, 2 runs", text)


if __name__ == "__main__":
    unittest.main()
