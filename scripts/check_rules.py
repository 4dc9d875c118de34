#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Maps every rule of docs/design.md (contract 1, 2, ... and I1, I2, ...) to its code and its tests.

A source or test cites a rule in a comment: `contract 4`, `contracts 2 and 4`, `I3`. A test states the
rules that are cited directly above it, on its line, or in the opening comment of its file; those in
tests/contract/NN_*_test.cpp state contract NN. In tests/property/CMakeLists.txt the same holds for
properties and mutations.

Errors are a rule without test or code, a rule of the contract without a file in tests/contract, a cited
rule or file of docs/ that does not exist, and a docs/rules.md that is out of date.
Usage: check_rules.py [--write] [--self-test] [ROOT]
"""
import pathlib
import re
import sys
import tempfile

SLASHES = {".h", ".cpp", ".c", ".cu", ".cuh", ".def", ".inc", ".S"}
HASHES = {".py", ".sh", ".txt", ".cmake"}
CITED_NUMBERS = re.compile(r"\b[Cc]ontracts? (\d+(?:(?:, and | and |, | or |, contract )\d+)*)\b")
CITED_RANGE = re.compile(r"\bI(\d+) to I(\d+)\b")
CITED_INVARIANT = re.compile(r"\bI(\d+)\b")
CITED_FILE = re.compile(r"\bdocs/[\w./-]*\w")
STRING = re.compile(r'"(?:\\.|[^"\\])*"|(?<!\w)\'(?:\\.|[^\'\\])\'')
CONTRACT_FILE = re.compile(r"(\d\d)_\w+_test\.cpp")
GTEST = re.compile(r"TEST(?:_F|_P)?\(")
PROPERTY = re.compile(r"\s*(?:cupool_property\(|cupool_mutation\(|cupool_theme_mutation\(\w+ |cupool_default_pool_mutation\("
                      r"|add_test\((?:NAME )?)([\w.${}-]+)")


def rule_key(rule):
    """Contract before invariants, by number."""
    return rule.startswith("I"), int(rule.lstrip("I"))


def name_of(rule):
    return rule if rule.startswith("I") else f"contract {rule}"


def read_rules(design):
    """Rule -> (title, section): the numbered items of Contract, and `- **I1** ...` of Invariants."""
    rules, section = {}, ""
    lines = design.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("## "):
            section = line[3:].strip().lower()
        item = None
        if section == "contract":
            item = re.match(r"(\d+)\. (.*)", line)
        elif section == "invariants":
            item = re.match(r"- \*\*(I\d+)\*\* (.*)", line)
        if item:
            text = [item[2]]
            for further in lines[number + 1:]:
                if not further.startswith("  ") or not further.strip():
                    break
                text.append(further.strip())
            title = re.split(r"[.:;](?:\s|$)", " ".join(text))[0]
            rules[item[1]] = (title.replace("](#", f"]({design.name}#"), section)
    return rules


def cited(text):
    """The rules that a text cites."""
    rules = set()
    for match in CITED_NUMBERS.finditer(text):
        rules |= set(re.findall(r"\d+", match[1]))
    for match in CITED_RANGE.finditer(text):
        rules |= {f"I{number}" for number in range(int(match[1]), int(match[2]) + 1)}
    return rules | {f"I{number}" for number in CITED_INVARIANT.findall(text)}


class Comments:
    """The comments of a file: runs of comment lines, and comments behind code."""

    def __init__(self, path):
        mark = "//" if path.suffix in SLASHES else "#"
        self.lines = path.read_text(errors="replace").splitlines()
        self.behind, self.runs = {}, []  # line -> text; [first, last, text]
        for number, line in enumerate(self.lines, 1):
            bare = STRING.sub(lambda string: '"' + "_" * (len(string[0]) - 2) + '"', line)
            at = bare.find(mark)
            if at < 0:
                continue
            text = line[at:].lstrip(mark + "/!< ").strip()
            if bare[:at].strip():
                self.behind[number] = text
            elif self.runs and self.runs[-1][1] == number - 1:
                self.runs[-1][1:] = [number, self.runs[-1][2] + " " + text]
            else:
                self.runs.append([number, number, text])
        if path.suffix == ".py":  # what a script is says its docstring
            docstring = re.match(r'(?:#.*\n)*"""(.*?)"""', "\n".join(self.lines) + "\n", re.S)
            if docstring:
                self.runs.insert(0, [1, 1, " ".join(docstring[1].split())])

    def opening(self):
        return self.runs[0][2] if self.runs and self.runs[0][0] == 1 else ""

    def above(self, number):
        """The comment that ends on the line before."""
        return next((text for _, last, text in self.runs if last == number - 1), "")

    def all(self):
        return [(first, text) for first, _, text in self.runs] + sorted(self.behind.items())


def statement(comments, number, opener):
    """Rules cited for the test that begins on a line: above it, and on it up to its `opener`."""
    text = comments.above(number)
    for line in range(number, len(comments.lines) + 1):
        text += " " + comments.behind.get(line, "")
        if opener in comments.lines[line - 1]:
            break
    return cited(text)


def files_under(root, *folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in SLASHES | HASHES:
                yield path


class Index:
    """Rule -> files that cite it, as the main columns of docs/rules.md."""

    def __init__(self, root):
        self.root, self.errors = root, []
        self.rules = read_rules(root / "docs/design.md")
        self.code = {rule: {} for rule in self.rules}  # file -> rank, the main file first
        self.tests = {rule: {} for rule in self.rules}  # file -> names, of properties only
        self.gpu = {rule: {} for rule in self.rules}
        for path in files_under(root, "src", "include", "tests"):
            self.read(path)
        for rule in sorted(self.rules, key=rule_key):
            for kind, found in (("code", self.code), ("test", self.tests)):
                if not found[rule]:
                    self.errors.append(f"docs/design.md: {name_of(rule)} is cited by no {kind}")
            if not rule.startswith("I") and not list((root / "tests/contract").glob(f"{int(rule):02}_*_test.cpp")):
                self.errors.append(f"docs/design.md: contract {rule} has no tests/contract/{int(rule):02}_*_test.cpp")

    def add(self, column, rules, place, value):
        for rule in rules & self.rules.keys():
            column[rule].setdefault(place, value)

    def read(self, path):
        place = path.relative_to(self.root).as_posix()
        comments = Comments(path)
        for line, text in comments.all():
            for rule in sorted(cited(text) - self.rules.keys()):
                self.errors.append(f"{place}:{line}: cites {name_of(rule)}, which docs/design.md does not have")
            for name in CITED_FILE.findall(text):
                if not (self.root / name).exists():
                    self.errors.append(f"{place}:{line}: cites {name}, which does not exist")
        opening = cited(comments.opening())
        if place.startswith(("src/", "include/")):
            texts = [text for _, text in comments.all()]
            for rule in set().union(*map(cited, texts)) if texts else ():
                times = sum(rule in cited(text) for text in texts)
                self.add(self.code, {rule}, place, (rule not in opening, -times, place))
        elif place.startswith("tests/gpu/"):
            self.add(self.gpu, set().union(opening, *(cited(text) for _, text in comments.all())), place, [])
        elif place == "tests/property/CMakeLists.txt":
            self.read_properties(place, comments)
        elif place.startswith("tests/contract/") or place.endswith("_test.cpp") and "tests/sim/" not in place:
            self.read_tests(place, comments, opening)

    def read_properties(self, place, comments):
        for number, line in enumerate(comments.lines, 1):
            match = PROPERTY.match(line)
            for rule in statement(comments, number, ")") if match else ():
                if rule in self.rules:
                    self.tests[rule].setdefault(place, []).append(re.sub(r"^property\.(mutation\.)?", "", match[1]))

    def read_tests(self, place, comments, opening):
        tests = [number for number, line in enumerate(comments.lines, 1) if GTEST.match(line)]
        if place.startswith("tests/contract/"):
            match = CONTRACT_FILE.fullmatch(pathlib.PurePath(place).name)
            if not match or str(int(match[1])) not in self.rules:
                self.errors.append(f"{place}: its name does not begin with the number of a rule of the contract")
            else:
                opening = opening | {str(int(match[1]))}
            if not tests:
                self.errors.append(f"{place}: has no test")
        for number in tests:
            self.add(self.tests, opening | statement(comments, number, "{"), place, [])

    def page(self):
        lines = [
            "# Rules, their code and their tests",
            "",
            "Written by `scripts/check_rules.py --write` from [design.md](design.md) and from the comments of",
            "sources and tests that cite a rule (`contract 4`, `I3`), and checked by `scripts/test.sh`. Sources whose",
            "opening comment cites the rule come first. A search for the rule finds its places in a file; of",
            "`tests/property` the page names the properties and mutations.",
            "",
            "| rule | says | code | tests | on a GPU |",
            "|---|---|---|---|---|"]
        for rule in sorted(self.rules, key=rule_key):
            title, section = self.rules[rule]
            code = sorted(self.code[rule], key=self.code[rule].get)
            own = "-" if rule.startswith("I") else f"tests/contract/{int(rule):02}_"
            tests = sorted(self.tests[rule], key=lambda place: (not place.startswith(own), place))
            cells = [f"[{name_of(rule)}](design.md#{section})", title.replace("|", "\\|"),
                     links(code, "src/"), links(tests, "tests/", self.tests[rule]), links(self.gpu[rule], "tests/gpu/")]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def links(places, prefix, names=None):
    cells = []
    for place in places:
        more = ": " + ", ".join(f"`{name}`" for name in names[place]) if names and names[place] else ""
        cells.append(f"[{place.removeprefix(prefix)}](../{place}){more}")
    return "<br>".join(cells)


def check(root, write=False):
    """All errors under root. With `write`, writes docs/rules.md first."""
    index = Index(root)
    rules_page = root / "docs/rules.md"
    if write:
        rules_page.write_text(index.page())
    if not rules_page.exists() or rules_page.read_text() != index.page():
        index.errors.append("docs/rules.md: is out of date: scripts/check_rules.py --write")
    return index.errors


def self_test():
    """A correct tree has no errors, each violation is found, and the page has the expected text."""
    good = {
        "docs/design.md": "## Contract\n\n1. One thing: more\n   of it.\n2. Two.\n\n## Engine\n\n1. No rule.\n\n"
                          "## Invariants\n\n- **I1** Quiet [blocks](#blocks)\n  only. More.\n  1. No rule either.\n",
        "src/a.h": "// A file (contract 1).\nint a;  // I1\n",
        "src/b.h": "// Another.\n\n// Contracts 1\n// and 2: see docs/design.md.\nint b;\n",
        "tests/contract/01_one_test.cpp": "// Contract 1.\nTEST(One, Is) {\n}\n",
        "tests/contract/02_two_test.cpp": "// Two.\nTEST(Two, Is) {\n}\n",
        "tests/unit/x_test.cpp": "// Units.\n\n// I1, once more.\nTEST_F(X, Is) {\n}\n"
                                 "TEST_P(X,\n  Was) {  // contract 2\n}\n",
        "tests/unit/y_test.cpp": "// Units.\nTEST(Y, Is) {\n  f(\"I1\");  // contract 2 is no statement here\n}\n",
        "tests/property/CMakeLists.txt": "# I1.\ncupool_mutation(wrong words)\n",
        "tests/gpu/z.py": "#!x\n# y\n\"\"\"On a GPU (contract 2).\"\"\"\n",
        "tests/sim/s_test.cpp": "// I1.\nTEST(S, Is) {\n}\n"}
    broken = [
        ({"docs/design.md": good["docs/design.md"].replace("2. Two.", "2. Two.\n3. Three.")},
         ["contract 3 is cited by no code", "contract 3 is cited by no test", "no tests/contract/03_*_test.cpp"]),
        ({"tests/contract/02_two_test.cpp": None}, ["contract 2 has no tests/contract/02_"]),
        ({"tests/contract/02_two_test.cpp": "// Two.\n"}, ["02_two_test.cpp: has no test"]),
        ({"tests/contract/09_nine_test.cpp": "// Nine.\nTEST(Nine, Is) {\n}\n"}, ["09_nine_test.cpp: its name"]),
        ({"tests/contract/two_test.cpp": "// Two.\nTEST(Nine, Is) {\n}\n"}, ["/two_test.cpp: its name"]),
        ({"tests/unit/x_test.cpp": "// Units.\n", "tests/property/CMakeLists.txt": "\n"}, ["I1 is cited by no test"]),
        ({"src/a.h": "// A file (contract 1).\nint a;\n"}, ["I1 is cited by no code"]),
        ({"src/c.h": "// More.\n\n// I1 to I2.\nint c;\n"}, ["src/c.h:3: cites I2, which"]),
        ({"tests/unit/y_test.cpp": "// Units (contract\n// 1, 2 and 7).\n"}, ["y_test.cpp:1: cites contract 7, which"]),
        ({"src/c.h": "// Source: docs/facts.md.\n"}, ["src/c.h:1: cites docs/facts.md, which"]),
        ({"docs/rules.md": "old\n"}, ["docs/rules.md: is out of date"]),
        ({"docs/rules.md": None}, ["docs/rules.md: is out of date"])]
    rows = ["| [contract 1](design.md#contract) | One thing | [a.h](../src/a.h)<br>[b.h](../src/b.h) | "
            "[contract/01_one_test.cpp](../tests/contract/01_one_test.cpp) |  |",
            "| [contract 2](design.md#contract) | Two | [b.h](../src/b.h) | "
            "[contract/02_two_test.cpp](../tests/contract/02_two_test.cpp)<br>"
            "[unit/x_test.cpp](../tests/unit/x_test.cpp) | [z.py](../tests/gpu/z.py) |",
            "| [I1](design.md#invariants) | Quiet [blocks](design.md#blocks) only | [a.h](../src/a.h) | "
            "[property/CMakeLists.txt](../tests/property/CMakeLists.txt): `wrong`<br>"
            "[unit/x_test.cpp](../tests/unit/x_test.cpp) |  |"]
    failures = 0
    for change, expected in [({}, [])] + broken:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = dict(good)
            for step in ({}, change):  # the page is written for the right tree
                files.update(step)
                for name, content in files.items():
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    if content is None:
                        (root / name).unlink(missing_ok=True)
                    else:
                        (root / name).write_text(content)
                errors = check(root, write=step is not change)
            page = (root / "docs/rules.md").read_text() if not change else ""
        right = all(any(one in error for error in errors) for one in expected) and bool(errors) == bool(expected)
        right = right and (change or page.splitlines()[-3:] == rows)
        if not right:
            failures += 1
            print(f"self-test: expected {expected!r}, got {errors}\n{page}", file=sys.stderr)
    return failures


def main(arguments):
    if "--self-test" in arguments:
        return 1 if self_test() else 0
    folders = [argument for argument in arguments if not argument.startswith("--")]
    root = pathlib.Path(folders[0]) if folders else pathlib.Path(__file__).resolve().parent.parent
    errors = check(root, write="--write" in arguments)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
