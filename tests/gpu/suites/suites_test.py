# SPDX-License-Identifier: Apache-2.0
"""The runner of suites on made-up ones: tests that pass, fail, crash, hang, vary and differ in a mode, and
the table that comes of them.

suites_test.py gtest | programs | pytest | tables; pytest leaves with 77 where it is not installed.
"""
import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import merge  # noqa: E402
import sections  # noqa: E402
from common import document, records  # noqa: E402
from kinds import GoogleTest  # noqa: E402
from tables import Summary  # noqa: E402
from work import Work  # noqa: E402

# A library that any program bears as a preload: it is there already.
HARMLESS = glob.glob("/lib*/*/libm.so.6") + glob.glob("/lib*/libm.so.6") + glob.glob("/usr/lib*/libm.so.6")

# A binary that lists, picks and prints tests as GoogleTest does.
GOOGLE_TEST = '''#!%s -IS
import os, signal, sys, time
preloaded = "LD_PRELOAD" in os.environ
sync = os.environ.get("CUPOOL_FREE_MODE") == "sync"

def dies(): os.kill(os.getpid(), signal.SIGSEGV)

def varies():
    count = 0  # runs may overlap: each takes a number of its own
    while True:
        try:
            os.mkdir(os.path.join("{state}", ("preloaded%%d" if preloaded else "plain%%d") %% count))
            return preloaded or count %% 2 == 0
        except FileExistsError:
            count += 1

def served():
    if preloaded:
        with open(os.environ["CUPOOL_STATS_FILE"].replace("%%p", str(os.getpid())), "w") as file:
            file.write('{{"devices": [{{"counters": {{"served_fresh_total": 7, "own_async_served_total": 2, "served_passthrough_total": 5}}}}]}}')
    return True

tests = {{
    "All.passes": served,
    "All.fails": lambda: print("tests.cpp:7: Failure\\nValue of: 1\\n  Actual: 2"),
    "All.skips": lambda: "skips",
    "All.crashes": dies,
    "All.after_the_crash": lambda: True,
    "All.differs_in_sync": lambda: not sync,
    "All.differs_and_is_known": lambda: not preloaded,
    "All.varies": varies,
    "All.fails_in_company": lambda: not (preloaded and len(wanted) > 1),
    "All.leaves_early": lambda: os._exit(0),
    "All.hangs": lambda: time.sleep(100),
    "All.takes_long": lambda: time.sleep(0.5) or True,
    "Each/Of.them/0": lambda: True,
    "All.DISABLED_one": lambda: 1 / 0,
}}
if "--gtest_list_tests" in sys.argv:
    print("Running main() from nowhere")
    for group in dict.fromkeys(name.rpartition(".")[0] for name in tests):
        print(group + ".")
        for name in tests:
            if name.startswith(group + "."):
                print("  " + name[len(group) + 1:] + "  # GetParam() = 0")
    sys.exit(0)
wanted = [a for a in sys.argv if a.startswith("--gtest_filter=")][0].partition("=")[2].split(":")
for name in tests:
    if name not in wanted:
        continue
    print("[ RUN      ]", name, flush=True)
    done = tests[name]()
    word = "[  SKIPPED ]" if done == "skips" else "[       OK ]" if done else "[  FAILED  ]"
    print("words of the test" + word, name, "(2 ms)", flush=True)
if "All.passes" in wanted and sync:
    dies()
''' % sys.executable

PYTEST = '''
import os, signal, time
import pytest

preloaded = "LD_PRELOAD" in os.environ

@pytest.mark.parametrize("value", [1, 2])
def test_passes(value): pass

def test_fails(): assert not os.environ.get("HOME_OF_NOBODY", "0x1f"), "at 0x%x" % id(object())

@pytest.mark.skip
def test_skips(): pass

@pytest.mark.xfail
def test_fails_as_expected(): assert False

@pytest.fixture
def broken(): raise RuntimeError("no fixture")

def test_error(broken): pass

def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)

def test_hangs(): time.sleep(100)

def test_differs(): assert os.environ.get("CUPOOL_BACKEND") != "malloc"

def test_left_out(): os.kill(os.getpid(), signal.SIGSEGV)
'''


class Runner(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.scratch.name, "suites")
        self.out = os.path.join(self.scratch.name, "out")
        self.document = os.path.join(self.scratch.name, "evidence.md")
        self.rows, self.explanations = [], []

    def tearDown(self):
        self.scratch.cleanup()

    def add(self, name, kind, files, **row):
        folder = os.path.join(self.folder, name)
        for path, text in files.items():
            path = os.path.join(folder, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        row = {"timeout": 0.5, "start": 5, "tests": ["*"], **row}
        self.rows.append({"name": name, "version": "1.0", "kind": kind, "path": name, **row})

    def run_suites(self, *arguments, modes="without,default,sync", budget="60"):
        for name, content in (("list", {"suites": self.rows}), ("why", {"explanations": self.explanations})):
            with open(os.path.join(self.scratch.name, name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "run.py"), "--folder", self.folder, "--out", self.out, "--list",
             os.path.join(self.scratch.name, "list"), "--explanations", os.path.join(self.scratch.name, "why"),
             "--modes", modes, "--library", HARMLESS[0], "--jobs", "4", "--again", "2", "--budget", budget,
             "--write", self.document, *arguments], text=True, capture_output=True, timeout=100)
        self.log = done.stdout + done.stderr
        self.assertNotIn("Traceback", self.log)
        with open(os.path.join(self.out, "suites.json"), encoding="utf-8") as file:
            self.found = json.load(file)
        return done.returncode

    def outcomes(self, mode):
        return {record["test"].split(":")[-1]: record["outcome"]
                for record in records.read([self.out]) if record["kind"] == "outcome" and record["mode"] == mode}

    def verdicts(self):
        return {(row["test"].split(":")[-1], row["mode"]): row["verdict"] for row in self.found["differing"]}


class OfGoogleTest(Runner):
    def setUp(self):
        super().setUp()
        state = os.path.join(self.scratch.name, "state")
        os.mkdir(state)
        self.add("google", "gtest", {"bin/tests": GOOGLE_TEST.replace("{state}", state).replace("{{", "{")
                 .replace("}}", "}")}, tests=["bin/*"])
        self.explanations = [{"suite": "google", "test": "is_known", "why": "it looks at its environment"}]

    def leave_out_all_but(self, *names):
        self.rows[0]["leave_out"] = [{"tests": f":(?!All.({'|'.join(names)})$)", "why": "not of this test"}]
        self.rows[0]["timeout"] = 20  # none of them hangs, and the machine may be busy

    def test_every_test_gets_its_outcome_and_every_difference_its_verdict(self):
        self.rows[0]["timeout"] = 1.5  # one takes half a second, and the machine may be busy
        self.assertEqual(self.run_suites(), 1, "something differs unexplained")
        self.assertEqual(self.outcomes("without"), {
            "All.passes": "passed", "All.fails": "failed", "All.skips": "skipped", "All.crashes": "crash",
            "All.after_the_crash": "passed", "All.hangs": "timeout", "All.leaves_early": "crash",
            "All.takes_long": "passed",
            "All.differs_in_sync": "passed", "All.differs_and_is_known": "passed", "All.varies": "passed",
            "All.fails_in_company": "passed", "Each/Of.them/0": "passed"})
        self.assertEqual({record["message"] for record in records.read([self.out])
                          if record.get("test", "").endswith("All.fails")}, {"Value of: 1 Actual: 2"})
        verdicts = self.verdicts()
        self.assertEqual(verdicts.pop(("All.differs_in_sync", "sync")), merge.UNEXPLAINED)
        for mode in ("default", "sync"):
            self.assertEqual(verdicts.pop(("All.differs_and_is_known", mode)), merge.EXPLAINED)
            self.assertEqual(verdicts.pop(("All.fails_in_company", mode)), merge.UNEXPLAINED)
        self.assertEqual(verdicts, {})

    def test_what_varies_without_cupool_or_comes_once_is_told_apart(self):
        self.leave_out_all_but("varies", "after_the_crash")
        self.run_suites(modes="without")
        with open(os.path.join(self.out, "suites.jsonl"), "a", encoding="utf-8") as file:
            for test in ("varies", "after_the_crash"):
                file.write(json.dumps({"kind": "outcome", "suite": "google", "test": f"bin/tests:All.{test}",
                                       "mode": "default", "outcome": "failed", "seconds": 0, "message": ""}) + "\n")
        self.assertEqual(self.run_suites(modes="without,default"), 0)
        self.assertEqual(self.verdicts(), {("All.varies", "default"): merge.FLAKY,
                                           ("All.after_the_crash", "default"): merge.NOT_SEEN_AGAIN})

    def test_a_process_that_dies_after_its_tests_is_seen(self):
        self.leave_out_all_but("passes")
        self.assertEqual(self.run_suites(), 1)
        self.assertEqual([(row["test"], row["mode"], row["with"], row["verdict"]) for row in self.found["differing"]],
                         [("end of the process after bin/tests:All.passes", "sync", "crash", merge.UNEXPLAINED)])
        self.assertEqual(self.found["suites"]["google"]["default"]["served"], 9)

    def test_a_run_that_is_cut_off_is_continued(self):
        self.leave_out_all_but("passes", "fails", "skips", "crashes", "after_the_crash", "takes_long")
        self.rows[0]["slice"] = 2
        self.assertIn(self.run_suites(budget="0.4"), (1, 3), "1: what has run may differ already")
        self.assertIn("Not finished", self.log)
        before = len(records.read([self.out]))
        self.run_suites()
        self.assertEqual(len(self.outcomes("sync")), 6)
        once = len(records.read([self.out]))
        self.assertGreater(once, before)
        self.run_suites()
        self.assertEqual([record["kind"] for record in records.read([self.out])[once:]], ["session"])

    def test_the_document_has_the_part_once(self):
        self.leave_out_all_but("passes", "fails", "differs_and_is_known")
        with open(self.document, "w", encoding="utf-8") as file:
            file.write("# Title\n\n" + document.marks("suites")[0] + "of long ago\n" + document.marks("suites")[1] + "\nbehind\n")
        self.run_suites(modes="without,default")
        with open(self.document, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("# Title\n") and text.endswith("\nbehind\n"), text)
        self.assertNotIn("of long ago", text)
        self.assertIn("3 tests of 1 suites", text)
        self.assertIn("it looks at its environment", text)

    def test_sections_of_other_suites_stay_in_the_document(self):
        self.leave_out_all_but("passes", "differs_and_is_known")
        other = Summary([{"name": "other", "version": "1"}], merge.results(
            [{"kind": "outcome", "suite": "other", "test": "t", "mode": mode, "outcome": outcome, "message": ""}
             for mode, outcome in (("without", "passed"), ("sync", "failed"))]),
            merge.Explanations([]), ["without", "sync"], 2).markdown([], "### other")
        document.write_part(self.document, "suites", sections.text({"other": other}, ["other"]))
        for _ in range(2):
            self.run_suites(modes="without,default")
            with open(self.document, encoding="utf-8") as file:
                text = file.read()
            self.assertIn("3 tests of 2 suites, 3 comparisons, **1 differ unexplained**", text)
            self.assertEqual(text.count("### other"), 1)
            self.assertEqual(sections.of_document(self.document)["other"].strip(), other.strip())
        self.assertIn("; library ", text)

    def test_a_section_names_the_runs_of_its_suite_alone(self):
        def outcome(suite, kind="outcome"):
            return {"kind": kind, "suite": suite}
        runs = [{"kind": "session", "date": date} for date in ("first", "second", "third")]
        rows = [runs[0], outcome("a"), outcome("a"), runs[1], outcome("b"), runs[2], outcome("a", "again")]
        self.assertEqual([run["date"] for run in sections.sessions_of("a", rows)], ["first", "third"])
        self.assertEqual([run["date"] for run in sections.sessions_of("b", rows)], ["second"])


class OfPrograms(Runner):
    def test_exit_codes_and_output_are_compared(self):
        script = "#!/bin/sh\n"
        files = {
            "passes": script + "echo took 1.$$ ms\n",
            "fails": script + "exit 3\n",
            "waived": script + "exit 77\n",
            "crashes": script + "kill -SEGV $$\n",
            "hangs": script + "sleep 100\n",
            "prints": script + 'echo "sum ${CUPOOL_FREE_MODE:-auto}"\n',
            "argued": script + '[ "$1" = "$DATA/passes" ]\n',
        }
        programs = [{"name": name, "command": [name], "output": name in ("passes", "prints")} for name in files]
        programs[2]["skipped_by"] = 77
        programs[-1]["command"].append("{folder}/passes")
        self.add("programs", "programs", files, tests=[*programs, {"name": "absent", "command": ["absent"]}],
                 environment={"DATA": "{folder}"}, start=0.2)
        self.add("nowhere", "programs", {}, tests=[])
        self.rows.append({"name": "no module", "version": "1", "kind": "gtest", "in_module": "nobody", "tests": ["*"]})
        self.assertEqual(self.run_suites(), 1)
        plain = self.outcomes("without")
        passed = plain.pop("passes")
        self.assertRegex(passed, "^passed, output [0-9a-f]{12}$")
        self.assertRegex(plain.pop("prints"), "^passed, output")
        self.assertEqual(plain, {"fails": "failed", "waived": "skipped", "crashes": "crash", "hangs": "timeout",
                                 "argued": "passed"})
        self.assertEqual(self.outcomes("default")["passes"], passed)
        self.assertEqual(self.verdicts(), {("prints", "sync"): merge.UNEXPLAINED})
        with open(self.document, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("| nowhere | all | no folder nowhere |", text)
        self.assertIn("| no module | all | no Python module nobody |", text)
        self.assertIn("absent: not there", text)

    def test_what_needs_the_gpu_for_itself_gets_it_again_too(self):
        body = '#!/bin/sh\nmkdir "$STATE/taken" || exit 9\nsleep 0.1\nrmdir "$STATE/taken"\n[ -z "$LD_PRELOAD" ]\n'
        state = os.path.join(self.scratch.name, "state")
        os.mkdir(state)
        self.add("programs", "programs", {"first": body, "second": body}, environment={"STATE": state}, alone=".", timeout=5,
                 tests=[{"name": name, "command": [name]} for name in ("first", "second")])
        self.assertEqual(self.run_suites(modes="without,default"), 1)
        self.assertEqual(self.verdicts(), {(name, "default"): merge.UNEXPLAINED for name in ("first", "second")})


class OfPytest(Runner):
    def test_every_test_gets_its_outcome(self):
        self.add("py", "pytest", {"tests/test_all.py": PYTEST, "tests/test_broken.py": "import no_such_module\n",
                                  "tests/conftest.py": "", "tests/test_start.py": textwrap.dedent("""
            import os, signal
            if "LD_PRELOAD" in os.environ: os.kill(os.getpid(), signal.SIGSEGV)
            def test_one(): pass
            """)}, tests=["tests"], leave_out=[{"tests": "left_out", "why": "it would crash"}])
        self.assertEqual(self.run_suites(modes="without,default,malloc"), 1)
        plain = {"test_passes[1]": "passed", "test_passes[2]": "passed", "test_fails": "failed", "test_skips": "skipped",
                 "test_fails_as_expected": "xfailed", "test_error": "error", "test_crashes": "crash",
                 "test_hangs": "timeout", "test_differs": "passed", "test_one": "passed"}
        self.assertEqual(self.outcomes("without"), plain)
        self.assertEqual(self.outcomes("default"), {**plain, "test_one": "crash"})
        self.assertEqual(self.verdicts(), {("test_one", mode): merge.UNEXPLAINED for mode in ("default", "malloc")}
                         | {("test_differs", "malloc"): merge.UNEXPLAINED})
        with open(self.document, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("| py | 1 | it would crash |", text)
        self.assertIn("tests/test_broken.py", text)


class OfTables(unittest.TestCase):
    def test_lines_of_google_test(self):
        def seen(line):
            found = GoogleTest.LINE.search(line)
            return found and found.groups()
        self.assertEqual(seen("[ RUN      ] A.b"), ("RUN", "A.b", None))
        self.assertEqual(seen("[       OK ] I/A.b/3 (12 ms)"), ("OK", "I/A.b/3", "12"))
        self.assertEqual(seen("[  FAILED  ] I/A.b/0, where GetParam() = 4-byte object <00-00> (0 ms)"),
                         ("FAILED", "I/A.b/0", "0"))
        self.assertEqual(seen("[  FAILED  ] I/A.b/0, where GetParam() = 4"), ("FAILED", "I/A.b/0", None))
        self.assertIsNone(seen("[  FAILED  ] 2 tests, listed below:"))
        self.assertIsNone(seen("[  PASSED  ] 2 tests."))

    def test_failures_that_say_something_else_are_counted(self):
        rows = [("a", "without", "failed", "error 700 at 0x7f1"), ("a", "default", "failed", "error 2 at 0x8"),
                ("b", "without", "failed", "out of memory"), ("b", "default", "failed", "wrong result")]
        found = merge.results([{"kind": "outcome", "suite": "s", "test": test, "mode": mode, "outcome": outcome,
                                "message": message} for test, mode, outcome, message in rows])
        count = merge.Count(found["s"], "default", merge.Explanations([]), 3)
        self.assertEqual((count.alike["failed"], count.other_message, count.unexplained()), (2, 1, 0))

    def test_a_difference_that_was_not_run_again_is_not_explained(self):
        found = merge.results([{"kind": "outcome", "suite": "s", "test": "t", "mode": mode, "outcome": outcome,
                                "message": ""} for mode, outcome in (("without", "passed"), ("sync", "failed"))])
        for rules, unexplained in (([], 1), ([{"suite": "s", "test": "^t$", "why": "known"}], 0),
                                   ([{"suite": "s", "test": "t", "modes": ["malloc"], "why": "not here"}], 1),
                                   ([{"suite": "s", "test": "t", "outcomes": ["passed", "failed"], "why": "so"}], 0),
                                   ([{"suite": "s", "test": "t", "outcomes": ["failed", "passed"], "why": "not so"}], 1)):
            self.assertEqual(merge.Count(found["s"], "sync", merge.Explanations(rules), 3).unexplained(), unexplained)

    def test_an_explanation_may_ask_for_what_a_failure_says(self):
        rules = [{"suite": "s", "test": "t", "outcomes": ["passed", "failed"], "message": "^signal 9", "why": "killed"}]
        for message, unexplained in (("signal 9: ...", 0), ("wrong result", 1)):
            found = merge.results([{"kind": "outcome", "suite": "s", "test": "t", "mode": mode, "outcome": outcome,
                                    "message": message} for mode, outcome in (("without", "passed"), ("sync", "crash"))])
            self.assertEqual(merge.Count(found["s"], "sync", merge.Explanations(rules), 3).unexplained(), unexplained)

    def test_what_ran_in_some_modes_is_counted_apart(self):
        rows = [{"kind": "outcome", "suite": "s", "test": test, "mode": mode, "outcome": "passed", "message": ""}
                for test, modes in (("a", ("without", "sync", "first")), ("b", ("without", "sync")), ("c", ("sync",)))
                for mode in modes]
        summary = Summary([{"name": "s", "version": "1"}], merge.results(rows), merge.Explanations([]),
                          ["without", "sync", "first", "malloc"], 3)
        self.assertIn("2 tests of 1 suites ran without cupool and with it, 1 in each of 2 modes: 3 comparisons",
                      summary.headline())
        self.assertEqual([line.split("|")[3].strip() for line in summary.main_table().split("\n")[2:] if line],
                         ["sync", "first"])

    def test_what_is_explained_is_run_again_last(self):
        rows = [{"kind": "outcome", "suite": "s", "test": test, "mode": mode, "outcome": outcome, "message": ""}
                for test in ("a", "b") for mode, outcome in (("without", "passed"), ("sync", "failed"))]
        options = types.SimpleNamespace(modes=["without", "sync"], again=2)
        rules = [{"suite": "s", "test": "a", "why": "known"}]
        work = Work([types.SimpleNamespace(name="s")], types.SimpleNamespace(records=rows), options,
                    merge.Explanations(rules))
        self.assertEqual([piece.test for piece in work.again("again")], ["b"] * 4 + ["a"] * 4)

    def test_torn_lines_and_packed_files_are_read(self):
        import gzip
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"kind": "x"}\n{"kind": "to')
            recorder = records.Recorder(path, records.read([path]))
            recorder.add(kind="y")
            with gzip.open(os.path.join(folder, "b.jsonl.gz"), "wt", encoding="utf-8") as file:
                file.write('{"kind": "z"}\n')
            self.assertEqual([record["kind"] for record in records.read([folder])], ["x", "y", "z"])


PARTS = {"gtest": OfGoogleTest, "programs": OfPrograms, "pytest": OfPytest, "tables": OfTables}

if __name__ == "__main__":
    if sys.argv[1] == "pytest" and importlib.util.find_spec("pytest") is None:
        print("pytest is not installed")
        sys.exit(77)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(PARTS[sys.argv[1]])
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(tests).wasSuccessful())
