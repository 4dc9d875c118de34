#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the preload costs a process without CUDA, such as the many of a batch script.

Instructions of /bin/true, counted by callgrind, with and without the library. Apart are those of the
dynamic loader, which maps, relocates and binds the library as it does any other: its share depends on
the loader. What is left is the library's own: start and end of the process. The figures do not depend
on the machine's speed or load.

Then many processes run under the preload: none may print anything or fail.

Exit status: 0 within the bounds, 1 beyond them, 77 without valgrind.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile


def costs(profile):
    """Self cost by object: its file's name to instructions."""
    names, total = {}, {}
    inside, inclusive = "", False
    with open(profile, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line)
            if match:
                called, number, name = match.groups()
                if name:
                    names[number] = os.path.basename(name.strip())
                if not called:
                    inside = names[number]
            elif line.startswith("calls="):
                inclusive = True  # the next line is the cost of the callee
            elif re.match(r"[+\-*0-9]", line):
                if not inclusive:
                    total[inside] = total.get(inside, 0) + int(line.split()[1])
                inclusive = False
    return total


def environment(library):
    chosen = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    if library:
        chosen["LD_PRELOAD"] = library
    return chosen


def count(library, program, folder):
    profile = os.path.join(folder, "with" if library else "without")
    done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", program],
                          env=environment(library), capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} ended with {done.returncode}:\n{done.stderr.decode()}")
    by_object = costs(profile)
    loader = sum(cost for name, cost in by_object.items() if re.match(r"ld[-.]", name))
    return loader, sum(by_object.values()) - loader


def run_many(library, program, number, folder):
    """An error, or nothing."""
    out = os.path.join(folder, "out")
    with open(out, "wb") as file:
        actions = [(os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)]
        for i in range(number):
            child = os.posix_spawn(program, [program], environment(library), file_actions=actions)
            _, status = os.waitpid(child, 0)
            if status != 0:
                return f"process {i} ended with status {status}"
    with open(out, "rb") as file:
        printed = file.read(200)
    return f"printed: {printed!r}" if printed else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libcupool.so")
    parser.add_argument("--program", default=shutil.which("true"), help="default: true")
    parser.add_argument("--processes", type=int, default=10000, help="to run (default 10000)")
    parser.add_argument("--at-most", type=int, default=0, help="instructions besides the loader's; 0: only print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trouble = run_many(options.library, options.program, options.processes, folder)
        if trouble:
            sys.exit(trouble)
        if shutil.which("valgrind") is None:
            print("skipped: valgrind is not installed")
            return 77
        loader, rest = count(None, options.program, folder)
        loader_with, rest_with = count(options.library, options.program, folder)
    own = rest_with - rest
    print(f"instructions_besides_the_loader={own} of_the_loader={loader_with - loader} "
          f"processes={options.processes} at_most={options.at_most}")
    return 1 if options.at_most and own > options.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
