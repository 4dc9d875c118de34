#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/coverage.md: which branches and conditions of engine and entry the tests decide.

Reads the JSON of `llvm-cov export` (scripts/coverage.sh makes it) and tests/coverage/explained.json, the list of
conditions that stay undecided for a known reason. That list names a condition by file, function and text, not
by line. An entry that explains nothing is an error: the condition is decided by now, or gone.

A template or an inline function has a record in each binary and for each instantiation: their counts are added
up by position. A condition that decides alone in one of them counts as decided.
Usage: coverage_map.py EXPORT.json [--output FILE]
"""
import argparse
import collections
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src/engine/", "src/entry/")
EXPLAINED = ROOT / "tests/coverage/explained.json"
PART = 6  # the kind of a branch that is one of several conditions
# A constant in the shipped library (util/mutation.h): a condition of its decision without a branch of its own.
CONSTANT = re.compile(r"\bCUPOOL_MUTATED\(")
MOST_TEXT = 110

Span = collections.namedtuple("Span", "first_line first_column last_line last_column")


class Condition:
    def __init__(self):
        self.true = self.false = 0
        self.function = ""
        self.is_part = False       # one of several, of a decision
        self.decision = None       # that decision's Span
        self.alone = True          # decides alone, as far as it is one of several

    def missing(self):
        """What no test shows of it; empty if it is decided."""
        if self.true == 0 and self.false == 0:
            return "never reached"
        if self.true == 0:
            return "never true"
        if self.false == 0:
            return "never false"
        return "" if self.alone else "never decides alone"


class Source:
    """A file's text, and the conditions in it."""

    def __init__(self, path):
        self.lines = path.read_text().splitlines()
        self.conditions = {}
        self.decisions = {}        # Span -> which conditions decide alone, by their order
        self.covered_lines = self.all_lines = 0

    def text(self, span):
        if span[:2] == (span.last_line, span.last_column - 1):
            before = self.lines[span.first_line - 1][:span.first_column]
            if before.endswith(":") and "for (" in before:  # a loop over a range: whether there is a next one
                return before[before.rindex("for ("):] + " ...)"
        lines = self.lines[span.first_line - 1:span.last_line]
        lines[-1] = lines[-1][:span.last_column - 1]
        lines[0] = lines[0][span.first_column - 1:]
        return " ".join(" ".join(line.split("//")[0].strip() for line in lines).split())


def demangled(names):
    names = sorted({name.rsplit(":", 1)[-1] for name in names})
    output = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    return dict(zip(names, output.splitlines()))


def short_name(name):
    """The last two parts of a demangled name, without arguments; of a lambda, its function's."""
    name = name.replace("(anonymous namespace)::", "").replace("[abi:cxx11]", "")
    name = re.sub(r"operator(\(\)|[<>=!&]+)", lambda match: "operator" + "".join(f"%{ord(c)}" for c in match[1]), name)
    while True:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            break
        name = shorter
    name = name.split("(")[0].split("::$_")[0].split("::'lambda")[0].split("::{lambda")[0].split(" ")[-1]
    name = re.sub(r"%(\d+)", lambda match: chr(int(match[1])), name)
    return "::".join(name.split("::")[-2:]).removeprefix("engine::").removeprefix("entry::")


def read(export):
    data = export["data"][0]
    sources = {}

    def source_of(filename):
        path = pathlib.Path(filename)
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
        if not name.startswith(FOLDERS):
            return None
        if name not in sources:
            sources[name] = Source(path)
        return sources[name]

    for file in data["files"]:
        source = source_of(file["filename"])
        if source:
            source.covered_lines = file["summary"]["lines"]["covered"]
            source.all_lines = file["summary"]["lines"]["count"]
    names = demangled(function["name"] for function in data["functions"])
    for function in data["functions"]:
        name = short_name(names[function["name"].rsplit(":", 1)[-1]])
        files = [source_of(filename) for filename in function["filenames"]]
        for record in function["branches"]:
            source = files[record[6]]
            if source:
                condition = source.conditions.setdefault(Span(*record[:4]), Condition())
                condition.true += record[4]
                condition.false += record[5]
                condition.function = condition.function or name
                condition.is_part |= record[8] == PART
        for record in function["mcdc_records"]:
            span = Span(*record[:4])
            # The record does not tell its file, which is another one for a macro's conditions.
            source = next((files[branch[6]] for branch in function["branches"]
                           if branch[8] == PART and contains(span, Span(*branch[:4]))), None)
            if source:
                before = source.decisions.setdefault(span, [False] * len(record[6]))
                source.decisions[span] = [a or b for a, b in zip(before, record[6])]
    for name, source in sources.items():
        give_conditions_their_decisions(name, source)
    return sources


def contains(outer, inner):
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


def give_conditions_their_decisions(name, source):
    for span in [s for s in source.conditions if s in source.decisions]:
        del source.conditions[span]  # the whole says no more than its parts
    # A decision in an operand of another one comes first.
    for decision in sorted(source.decisions, key=lambda span: (span[2] - span[0], span[3] - span[1])):
        alone = source.decisions[decision]
        parts = [(span[:2], condition) for span, condition in source.conditions.items()
                 if condition.is_part and not condition.decision and contains(decision, span)]
        for line in range(decision.first_line, decision.last_line + 1):
            for match in CONSTANT.finditer(source.lines[line - 1]):
                position = (line, match.start() + 1)
                if decision[:2] <= position < decision[2:]:
                    parts.append((position, None))
        if len(parts) != len(alone):
            print(f"{name}:{decision.first_line}: {len(alone)} conditions, {len(parts)} found", file=sys.stderr)
            continue
        parts.sort(key=lambda part: part[0])
        constants = [position for position, condition in parts if condition is None]
        for (position, condition), decides in zip(parts, alone):
            if condition is None:
                continue
            condition.decision = decision
            # Beside a constant it may change nothing, and behind one not be reached.
            condition.alone = decides or bool(constants)
            if constants and constants[0] < position and condition.true == condition.false == 0:
                source.conditions = {span: other for span, other in source.conditions.items() if other is not condition}


def explanations(sources):
    """(file, function, condition) -> why. Unknown names are errors."""
    reasons, errors = {}, []
    document = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {"reasons": {}, "conditions": []}
    for entry in document["conditions"]:
        if entry["reason"] not in document["reasons"]:
            errors.append(f"no reason {entry['reason']}")
        key = entry["file"], entry["function"], entry["condition"]
        reasons[key] = entry["reason"], entry["because"]
    open_conditions = {(name, condition.function, source.text(span)) for name, source in sources.items()
                       for span, condition in source.conditions.items() if condition.missing()}
    errors += [f"explains nothing: {', '.join(key)}" for key in reasons if key not in open_conditions]
    return document["reasons"], reasons, errors


def code(text):
    if len(text) > MOST_TEXT:
        text = text[:MOST_TEXT - 4] + " ..."
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], text=True, capture_output=True, check=True).stdout.strip()


HEAD = """# Coverage

Which branches and conditions of `src/engine` and `src/entry` the tests decide. A map, not a target: each condition
that no test decides is either reachable and worth a test, or cannot happen and should go.

Generated by `scripts/coverage.sh` (clang's `-fcoverage-mcdc`) on {date}, from commit {commit}{dirty}, with the tests
`unit`, `preload`, `property` and `faults` on the simulated device. Not part of CI.

- A **condition** is the operand of a branch: the whole of `if (a)`, or each of `a` and `b` in `a && b`.
- It is **decided** if tests see it true and false and, beside others, see it change the result alone (MC/DC).
- Conditions in templates and inline functions count once, whatever their instantiations.
- Not counted: processes that a signal ends; faults on purpose (`CUPOOL_MUTATED`), constant in the shipped library.
- Unlucky timing can leave a condition undecided in one run that another run decides.

**{decided} of {all} conditions are decided. {explained} others are explained below; {unexplained} are open.**
"""


def write(sources, reasons, explained):
    rows, open_parts, known = [], [], collections.defaultdict(list)
    total = collections.Counter()
    for name in sorted(sources):
        source = sources[name]
        if not source.all_lines:
            continue
        count, listed = collections.Counter(), []
        for span, condition in sorted(source.conditions.items()):
            count["all"] += 1
            missing = condition.missing()
            count["outcomes"] += (condition.true != 0) + (condition.false != 0)
            if condition.decision:
                count["parts"] += 1
                count["alone"] += condition.alone
            if not missing:
                count["decided"] += 1
                continue
            text = source.text(span)
            whole = source.text(condition.decision) if condition.decision else ""
            within = f" in {code(whole)}" if whole else ""
            line = f"`{condition.function}`: {code(text)}{within}: {missing}"
            key = name, condition.function, text
            if key in explained:
                count["explained"] += 1
                reason, because = explained[key]
                known[reason].append((name.removeprefix("src/"), condition.function, text, missing, because))
            else:
                count["open"] += 1
                listed.append(f"- {line}")
        total.update(count)
        short = name.removeprefix("src/")
        rows.append(f"| {short} | {source.covered_lines} / {source.all_lines} | {count['outcomes']} / {2 * count['all']} "
                    f"| {count['alone']} / {count['parts']} | {count['explained'] or ''} | {count['open'] or ''} |")
        if listed:
            open_parts.append("\n".join([f"### {short}", ""] + listed))
    out = [HEAD.format(date=datetime.date.today().isoformat(), commit=git("rev-parse", "--short=10", "HEAD"),
                       dirty=" with changes" if git("status", "--porcelain", "-uno", "--", "src", "tests") else "",
                       decided=total["decided"], all=total["all"], explained=total["explained"],
                       unexplained=total["open"])]
    out += ["## Files", "", "Of each: seen / all. Outcomes are the two of each condition; *decide alone* counts the conditions of",
            "`&&` and `||`.", "", "| file | lines | outcomes | decide alone | explained | open |", "|---|---|---|---|---|---|"]
    out += rows
    out += ["", "## Open", "", "Undecided, and not yet looked into.", ""]
    out += ["\n\n".join(open_parts) or "None."]
    out += ["", "## Explained", "", "From `tests/coverage/explained.json`."]
    for reason, text in reasons.items():
        if known[reason]:
            out += ["", f"### {text}", "", "| file | function | condition | no test shows | because |", "|---|---|---|---|---|"]
            out += ["| " + " | ".join([row[0], f"`{row[1]}`", code(row[2]).replace("|", "\\|"), row[3].removeprefix("never "),
                                       row[4]]) + " |" for row in known[reason]]
    return "\n".join(out) + "\n", total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("export", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/coverage.md")
    arguments = parser.parse_args()
    sources = read(json.loads(arguments.export.read_text()))
    reasons, explained, errors = explanations(sources)
    text, total = write(sources, reasons, explained)
    arguments.output.write_text(text)
    print(f"{total['decided']} of {total['all']} conditions decided, {total['explained']} explained, {total['open']} open: "
          f"{arguments.output}")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
