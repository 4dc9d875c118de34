# SPDX-License-Identifier: Apache-2.0
"""The sections of the document, one for each suite: a run replaces those of its suites and leaves the others,
whose records may be of another day, machine and build. Each says which.
"""
import os
import re

from common.document import number, table

HEADLINE = re.compile(r"([\d,]+) tests .*? ([\d,]+) in each of (\d+) modes: ([\d,]+) comparisons, "
                      r"\*\*([\d,]+) differ unexplained\*\*")
MODES = ("A test runs without cupool and with it in each mode. One that differs is run alone again; if it agrees alone, in "
         "its slice again. Each suite's section says which machine and build its outcomes are of.")


def marks(name):
    return f"<!-- suite {name} -->\n", f"<!-- end of suite {name} -->\n"


def of_document(path):
    """The sections that a document has: name -> text."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = re.finditer(r"<!-- suite (\S+) -->\n(.*?)<!-- end of suite \1 -->\n", text, re.DOTALL)
    return {match[1]: match[2] for match in found}


def sessions_of(name, records):
    """The sessions in which a test of the suite ran; all, if none did."""
    sessions, used, last = [], [], None
    for record in records:
        if record["kind"] == "session":
            last = {key: value for key, value in record.items() if key != "kind"}
            sessions.append(last)
        elif record.get("suite") == name and record["kind"] in ("outcome", "again", "company") and last not in used:
            used.append(last)
    return [session for session in used if session is not None] or sessions


def counts(section):
    """Of a section's headline: tests, those in each mode, modes, comparisons, unexplained; None: not run."""
    found = HEADLINE.search(section)
    values = [int(value.replace(",", "")) for value in found.groups()] if found else None
    return values if values and values[3] else None


def text(document, order):
    """The part of the document: what all sections come to, and the sections."""
    names = [name for name in order if name in document] + [name for name in document if name not in order]
    ran = {name: counts(document[name]) for name in names}
    compared = [values for values in ran.values() if values]
    total = [sum(values[i] for values in compared) for i in range(5)]
    parts = ["## Other people's tests", "",
             f"{number(total[0])} tests of {len(compared)} suites, {number(total[3])} comparisons, "
             f"**{number(total[4])} differ unexplained**. {MODES}", "",
             table(["suite", "tests", "modes", "comparisons", "unexplained"],
                   [[name, number(values[0]), values[2], number(values[3]), number(values[4])] if values else
                    [name, "not run", "", "", ""] for name, values in ran.items()])]
    for name in names:
        begin, end = marks(name)
        parts.append(begin + document[name].strip("\n") + "\n" + end)
    return "\n".join(parts)
