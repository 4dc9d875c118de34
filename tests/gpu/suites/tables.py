# SPDX-License-Identifier: Apache-2.0
"""The Markdown and JSON of merged outcomes: a row for each suite and mode, every test that differs, and
what was not run.
"""
import merge
from common.document import machines, number, table

SHOWN = 200  # differing tests in the document; all are in the JSON


class Summary:
    def __init__(self, rows, results, explanations, modes, needed):
        """rows: suites.json. needed: runs once more that a difference is judged by."""
        self.rows = rows
        self.results = results
        self.modes = [mode for mode in modes if mode != merge.WITHOUT]
        self.counts = {(name, mode): merge.Count(result, mode, explanations, needed)
                       for name, result in results.items() for mode in self.modes}

    def tests(self, how=all, modes=None):
        """Tests that ran both ways in every one of the modes; with `any`, in at least one."""
        modes = self.modes if modes is None else modes
        return sum(merge.WITHOUT in test.outcomes and how(mode in test.outcomes for mode in modes)
                   for result in self.results.values() for test in result.tests.values())

    def compared(self):
        return sum(count.compared for count in self.counts.values())

    def unexplained(self):
        return sum(count.unexplained() for count in self.counts.values())

    def differing(self):
        """(suite, test, mode, verdict, why), those that want attention first."""
        order = [merge.UNEXPLAINED, merge.TO_RUN_AGAIN, merge.EXPLAINED, merge.FLAKY, merge.NOT_SEEN_AGAIN]
        found = [(suite, *difference) for (suite, _), count in self.counts.items() for difference in count.differing]
        return sorted(found, key=lambda row: (order.index(row[3]), row[0], row[1].name, row[2]))

    # -- writing ---------------------------------------------------------------------------------
    def markdown(self, sessions, title="## Other people's tests"):
        level = title.split()[0] + "#"
        parts = [title, "", self.headline(), "", *machines(sessions), "", self.main_table(), ""]
        differing = self.differing()
        if differing:
            parts += [f"{level} Tests that differ ({len(differing)})", "", self.differing_table(differing), ""]
        parts += [f"{level} Left out", "", self.left_out_table()]
        return "\n".join(parts)

    def headline(self):
        ran = [mode for mode in self.modes if any(count.compared for (_, of), count in self.counts.items() if of == mode)]
        return (f"{number(self.tests(any))} tests of {sum(bool(r.tests) for r in self.results.values())} suites ran without "
                f"cupool and with it, {number(self.tests(all, ran))} in each of {len(ran)} modes: {number(self.compared())} comparisons, "
                f"**{number(self.unexplained())} differ unexplained**.")

    def main_table(self):
        header = ["suite", "version", "mode", "compared", "passed both", "failed both", "of these another message",
                  "skipped both", "not seen again", "flaky without cupool", "explained", "unexplained",
                  "allocations served"]
        rows = []
        for row in self.rows:
            result = self.results.get(row["name"])
            if not result or not result.tests:
                continue
            for mode in self.modes:
                count = self.counts[row["name"], mode]
                if not count.compared:
                    continue
                rows.append([row["name"], row["version"], mode, number(count.compared),
                             *(number(count.alike[word]) for word in ("passed", "failed")), count.other_message,
                             number(count.alike["skipped"]),
                             *(count.verdicts.get(word, 0) for word in (merge.NOT_SEEN_AGAIN, merge.FLAKY, merge.EXPLAINED)),
                             count.unexplained(), number(result.served.get(mode, 0))])
        return table(header, rows)

    def differing_table(self, differing):
        rows = []
        explained = {}
        for suite, test, mode, verdict, why in differing:
            if verdict == merge.EXPLAINED:
                explained.setdefault((suite, why), {}).setdefault(test.name, {})[mode] = test
        for (suite, why), tests in explained.items():
            name, modes = next(iter(tests.items()))
            mode, test = next(iter(modes.items()))
            others = f" and {number(len(tests) - 1)} more" if len(tests) > 1 else ""
            rows.append([suite, f"`{name}`{others}", ", ".join(sorted({mode for of in tests.values() for mode in of})),
                         test.outcomes[merge.WITHOUT], test.outcomes[mode], "", f"{merge.EXPLAINED}: {why}"])
        differing = [row for row in differing if row[3] != merge.EXPLAINED]
        for suite, test, mode, verdict, why in differing[:SHOWN]:
            again = "; ".join(f"{word} {', '.join(runs.get(merge.WITHOUT, '-'))} / {', '.join(runs.get(mode, '-'))}"
                              for word, runs in (("alone", test.again), ("in its slice", test.company)) if runs)
            rows.append([suite, f"`{test.name}`", mode, test.outcomes[merge.WITHOUT], test.outcomes[mode], again,
                         verdict + (f": {why}" if why else "")])
        text = table(["suite", "test", "mode", "without", "with cupool", "again, without / with", "verdict"], rows)
        more = len(differing) - SHOWN
        return text + (f"\n{more} more are in the results.\n" if more > 0 else "")

    def left_out_table(self):
        rows = []
        for row in self.rows:
            result = self.results.get(row["name"])
            if row.get("note"):
                rows.append([row["name"], "", row["note"]])
            if result is None or result.not_run:
                rows.append([row["name"], "all", result.not_run if result else "not asked for"])
                continue
            rows += [[row["name"], number(count), why] for why, count in sorted(result.left_out.items())]
            rows += [[row["name"], "a file", "cannot be listed without cupool either: " + text] for text in result.broken]
            missed = sum(name not in result.tests for name in result.listed)
            if missed > 0:
                rows.append([row["name"], number(missed), "no time"])
            for mode in self.modes:
                count = self.counts[row["name"], mode]
                if count.not_compared:
                    rows.append([row["name"], number(count.not_compared), f"no time for one of: without, {mode}"])
        return table(["suite", "tests", "why"], rows)

    def json(self, sessions):
        suites = {}
        for (name, mode), count in self.counts.items():
            suites.setdefault(name, {})[mode] = {
                "compared": count.compared, **{f"{word}_both": n for word, n in count.alike.items()},
                "other_message": count.other_message, "verdicts": count.verdicts,
                "not_compared": count.not_compared, "served": self.results[name].served.get(mode, 0)}
        return {"schema_version": 1, "sessions": sessions, "tests": self.tests(), "compared": self.compared(),
                "unexplained": self.unexplained(), "suites": suites,
                "differing": [{"suite": suite, "test": test.name, "mode": mode, "without": test.outcomes[merge.WITHOUT],
                               "with": test.outcomes[mode], "again": test.again, "company": test.company, "verdict": verdict, "why": why,
                               "message": test.messages.get(mode, "")}
                              for suite, test, mode, verdict, why in self.differing()]}
