#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks docs/design.md: short bullets, existing paths, and tuning numbers equal to the code's.

- No list item has more than 60 words. A nested item counts for itself.
- Each path in backticks that begins with a folder of src (`engine/block/block`) or of the repository
  (`src/entry/hooks.def`) names a file, with or without suffix, or a folder. A target of a link to
  another file exists.
- Each row of the table of tuning numbers names a constexpr of its folder of src with that value.

Usage: check_design.py [--self-test] [ROOT]
"""
import ast
import operator
import pathlib
import re
import sys
import tempfile

MAX_WORDS = 60
PAGE = "docs/design.md"
SOURCES = {".h", ".cpp", ".c", ".inc"}
ITEM = re.compile(r"^(\s*)(?:[-*]|\d+\.)\s+(.*)")
TICKED = re.compile(r"`([^`\s]+)`")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
HEADER = "| constant | room | value | unit |"
DEFINITION = re.compile(r"\bconstexpr\b([^=;{}()]*?)\b(k[A-Z]\w*)(?:\[\])?\s*([={][^;]*);")
BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.Div: operator.floordiv, ast.LShift: operator.lshift, ast.RShift: operator.rshift}


def items_of(lines):
    """(line number, text) of each list item; lines that continue an item are indented."""
    items, code = [], False
    inside = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            code, inside = not code, False
        elif code:
            continue
        elif match := ITEM.match(line):
            items.append([number, match[2]])
            inside = True
        elif inside and line.startswith(" ") and line.strip():
            items[-1][1] += " " + line.strip()
        elif line.strip():
            inside = False
    return items


def check_items(page, lines):
    """Items that are too long."""
    for number, text in items_of(lines):
        words = len(LINK.sub(r"\1", text).split())
        if words > MAX_WORDS:
            yield f"{page}:{number}: a list item of {words} words (at most {MAX_WORDS})"


def names_file(base, path):
    """Whether `path` under `base` is a file, with or without suffix, or a folder."""
    target = base / path
    return target.exists() or any(target.parent.glob(target.name + ".*"))


def check_paths(root, page, lines):
    """Paths in backticks and targets of links that do not exist."""
    code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            code = not code
        if code:
            continue
        for token in TICKED.findall(line):
            first, slash, _ = token.partition("/")
            if not slash or not first:
                continue
            bases = [base for base in (root / "src", root) if (base / first).is_dir()]
            if bases and not any(names_file(base, token) for base in bases):
                yield f"{page}:{number}: `{token}` does not exist"
        for _, target in LINK.findall(line):
            file = target.partition("#")[0]
            if file and "://" not in file and not (page.parent / file).exists():
                yield f"{page}:{number}: the link's target {file} does not exist"


def evaluate(text, known):
    """The value of a C++ expression of integers and known constants; None: it is not one."""
    text = re.sub(r"\b(?:std::)?(?:size_t|u?int\d*_t)\s*\{([^}]*)\}", r"(\1)", text)
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"\b\w+::", "", text).strip()

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return known[node.id]
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    try:
        return value(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError, ValueError, ZeroDivisionError):
        return None


def values_of(kind, name, initial, known):
    """The values of a constant: times in nanoseconds, several of an array."""
    factor = 1
    if name.endswith("Ms"):
        factor = NANOSECONDS["ms"]
    initial = re.sub(r"\s*//[^\n]*", "", initial).strip()
    initial = initial[1:].strip() if initial[0] == "=" else initial
    for unit, nanoseconds in (("microseconds", NANOSECONDS["us"]), ("milliseconds", NANOSECONDS["ms"])):
        if unit in kind or unit in initial:
            factor = nanoseconds
            initial = re.sub(r"(?:std::)?(?:chrono::)?" + unit + r"\s*\(([^)]*)\)", r"\1", initial)
    if initial.startswith("{"):
        parts = [evaluate(part, known) for part in initial.strip("{}").split(",")]
        if "timespec" in kind and len(parts) == 2 and None not in parts:
            return [parts[0] * NANOSECONDS["s"] + parts[1]]
    else:
        parts = [evaluate(initial, known)]
    return [] if None in parts else [part * factor for part in parts]


def constants_of(src):
    """Folder of src -> name -> the list of its definitions' values, in that folder or below."""
    found = []
    for path in sorted(src.rglob("*")):
        if path.suffix in SOURCES:
            for kind, name, initial in DEFINITION.findall(path.read_text(errors="replace")):
                found.append((path.parent.relative_to(src), kind, name, initial))
    known, constants = {}, {}
    for _ in range(3):  # those that are made of others
        for folder, kind, name, initial in found:
            values = values_of(kind, name, initial, known)
            if len(values) == 1:
                known[name] = values[0]
    for folder, kind, name, initial in found:
        values = values_of(kind, name, initial, known)
        for room in (folder, *folder.parents):
            constants.setdefault(room.as_posix(), {}).setdefault(name, []).append(values)
    return constants


def check_numbers(page, lines, constants):
    """Rows of the table of tuning numbers that differ from the code."""
    rows, inside = 0, False
    for number, line in enumerate(lines, 1):
        if line.startswith(HEADER):
            inside = True
            continue
        inside = inside and line.startswith("|")
        if not inside or line.startswith("|---"):
            continue
        rows += 1
        name, room, value, unit = (cell.strip().strip("`") for cell in line.split("|")[1:5])
        factor = BYTES.get(unit, NANOSECONDS.get(unit, 1))
        try:
            wanted = [int(part) * factor for part in value.split(",")]
        except ValueError:
            yield f"{page}:{number}: {name} has no number: {value}"
            continue
        defined = constants.get(room, {}).get(name, [])
        if not defined:
            yield f"{page}:{number}: {room} has no constant {name}"
        elif wanted not in defined:
            yield f"{page}:{number}: {name} is {value} {unit} here, in {room} {defined}"
    if rows == 0:
        yield f"{page}: has no table that begins {HEADER}"


def check(root):
    """All errors of the page."""
    page = root / PAGE
    if not page.exists():
        return [f"{page}: does not exist"]
    lines = page.read_text().splitlines()
    return [*check_items(page, lines), *check_paths(root, page, lines),
            *check_numbers(page, lines, constants_of(root / "src"))]


def self_test():
    """Each violation is found; a correct page has no errors."""
    table = HEADER + " purpose |\n|---|---|---|---|---|\n"
    rows = {"kStep": "| `kStep` | `low` | 32 | MiB | |\n", "kWaitNs": "| `kWaitNs` | `low` | 5 | s | |\n",
            "kTwice": "| `kTwice` | `low` | 64 | MiB | |\n", "kMoment": "| `kMoment` | `low` | 50 | us | |\n",
            "kPauses": "| `kPauses` | `low/cellar` | 1, 20 | ms | |\n"}
    text = "- " + "word " * 59 + "[last](other.md#part)\n"
    good = {PAGE: "# Page\n\n" + text + "  1. nested\n\nSee `low/a`, `low/cellar`, `src/low/a.h` and `no/path`.\n\n"
                  + table + "".join(rows.values()),
            "docs/other.md": "",
            "src/low/a.h": "constexpr std::uint64_t kStep = 32ull << 20;  ///< a step\n"
                           "constexpr auto kTwice = 2 * Low::kStep;\nconstexpr timespec kMoment{0, 50'000};\n"
                           "constexpr std::uint64_t kWaitNs = 5'000'000'000;\n",
            "src/low/cellar/b.cpp": "constexpr microseconds kPauses[] = {std::chrono::microseconds(1000),\n"
                                    "    std::chrono::microseconds(20000)};\n"}
    page = good[PAGE]
    broken = [({PAGE: page.replace("- word", "- one word")}, "a list item of 61 words"),
              ({PAGE: page.replace("nested", "nested\n     " + "and more " * 30)}, "a list item of 61 words"),
              ({PAGE: page.replace("low/a`", "low/b`")}, "`low/b` does not exist"),
              ({PAGE: page.replace("low/a.h", "low/a.c")}, "`src/low/a.c` does not exist"),
              ({PAGE: page.replace("other.md", "missing.md")}, "target missing.md does not exist"),
              ({PAGE: page.replace("kTwice", "kThrice")}, "low has no constant kThrice"),
              ({PAGE: page.replace("| 32 |", "| many |")}, "kStep has no number"),
              ({PAGE: page.replace("1, 20", "1")}, "kPauses is 1 ms here"),
              ({PAGE: page[:page.index(HEADER)]}, "has no table"),
              ({"src/low/a.h": good["src/low/a.h"].replace("32ull", "16ull")}, "kTwice is 64 MiB here"),
              ({"src/low/a.h": good["src/low/a.h"].replace("5'000'", "6'000'")}, "kWaitNs is 5 s here"),
              ({"src/low/a.h": good["src/low/a.h"].replace("50'000", "60'000")}, "kMoment is 50 us here"),
              ({PAGE: None}, "does not exist")]
    failures = 0
    for change, expected in [({}, None)] + broken:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**good, **change}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is not None:
                    path.write_text(content)
            errors = check(pathlib.Path(folder))
        right = not errors if expected is None else any(expected in error for error in errors)
        if not right:
            failures += 1
            print(f"self-test: expected {expected!r}, got {errors}", file=sys.stderr)
    return failures


def main(arguments):
    if "--self-test" in arguments:
        return 1 if self_test() else 0
    default = pathlib.Path(__file__).resolve().parent.parent
    errors = check(pathlib.Path(arguments[0]) if arguments else default)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
