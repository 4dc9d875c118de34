# SPDX-License-Identifier: Apache-2.0
"""One process with some tests of a suite: started in a mode, followed, ended when it makes no progress, and
what became of each of its tests.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time

from common import reports

# What each mode adds to the environment beside the preload; "without" has no preload.
MODES = {
    "without": None,
    "default": {},
    "sync": {"CUPOOL_FREE_MODE": "sync"},
    "malloc": {"CUPOOL_BACKEND": "malloc"},
    "first": {"CUPOOL_POOL_START": "first"},
    "serve": {"CUPOOL_ASYNC": "serve"},
}
POLL_SECONDS = 0.05
PROGRESS_SECONDS = 1  # between looks at what a process has written, which costs more than a poll
KEPT_OUTPUT = 300


def environment_of(suite, mode, library, scratch):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("CUPOOL_") or key.startswith("CUPOOL_SIM_")}
    environment.pop("LD_PRELOAD", None)
    environment.update(suite.environment)
    if MODES[mode] is not None:
        environment.update(LD_PRELOAD=library, **reports.variables(scratch), **MODES[mode])
    return environment


class Attempt:
    """outcomes: name -> (outcome, seconds, message). left: names that another process has to run.
    ending: None, or (outcome, message) of a process that ended badly outside any test."""

    def __init__(self, suite, names, mode, library, deadline):
        self.suite = suite
        self.names = names
        self.deadline = deadline
        self.outcomes = {}
        self.left = []
        self.ending = None
        self.stopped = False
        scratch = tempfile.mkdtemp(prefix="cupool-suites-")
        try:
            self.run(mode, library, scratch)
            self.counters = reports.counters(scratch) if mode != "without" else {}
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def run(self, mode, library, scratch):
        command, more = self.suite.command(self.names, scratch)
        environment = {**environment_of(self.suite, mode, library, scratch), **more}
        with open(os.path.join(scratch, "output"), "w", encoding="utf-8") as output:
            try:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.STDOUT, start_new_session=True,
                                           cwd=self.suite.working_folder(scratch))
            except OSError as error:
                self.outcomes = {name: ("missing", 0, str(error)) for name in self.names}
                return
        begin = time.monotonic()
        code = self.follow(process, scratch)
        try:
            os.killpg(process.pid, signal.SIGKILL)  # children that outlive it hold memory of the GPU
        except ProcessLookupError:
            pass
        process.wait()
        self.judge(code, time.monotonic() - begin, scratch)

    def follow(self, process, scratch):
        """The exit code; "timeout" after too long without progress, "stopped" at the deadline."""
        seen, latest = 0, time.monotonic()
        looked, between = latest, min(PROGRESS_SECONDS, self.suite.timeout / 5)
        while True:
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if now > self.deadline:
                self.stopped = True
                return "stopped"
            if now - looked < between:
                continue
            looked = now
            count = len(self.suite.follow(scratch, self.names))
            if count > seen:
                seen, latest = count, now
            if now - latest > self.suite.timeout + (0 if seen else self.suite.start):
                return "timeout"

    def judge(self, code, seconds, scratch):
        events = self.suite.follow(scratch, self.names)
        wanted = set(self.names)
        begun = None
        for event in events:
            if event[0] == "begin":
                begun = event[1]
            elif event[0] == "end" and event[1] in wanted:
                self.outcomes[event[1]] = tuple(event[2:5])
                begun = None if begun == event[1] else begun
        if code == "stopped":
            return
        bad = "timeout" if code == "timeout" else "crash"
        message = self.tail(code, scratch)
        if hasattr(self.suite, "conclude"):  # one program, one test
            name = self.names[0]
            good = code != "timeout" and self.suite.normal_end(code)
            outcome, text = self.suite.conclude(name, code, scratch) if good else (bad, message)
            self.outcomes[name] = (outcome, round(seconds, 3), text)
            return
        rest = [name for name in self.names if name not in self.outcomes]
        if begun in rest:
            # The process ended in it, be it with an exit code that looks well.
            self.outcomes[begun] = (bad, round(seconds, 3), message)
            self.left = [name for name in rest if name != begun]
        elif code != "timeout" and self.suite.normal_end(code):
            broken = {event[1]: event[2] for event in events if event[0] == "broken"}
            for name in rest:
                self.outcomes[name] = ("missing", 0, broken.get(self.suite.file_of(name), ""))
        elif self.outcomes or not rest:
            self.ending, self.left = (bad, message), rest
        elif len({self.suite.file_of(name) for name in rest}) > 1:
            self.left = rest  # the caller goes on file by file
        else:
            self.outcomes = {name: (bad, 0, "at the start: " + message) for name in rest}

    def tail(self, code, scratch):
        word = code if code == "timeout" else f"signal {-code}" if code < 0 else f"exit {code}"
        with open(os.path.join(scratch, "output"), encoding="utf-8", errors="replace") as file:
            text = " ".join(file.read().split())
        return f"{word}: ...{text[-KEPT_OUTPUT:]}"

    def split(self):
        """The lists of names that further processes have to run."""
        if self.outcomes or not self.left:
            return [self.left] if self.left else []
        by_file = {}
        for name in self.left:
            by_file.setdefault(self.suite.file_of(name), []).append(name)
        return list(by_file.values())
