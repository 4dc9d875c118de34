#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every source names the licence.

Sources are files in C, C++, CUDA, assembly, shell, Python, CMake or Lua that git tracks or does not ignore,
Apptainer definitions, and all scripts that begin with #!. The first line, or the one after #!, is a
comment with only the SPDX identifier. LICENSE itself must exist. Exit code 77 if the folder is not a
working copy of git.
Usage: check_licence.py [--self-test] [FOLDER]
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LICENCE = "SPDX-License-Identifier: Apache-2.0"
SLASHES = {".h", ".hpp", ".c", ".cpp", ".cc", ".cu", ".cuh", ".def", ".inc", ".S"}
HASHES = {".sh", ".py", ".cmake"}
NO_WORKING_COPY = 77
LINES = {"//": re.compile(rf"// {LICENCE}|/\* {LICENCE} \*/"), "#": re.compile(rf"# {LICENCE}"),
         "--": re.compile(rf"-- {LICENCE}")}


def comment_of(path, first_line):
    """The comment marker of a source's language; None if the file is not a source."""
    if path.suffix == ".lua":
        return "--"
    if path.suffix == ".def" and first_line.startswith("#"):  # Apptainer's; ours are lists for C++
        return "#"
    if path.suffix in SLASHES:
        return "//"
    if path.suffix in HASHES or path.name == "CMakeLists.txt" or first_line.startswith("#!"):
        return "#"
    return None


def check_source(name, path):
    """The error of one file, or None."""
    with path.open(errors="replace") as file:
        lines = [file.readline().rstrip("\n") for _ in range(2)]
    comment = comment_of(path, lines[0])
    if comment is None:
        return None
    number = 1 if lines[0].startswith("#!") else 0
    if LINES[comment].fullmatch(lines[number]):
        return None
    return f"{name}:{number + 1}: is not `{comment} {LICENCE}`"


def files_of(folder):
    """The names of all files that git tracks or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout.decode()
    return sorted(set(listed.split("\0")) - {""})


def check(folder):
    """All errors of a working copy."""
    listed = files_of(folder)
    errors = [] if (folder / "LICENSE").is_file() else ["LICENSE: does not exist"]
    for name in listed:
        path = folder / name
        if path.is_file() and not path.is_symlink():  # else removed, and not yet from the index
            errors.append(check_source(name, path))
    return [error for error in errors if error is not None]


def self_test():
    """Each violation is found; a correct tree has no errors."""
    slashes, hashes = f"// {LICENCE}\n", f"# {LICENCE}\n"
    good = {"LICENSE": "The licence.\n", "README.md": "No source.\n", "a.cpp": slashes + "// A.\n",
            "b.S": f"/* {LICENCE} */\n", "c.cu": slashes, "d/e.sh": "#!/bin/sh\n" + hashes,
            "d/f.py": "#!/usr/bin/env python3\n" + hashes, "d/CMakeLists.txt": hashes, "g": "#!/bin/sh\n" + hashes,
            "h.py": hashes, "i.def": slashes, "j.def": hashes, "k.lua": f"-- {LICENCE}\n",
            ".gitignore": "/build/\n", "build/made.cpp": "int made;\n"}
    broken = [({"a.cpp": "// A.\n" + slashes}, "a.cpp:1: is not"), ({"a.cpp": ""}, "a.cpp:1: is not"),
              ({"a.cpp": hashes}, "a.cpp:1: is not"), ({"b.S": "# b\n"}, "b.S:1: is not"),
              ({"c.cu": "// SPDX-License-Identifier: MIT\n"}, "c.cu:1: is not"),
              ({"c.cu": "// SPDX-License-Identifier: Apache-2.0 OR MIT\n"}, "c.cu:1: is not"),
              ({"d/e.sh": "#!/bin/sh\n# Does e.\n"}, "d/e.sh:2: is not"),
              ({"d/CMakeLists.txt": "project(d)\n"}, "d/CMakeLists.txt:1: is not"),
              ({"d/new.cmake": "set(a b)\n"}, "d/new.cmake:1: is not"), ({"g": "#!/bin/sh\n"}, "g:2: is not"),
              ({"j.def": "# Builds j.\n"}, "j.def:1: is not"), ({"k.lua": hashes}, "k.lua:1: is not"),
              ({"h.py": "print()\n"}, "h.py:1: is not"), ({"LICENSE": None}, "LICENSE: does not exist")]
    failures = 0
    for change, expected in [({}, None)] + broken:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name, content in {**good, **change}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is not None:
                    path.write_text(content)
            errors = check(pathlib.Path(folder))
        right = not errors if expected is None else len(errors) == 1 and expected in errors[0]
        if not right:
            failures += 1
            print(f"self-test: expected {expected!r}, got {errors}", file=sys.stderr)
    return failures


def main(arguments):
    if "--self-test" in arguments:
        return 1 if self_test() else 0
    default = pathlib.Path(__file__).resolve().parent.parent
    try:
        errors = check(pathlib.Path(arguments[0]) if arguments else default)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"check_licence.py: {error}", file=sys.stderr)
        return NO_WORKING_COPY
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
