# SPDX-License-Identifier: Apache-2.0
"""Outcomes of all modes side by side, by the test's name: what is alike, what differs, and why.

Records: "session" (machine and command), "listed" (names of a suite, those that are left out counted), "not_run" (why a suite has none),
"outcome" (suite, test, mode), "ending" (a process that ended badly outside its tests), "again" (a test run
alone once more), "company" (again, with the rest of its slice), "served" (allocations that cupool served).
"""
import re

WITHOUT = "without"
END = "end of the process after"
# How a difference is judged; only the last two ask for somebody's attention.
NOT_SEEN_AGAIN = "not seen again"
FLAKY = "flaky without cupool"
EXPLAINED = "explained"
UNEXPLAINED = "UNEXPLAINED"
TO_RUN_AGAIN = "to be run again"


def group(outcome):
    """passed, skipped or failed: how an outcome is counted. A test that fails as expected has passed."""
    word = outcome.split(",")[0]
    if word in ("passed", "xfailed", "xpassed"):
        return "passed"
    return "skipped" if word in ("skipped", "missing") else "failed"


class Test:
    """One test of a suite, or the end of a process: then names are those of its tests."""

    def __init__(self, name, names):
        self.name = name
        self.names = names
        self.outcomes = {}
        self.messages = {}
        self.again = {}
        self.company = {}

    def ending(self):
        return self.name.startswith(END)

    def differs(self, mode):
        return WITHOUT in self.outcomes and mode in self.outcomes and \
            self.outcomes[mode] != self.outcomes[WITHOUT]

    def differing(self):
        return [mode for mode in self.outcomes if self.differs(mode)]

    def alike_alone(self, mode, needed):
        """Whether all runs alone agree; None if there have not been enough."""
        return alike(self.again, mode, needed)

    def verdict(self, mode, rule, needed):
        """How a difference is judged. needed: runs alone that each side must have had. What agrees alone
        may still differ in the company of the tests before it, each time: that is a difference."""
        runs, agree = self.again, self.alike_alone(mode, needed)
        if agree and not self.ending():
            runs, agree = self.company, alike(self.company, mode, needed)
        if agree is None:
            return EXPLAINED if rule else TO_RUN_AGAIN
        if agree:
            return NOT_SEEN_AGAIN
        if len(set(runs[WITHOUT])) > 1:
            return FLAKY
        return EXPLAINED if rule else UNEXPLAINED


def alike(runs, mode, needed):
    without, with_cupool = runs.get(WITHOUT, []), runs.get(mode, [])
    if min(len(without), len(with_cupool)) < needed:
        return None
    return len({*without, *with_cupool}) == 1


class Result:
    """What is known of one suite."""

    def __init__(self, name):
        self.name = name
        self.listed = []
        self.broken = []
        self.left_out = {}
        self.not_run = None
        self.tests = {}
        self.served = {}

    def test(self, name, names=None):
        return self.tests.setdefault(name, Test(name, names or [name]))


def name_of_ending(names):
    return f"{END} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def add_endings(result, endings):
    """A bad end in one mode is compared with bad ends of the other modes after any of the same tests."""
    for ending in endings:
        test = result.test(name_of_ending(ending["names"]), ending["names"])
        test.outcomes[ending["mode"]] = ending["outcome"]
        test.messages[ending["mode"]] = ending["message"]
    for test in [test for test in result.tests.values() if test.ending()]:
        names = set(test.names)
        for mode in {mode for name in test.names if name in result.tests for mode in result.tests[name].outcomes}:
            bad = [ending["outcome"] for ending in endings if ending["mode"] == mode and names & set(ending["names"])]
            test.outcomes.setdefault(mode, bad[0] if bad else "passed")


def results(records):
    """suite -> Result."""
    found, endings = {}, {}
    for record in records:
        kind = record["kind"]
        if "suite" not in record:
            continue
        result = found.setdefault(record["suite"], Result(record["suite"]))
        if kind == "listed":
            result.listed, result.broken, result.not_run = record["names"], record["broken"], None
            result.left_out = record["left_out"]
        elif kind == "not_run" and not result.listed:
            result.not_run = record["why"]
        elif kind == "outcome":
            test = result.test(record["test"])
            test.outcomes[record["mode"]] = record["outcome"]
            test.messages[record["mode"]] = record["message"]
        elif kind == "ending":
            endings.setdefault(record["suite"], []).append(record)
        elif kind == "served":
            result.served[record["mode"]] = result.served.get(record["mode"], 0) + record["allocations"]
    for name, of_suite in endings.items():
        add_endings(found[name], of_suite)
    for record in records:
        if record["kind"] in ("again", "company") and record["test"] in found[record["suite"]].tests:
            test = found[record["suite"]].tests[record["test"]]
            runs = test.again if record["kind"] == "again" else test.company
            runs.setdefault(record["mode"], []).append(record["outcome"])
    return found


class Explanations:
    """Rules of explanations.json: suite and test as expressions, modes and outcomes (without, with cupool) if not
    all, what a failure's message must have in it, and why."""

    def __init__(self, rows):
        self.rules = [(re.compile(row["suite"]), re.compile(row["test"]), row.get("modes"), row.get("outcomes"),
                       re.compile(row.get("message", "")), row["why"]) for row in rows]

    def of(self, suite, test, mode):
        """The reason why the outcome of `test` (a Test) differs in `mode`, or None."""
        failures = [test.messages.get(side, "") for side in (WITHOUT, mode) if group(test.outcomes[side]) == "failed"]
        for suite_rule, test_rule, modes, outcomes, message, why in self.rules:
            if suite_rule.fullmatch(suite) and test_rule.search(test.name) and (modes is None or mode in modes) and \
                    outcomes in (None, [group(test.outcomes[WITHOUT]), group(test.outcomes[mode])]) and \
                    all(message.search(text) for text in failures):
                return why
        return None


class Count:
    """One row of the table: a suite in one mode."""

    def __init__(self, result, mode, explanations, needed):
        self.alike = {"passed": 0, "failed": 0, "skipped": 0}
        self.other_message = 0
        self.verdicts = {}
        self.differing = []
        self.not_compared = 0
        for test in result.tests.values():
            if WITHOUT not in test.outcomes or mode not in test.outcomes:
                self.not_compared += 1
            elif test.differs(mode):
                rule = explanations.of(result.name, test, mode)
                verdict = test.verdict(mode, rule, needed)
                self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
                self.differing.append((test, mode, verdict, rule))
            else:
                self.alike[group(test.outcomes[mode])] += 1
                self.other_message += differing_message(test, mode)
        self.compared = sum(self.alike.values()) + len(self.differing)

    def unexplained(self):
        return self.verdicts.get(UNEXPLAINED, 0) + self.verdicts.get(TO_RUN_AGAIN, 0)


def differing_message(test, mode):
    """Whether a test that fails both ways says something else: numbers and addresses apart."""
    def plain(text):
        return re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?|/tmp/\S+", "#", text)
    return group(test.outcomes[mode]) == "failed" and test.outcomes[mode] not in ("crash", "timeout") and \
        plain(test.messages.get(mode, "")) != plain(test.messages.get(WITHOUT, ""))
