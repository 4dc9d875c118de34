# SPDX-License-Identifier: Apache-2.0
"""What there is to do, in slices: list the suites, run their tests in every mode, run alone again what
differs. Everything seen is recorded at once, and what is recorded is not done again.
"""
import collections
import concurrent.futures
import os
import shutil
import tempfile
import threading
import time
import zlib

import merge
from attempt import Attempt, environment_of
from kinds import NotListed

# kind, test: what is recorded, and of which test alone; "outcome" records all.
Slice = collections.namedtuple("Slice", "suite names mode kind test", defaults=("outcome", None))


class Work:
    def __init__(self, suites, recorder, options, explanations):
        self.suites = suites
        self.explanations = explanations
        self.recorder = recorder
        self.options = options
        self.lock = threading.Lock()
        self.attempts = 0

    # -- listing ---------------------------------------------------------------------------------
    def list_all(self):
        """Lists the suites that have not been listed; a suite that cannot be gets a reason."""
        known = {record["suite"] for record in self.recorder.of("listed")}
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as executor:
            list(executor.map(self.list_one, [suite for suite in self.suites if suite.name not in known]))

    def list_one(self, suite):
        scratch = tempfile.mkdtemp(prefix="cupool-suites-")
        try:
            why = suite.missing()
            if why:
                raise NotListed(why)
            names, broken = suite.list(scratch, environment_of(suite, "without", None, scratch))
            reasons = collections.Counter(filter(None, (left_out(suite, name) for name in names)))
            # Without those that are left out: of some suites these are a hundred thousand.
            chosen = [name for name in names if left_out(suite, name) is None]
            self.recorder.add(kind="listed", suite=suite.name, names=chosen, broken=broken, left_out=reasons)
            print(f"{suite.name}: {len(chosen)} of {len(names)} tests", flush=True)
        except NotListed as error:
            self.recorder.add(kind="not_run", suite=suite.name, why=str(error))
            print(f"{suite.name}: not run: {error}", flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def chosen(self, suite):
        """The names of a suite that are to be run."""
        listed = [record["names"] for record in self.recorder.of("listed") if record["suite"] == suite.name]
        return [name for name in (listed[-1] if listed else []) if left_out(suite, name) is None]

    # -- slices ----------------------------------------------------------------------------------
    def slices(self):
        """Two lists: slices that need the GPU alone, and the others, all suites in turn."""
        done = {(record["suite"], record["test"], record["mode"]) for record in self.recorder.of("outcome")}
        alone, by_suite = [], []
        for suite in self.suites:
            names = self.chosen(suite)
            wants = [name for name in names if suite.wants_alone([name])]
            alone += self.in_modes(suite, wants, done)
            apart = set(wants)
            by_suite.append(self.in_modes(suite, [name for name in names if name not in apart], done))
        # A slice's modes follow each other, so that a run that is cut off has compared what it has run.
        turns = []
        while any(by_suite):
            for of_suite in by_suite:
                turns += of_suite.pop(0) if of_suite else []
        return [piece for modes in alone for piece in modes], turns

    def in_modes(self, suite, names, done):
        found = []
        for begin, end in cuts(suite, names):
            modes = []
            for mode in self.options.modes:
                left = [name for name in names[begin:end] if (suite.name, name, mode) not in done]
                if left:
                    modes.append(Slice(suite, left, mode))
            if modes:
                found.append(modes)
        return found

    def again(self, kind):
        """Runs once more of the tests that differ, as many each side as are missing: "again", alone;
        "company", of those that agree alone, together with the rest of their slice."""
        suites = {suite.name: suite for suite in self.suites}
        unexplained, explained = [], []
        for name, result in merge.results(self.recorder.records).items():
            for test in result.tests.values() if name in suites else ():
                modes = [mode for mode in test.differing() if mode in self.options.modes]
                names, runs = test.names, test.again
                if kind == "company":
                    modes = [mode for mode in modes if test.alike_alone(mode, self.options.again) and not test.ending()]
                    names, runs = self.slice_of(suites[name], test.name) if modes else names, test.company
                known = all(self.explanations.of(name, test, mode) for mode in modes)
                for turn in range(self.options.again if modes else 0):
                    pieces = explained if known else unexplained
                    pieces += [Slice(suites[name], names, mode, kind, test.name)
                               for mode in (merge.WITHOUT, *modes) if len(runs.get(mode, [])) <= turn]
        return unexplained + explained

    def slice_of(self, suite, test):
        names = [name for name in self.chosen(suite) if not suite.wants_alone([name])]
        return next((names[begin:end] for begin, end in cuts(suite, names) if test in names[begin:end]), [test])

    # -- running ---------------------------------------------------------------------------------
    def run(self, slices, jobs, deadline):
        """Runs slices, and what remains of them, until the deadline. True if nothing is left."""
        queue = collections.deque(slices)
        busy = [0]

        def worker():
            while time.monotonic() < deadline:
                with self.lock:
                    piece = queue.popleft() if queue else None
                    busy[0] += piece is not None
                    if piece is None and not busy[0]:
                        return
                if piece is None:
                    time.sleep(0.05)  # what another one runs may leave something
                    continue
                rest = []
                try:
                    rest = self.run_slice(piece, deadline)
                finally:
                    with self.lock:
                        queue.extendleft(reversed(rest))
                        busy[0] -= 1

        threads = [threading.Thread(target=worker) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return not queue and time.monotonic() < deadline

    def run_slice(self, piece, deadline):
        attempt = Attempt(piece.suite, piece.names, piece.mode, self.options.library, deadline)
        with self.lock:
            self.attempts += 1
        if piece.test is not None:
            return self.record_again(piece, attempt)
        where = {"suite": piece.suite.name, "mode": piece.mode}
        for name, (outcome, seconds, message) in attempt.outcomes.items():
            self.recorder.add(kind="outcome", test=name, outcome=outcome, seconds=seconds, message=message, **where)
        if attempt.ending:
            self.recorder.add(kind="ending", names=piece.names, outcome=attempt.ending[0],
                              message=attempt.ending[1], **where)
        if attempt.counters:
            served = sum(value for key, value in attempt.counters.items() if key == "own_async_served_total" or
                         key.startswith("served_") and key != "served_passthrough_total")
            self.recorder.add(kind="served", allocations=served, **where)
        counts = collections.Counter(outcome for outcome, _, _ in attempt.outcomes.values())
        print(f"  {piece.suite.name} {piece.mode}: {piece.names[0]} +{len(piece.names) - 1}: "
              + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), flush=True)
        return [piece._replace(names=names) for names in attempt.split()]

    def record_again(self, piece, attempt):
        """Records the one test; returns what has to run because the process ended before it."""
        if piece.test in attempt.outcomes:
            outcome, _, message = attempt.outcomes[piece.test]
        elif attempt.stopped:
            return []
        elif piece.test in attempt.left:
            return [piece._replace(names=names) for names in attempt.split() if piece.test in names]
        else:
            outcome, message = attempt.ending or ("passed", "")
        self.recorder.add(kind=piece.kind, suite=piece.suite.name, test=piece.test, mode=piece.mode, outcome=outcome,
                          message=message)
        return []


def left_out(suite, name):
    """Why a test is not run in any mode, or None."""
    for rule, why in suite.left_out:
        if rule.search(name):
            return why
    if suite.every > 1 and zlib.crc32(name.encode()) % suite.every:
        return f"one test in {suite.every} is run, chosen by a sum of its name"
    return None


def cuts(suite, names):
    """Where slices begin and end. A binary's or a program's tests stay by themselves; files of pytest share
    a process until the slice is full, since each process imports the suite anew."""
    begin = 0
    for end in range(1, len(names) + 1):
        full = end - begin >= suite.slice
        apart = suite.row["kind"] != "pytest" and end < len(names) and \
            suite.file_of(names[end]) != suite.file_of(names[begin])
        if full or apart or end == len(names):
            yield begin, end
            begin = end
