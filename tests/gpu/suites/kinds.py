# SPDX-License-Identifier: Apache-2.0
"""How tests of each kind are listed, started and followed: pytest, GoogleTest, plain programs.

A kind turns names into a command, and what that has written so far into events: ["begin", name] and
["end", name, outcome, seconds, message]. Outcomes: passed, failed, error, skipped, xfailed, xpassed; for
what gave none itself the caller has crash, timeout and missing.
"""
import hashlib
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys

from common.masks import compiled, masked

PLUGIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin")
SECONDS_FOR_A_LIST = 240


class NotListed(Exception):
    """A suite whose tests cannot be listed here; says why."""


def found_module(name):
    try:
        return importlib.util.find_spec(name)
    except ImportError:  # of a package around it
        return None


def place_of(row, folder):
    """A suite's folder: "path" below the prepared ones, or "in_module", an installed package with its tests in it."""
    if "path" in row:
        return os.path.abspath(os.path.join(folder, row["path"]))
    module = found_module(row["in_module"])
    return os.path.dirname(module.origin) if module and module.origin else ""


class Suite:
    """A row of suites.json, with its place in the folder of prepared suites."""

    def __init__(self, row, folder):
        self.row = row
        self.name = row["name"]
        self.path = place_of(row, folder)
        self.prepared = os.path.abspath(folder)
        self.arguments = [self.filled(word) for word in row.get("arguments", [])]
        self.environment = {key: self.filled(value) for key, value in row.get("environment", {}).items()}
        self.slice = row.get("slice", 100)
        self.timeout = row.get("timeout", 60)  # seconds without a test's begin or end
        self.start = row.get("start", 120)  # seconds until the first test begins: imports, collection
        self.alone = re.compile(row["alone"]) if "alone" in row else None
        self.left_out = [(re.compile(rule["tests"]), rule["why"]) for rule in row.get("leave_out", [])]
        self.every = row.get("every", 1)

    def filled(self, text):
        return text.replace("{folder}", self.path).replace("{prepared}", self.prepared)

    def missing(self):
        """Why it cannot run here, or None."""
        if not self.path or not os.path.isdir(self.path):
            return f"no folder {self.row['path']}" if "path" in self.row else f"no Python module {self.row['in_module']}"
        for module in self.row.get("needs", []):
            if found_module(module) is None:
                return f"no Python module {module}"
        return None

    def places(self):
        """The files or folders named by "tests", as paths below the suite's own."""
        found = []
        for pattern in self.row["tests"]:
            found += sorted(glob.glob(pattern, root_dir=self.path, recursive=True))
        if not found:
            raise NotListed(f"none of {', '.join(self.row['tests'])} is in {os.path.basename(self.path)}")
        return found

    def working_folder(self, scratch):
        return os.path.join(self.path, self.row["run_in"]) if "run_in" in self.row else scratch

    def wants_alone(self, names):
        """Whether one of the tests needs the GPU for itself."""
        return self.alone is not None and any(map(self.alone.search, names))

    def file_of(self, name):
        """What fails as a whole if its start fails."""
        raise NotImplementedError


def run_for_list(command, environment, folder):
    try:
        return subprocess.run(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                              errors="replace", capture_output=True, timeout=SECONDS_FOR_A_LIST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotListed(f"{command[0]}: {error}") from error


class Pytest(Suite):
    def __init__(self, row, folder):
        super().__init__(row, folder)
        paths = [PLUGIN, *map(self.filled, row.get("python_path", [])), os.environ.get("PYTHONPATH", "")]
        self.environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **self.environment,
                            "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def missing(self):
        return super().missing() or (None if found_module("pytest") else "no Python module pytest")

    def pytest(self, places, scratch, names):
        command = [sys.executable, "-m", "pytest", "-p", "cupool_outcomes", "-p", "no:cacheprovider", "-q",
                   "--rootdir", self.path, "--tb=short", "--continue-on-collection-errors", *self.arguments,
                   *(os.path.join(self.path, place) for place in places)]
        environment = {"CUPOOL_SUITES_EVENTS": os.path.join(scratch, "events")}
        if names is not None:
            environment["CUPOOL_SUITES_NAMES"] = os.path.join(scratch, "names")
            with open(environment["CUPOOL_SUITES_NAMES"], "w", encoding="utf-8") as file:
                file.write("\n".join(names) + "\n")
        return command, environment

    def list(self, scratch, environment):
        command, more = self.pytest(self.places(), scratch, None)
        done = run_for_list(command, {**environment, **more}, self.working_folder(scratch))
        events = self.follow(scratch, None)
        names = [event[1] for event in events if event[0] == "listed"]
        if not names:
            raise NotListed(f"pytest exit {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
        broken = [f"{event[1]}: {event[2]}" for event in events if event[0] == "broken"]
        return list(dict.fromkeys(names)), broken

    def command(self, names, scratch):
        files = dict.fromkeys(self.file_of(name) for name in names)
        return self.pytest(files, scratch, names)

    def follow(self, scratch, _):
        try:
            with open(os.path.join(scratch, "events"), encoding="utf-8") as file:
                lines = file.read().split("\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def normal_end(self, code):
        return code in (0, 1, 5)  # all passed, some failed, none left of those asked for

    def file_of(self, name):
        return name.split("::")[0]


class GoogleTest(Suite):
    # What a test itself prints may stand before it in the line.
    LINE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]*\.[^\s,]+)(?:,.*?)?(?: \((\d+) ms\))?$")
    OUTCOMES = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}

    def list(self, scratch, environment):
        names, broken = [], []
        for place in self.places():
            binary = os.path.join(self.path, place)
            done = run_for_list([binary, *self.arguments, "--gtest_list_tests"], environment,
                                self.working_folder(scratch))
            if done.returncode != 0:
                broken.append(f"{place}: exit {done.returncode} {done.stderr[-200:]}")
                continue
            group = ""
            for line in done.stdout.splitlines():
                line = line.split("#")[0].rstrip()
                if line.endswith(".") and not line.startswith(" "):
                    group = line
                elif line.startswith("  ") and group and "DISABLED_" not in group + line:
                    names.append(f"{place}:{group}{line.strip()}")
        if not names:
            raise NotListed("; ".join(broken) or "no tests")
        return names, broken

    def command(self, names, scratch):
        cases = ":".join(name.split(":", 1)[1] for name in names)
        return [os.path.join(self.path, self.file_of(names[0])), *self.arguments, "--gtest_color=no",
                f"--gtest_filter={cases}"], {}

    def follow(self, scratch, names):
        place, events, ended, printed = self.file_of(names[0]), [], set(), []
        with open(os.path.join(scratch, "output"), encoding="utf-8", errors="replace") as file:
            for line in file:
                found = self.LINE.search(line.rstrip("\n"))
                if not found:
                    printed.append(line)
                    continue
                word, name = found.group(1), f"{place}:{found.group(2)}"
                if word == "RUN":
                    events.append(["begin", name])
                    printed = []
                elif name not in ended:  # failed ones are named again at the end
                    ended.add(name)
                    message = first_failure(printed) if word == "FAILED" else ""
                    events.append(["end", name, self.OUTCOMES[word], int(found.group(3) or 0) / 1e3, message])
        return events

    def normal_end(self, code):
        return code in (0, 1)

    def file_of(self, name):
        return name.split(":", 1)[0]


def first_failure(printed, length=200):
    """What a test of GoogleTest says of its first failure: the lines behind its place."""
    for number, line in enumerate(printed):
        if ": Failure" in line:
            return " ".join(" ".join(printed[number + 1:number + 4]).split())[:length]
    return ""


class Programs(Suite):
    """Each program is one test: exit code 0 passes; "output" compares its output, times masked, as well."""

    def __init__(self, row, folder):
        super().__init__(row, folder)
        self.slice = 1
        self.rows = {program["name"]: program for program in row["tests"]}
        self.masks = compiled(row.get("mask", []))

    def list(self, scratch, environment):
        names = [name for name, program in self.rows.items()
                 if os.path.exists(os.path.join(self.path, program["command"][0]))]
        broken = [f"{name}: not there" for name in self.rows if name not in names]
        if not names:
            raise NotListed(f"none of its {len(self.rows)} programs is in {os.path.basename(self.path)}")
        return names, broken

    def command(self, names, scratch):
        first, *more = self.rows[names[0]]["command"]
        return [os.path.join(self.path, first), *map(self.filled, more)], {}

    def follow(self, scratch, names):
        return []

    def conclude(self, name, code, scratch):
        """The outcome of an ended program, with a digest of its output if that is compared, and its exit code."""
        skipped = self.rows[name].get("skipped_by")
        outcome = "passed" if code == 0 else "skipped" if code == skipped else "failed"
        digest = ""
        if self.rows[name].get("output", False):
            with open(os.path.join(scratch, "output"), encoding="utf-8", errors="replace") as file:
                text = masked(file.read().replace(scratch, ""), self.masks)
            digest = ", output " + hashlib.sha256(text.encode()).hexdigest()[:12]
        return outcome + digest, f"exit {code}"

    def normal_end(self, code):
        return code >= 0

    def file_of(self, name):
        return name


KINDS = {"pytest": Pytest, "gtest": GoogleTest, "programs": Programs}


def suite(row, folder):
    return KINDS[row["kind"]](row, folder)
