#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that src/ keeps to the layers that src/README.md states.

The README's block that opens with ```layers has lines `report: util stats`: a folder, and the folders
that it may include beside itself. A folder with rooms has a line for all of its rooms, and one for each
room: `engine/thread: engine/block`. A folder that may include another may include its rooms too. Inside
a folder, a room may include the rooms that its line names. Any other include is an error. So is a source
without licence line and opening comment, or with more than 500 lines.
Usage: check_layers.py [--self-test] [SRC]
"""
import pathlib
import re
import sys
import tempfile

SUFFIXES = {".h", ".cpp", ".c", ".def", ".inc", ".S"}
MAX_LINES = 500
# Angle brackets too: they reach our headers as well.
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([A-Za-z0-9_./]+)/[^"/>]+[">]')
OPENING = re.compile(r"^\s*(//|/\*)\s*\S")
LICENCE = "// SPDX-License-Identifier: Apache-2.0"


def read_layers(readme):
    """The table folder -> folders that it may include, and its errors."""
    layers, errors, inside, found = {}, [], False, False
    for number, line in enumerate(readme.read_text().splitlines(), 1):
        if line.strip() == "```layers":
            inside = found = True
        elif inside and line.strip() == "```":
            inside = False
        elif inside and line.strip():
            match = re.fullmatch(r"([\w/]+):((?:\s+[\w/]+)*)", line.strip())
            if not match:
                errors.append(f"{readme}:{number}: not a line `folder: folders`: {line.strip()}")
            else:
                layers[match[1]] = set(match[2].split())
    if not found:
        errors.append(f"{readme}: has no ```layers block")
    for folder, allowed in layers.items():
        for unknown in sorted(allowed - layers.keys()):
            errors.append(f"{readme}: {folder} may include {unknown}, which is not a layer")
    return layers, errors


def find_cycle(layers):
    """A folder that reaches itself, or None: layers that include one another are no layers."""
    for start in layers:
        reached, todo = set(), set(layers[start]) - {start}
        while todo:
            folder = todo.pop()
            reached.add(folder)
            todo |= (layers.get(folder, set()) - {folder}) - reached
        if start in reached:
            return start
    return None


def top_of(layer):
    """The folder of src that a room belongs to; a folder without rooms is its own."""
    return layer.split("/")[0]


def may_include(layer, other, layers):
    """Whether a source of `layer` may include one of `other`."""
    if other == layer:
        return True
    if top_of(other) == top_of(layer):
        return other in layers[layer]
    return top_of(other) in layers[layer] | layers.get(top_of(layer), set())


def check_source(path, layer, layers):
    """The errors of one source of a layer."""
    lines = path.read_text(errors="replace").splitlines()
    errors = []
    if not lines or lines[0] != LICENCE:
        errors.append(f"{path}:1: does not begin with {LICENCE}")
    if len(lines) < 2 or not OPENING.match(lines[1]):
        errors.append(f"{path}:2: does not open with a comment: what is here, and why")
    if len(lines) > MAX_LINES:
        errors.append(f"{path}:{len(lines)}: more than {MAX_LINES} lines: two ideas in one file")
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match and top_of(match[1]) in layers and not may_include(layer, match[1], layers):
            allowed = " ".join(sorted(layers[layer])) or "nothing else"
            errors.append(f"{path}:{number}: {layer} must not include {match[1]} (it may include: {allowed})")
    return errors


def check(src):
    """All errors under src."""
    readme = src / "README.md"
    if not readme.exists():
        return [f"{readme}: does not exist"]
    layers, errors = read_layers(readme)
    cycle = find_cycle(layers)
    if cycle:
        errors.append(f"{readme}: {cycle} may include itself by way of others")
    for path in sorted(src.rglob("*")):
        if not path.is_file() or path.suffix not in SUFFIXES:
            continue
        layer = path.parent.relative_to(src).as_posix()
        if layer not in layers:
            errors.append(f"{path}:1: {layer} is not in the table of layers")
            continue
        errors += check_source(path, layer, layers)
    return errors


def self_test():
    """Each violation is found; a correct tree has no errors."""
    first = LICENCE + "\n"
    good = {"README.md": "```layers\nlow:\nhigh: low\nhigh/cellar:\nhigh/attic: high/cellar\n```\n",
            "low/a.h": first + "// Low.\n#include <vector>\n",
            "high/attic/c.cpp": first + '// Attic.\n#include "high/cellar/d.h"\n#include "low/a.h"\n',
            "high/cellar/d.h": first + "// Cellar.\n",
            "high/b.cpp": first + '// High.\n#include "high/b.h"\n#include "low/a.h"\n#include <sys/types.h>\n'}
    broken = [({"low/a.h": first + '// Low.\n\n  #  include "high/b.h"\n'}, "low/a.h:4: low must not include high"),
              ({"low/a.h": first + "// Low.\n#include <high/b.h>\n"}, "low/a.h:3: low must not include high"),
              ({"low/a.h": first + '// Low.\n#include "high/attic/c.h"\n'}, "low must not include high/attic"),
              ({"high/cellar/d.h": first + '// Cellar.\n#include "high/attic/c.h"\n'},
               "high/cellar must not include high/attic"),
              ({"high/cellar/d.h": first + '// Cellar.\n#include "high/b.h"\n'}, "high/cellar must not include high "),
              ({"high/stair/e.h": first + "// Stair.\n"}, "high/stair is not in the table"),
              ({"low/a.h": "// Low.\n"}, "low/a.h:1: does not begin with"),
              ({"low/a.h": first + "#pragma once\n"}, "low/a.h:2: does not open with a comment"),
              ({"low/a.h": ""}, "low/a.h:2: does not open with a comment"),
              ({"low/a.h": first + "// Low.\n" * 500}, "low/a.h:501: more than 500 lines"),
              ({"other/c.cpp": first + "// Other.\n"}, "other/c.cpp:1: other is not in the table"),
              ({"README.md": "no table\n"}, "has no ```layers block"),
              ({"README.md": "```layers\nlow: high\nhigh: low\n```\n"}, "may include itself"),
              ({"README.md": "```layers\nlow:\nhigh: low\nhigh/attic: high/cellar\nhigh/cellar: high/attic\n```\n"},
               "may include itself"),
              ({"README.md": "```layers\nlow: nowhere\nhigh: low\n```\n"}, "nowhere, which is not a layer")]
    failures = 0
    for change, expected in [({}, None)] + broken:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**good, **change}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
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
    default = pathlib.Path(__file__).resolve().parent.parent / "src"
    errors = check(pathlib.Path(arguments[0]) if arguments else default)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
