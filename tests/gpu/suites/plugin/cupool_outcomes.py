# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that writes a line when a test begins and one when it has ended, so that a crash or a
hang is that of a known test, and that picks tests by a list of names. Files come by two variables:
CUPOOL_SUITES_EVENTS, written to, and CUPOOL_SUITES_NAMES, a test's name a line; without names all tests
are listed and none is run.
"""
import json
import os

import pytest


def first_words(text, length=200):
    return " ".join(str(text).split())[:length]


class Outcomes:
    def __init__(self, events, names):
        # Unbuffered and appended to: a line is there before the test can crash.
        self.events = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.process = os.getpid()
        self.names = None
        if names:
            with open(names, encoding="utf-8") as file:
                self.names = set(file.read().split("\n")) - {""}
        self.phases = []

    def write(self, *event):
        if os.getpid() == self.process:  # a test's forked child writes no outcomes
            os.write(self.events, (json.dumps(event) + "\n").encode())

    def pytest_collectreport(self, report):
        if report.failed:
            self.write("broken", report.nodeid, first_words(report.longrepr))

    @pytest.hookimpl(trylast=True)  # the suite's own plugins come first
    def pytest_collection_modifyitems(self, config, items):
        if self.names is None:
            for item in items:
                self.write("listed", item.nodeid)
            items[:] = []
            return
        left = [item for item in items if item.nodeid not in self.names]
        items[:] = [item for item in items if item.nodeid in self.names]
        config.hook.pytest_deselected(items=left)

    def pytest_runtest_logstart(self, nodeid):
        self.phases = []
        self.write("begin", nodeid)

    def pytest_runtest_logreport(self, report):
        self.phases.append(report)
        if report.when == "teardown":
            self.write("end", report.nodeid, *self.outcome())

    def outcome(self):
        seconds = round(sum(phase.duration for phase in self.phases), 3)
        for phase in self.phases:
            if phase.failed:
                crash = getattr(phase.longrepr, "reprcrash", None)
                message = first_words(crash.message if crash else phase.longrepr)
                return "failed" if phase.when == "call" else "error", seconds, message
            expected = hasattr(phase, "wasxfail")
            if phase.skipped:
                return "xfailed" if expected else "skipped", seconds, ""
            if expected:
                return "xpassed", seconds, ""
        return "passed", seconds, ""


def pytest_configure(config):
    events = os.environ.get("CUPOOL_SUITES_EVENTS")
    if events:
        config.pluginmanager.register(Outcomes(events, os.environ.get("CUPOOL_SUITES_NAMES")))
