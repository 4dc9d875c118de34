#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of libcupool in one pair of cudaMalloc and cudaFree, or of page-locked or stream-ordered memory, or in
one launch, counted by callgrind.

Two runs of different length, so that start and end of the process do not count; only the library's
own instructions, so that the simulated driver does not. The figure does not depend on the machine's
speed or load, but on the compiler and its options: the bound is generous.

Exit status: 0 within the bound, 1 beyond it, 77 without valgrind.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SHORT, LONG = 4000, 10000


def self_cost(profile, library):
    """The sum of costs in functions of `library`, from a callgrind profile."""
    names = {}
    in_library, inclusive, total = False, False, 0
    with open(profile, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = re.match(r"ob=\((\d+)\)(?: (.*))?", line)
            if match:
                number, name = match.groups()
                if name:
                    names[number] = name.strip()
                in_library = os.path.basename(names[number]) == library
            elif line.startswith("cob="):
                match = re.match(r"cob=\((\d+)\)(?: (.*))?", line)
                if match.group(2):
                    names[match.group(1)] = match.group(2).strip()
            elif line.startswith("calls="):
                inclusive = True  # the next line is the cost of the callee
            elif re.match(r"[+\-*0-9]", line):
                if in_library and not inclusive:
                    total += int(line.split()[1])
                inclusive = False
    return total


def run(options, pairs, folder):
    profile = os.path.join(folder, str(pairs))
    environment = dict(os.environ, LD_PRELOAD=options.library, LD_LIBRARY_PATH=options.driver,
                       CUPOOL_STATS="off", CUPOOL_MAX_PENDING="1G", CUPOOL_POOL_START="first",
                       CUPOOL_SIM_MODE="early", CUPOOL_SITES=options.sites, CUPOOL_DECAY_MS="0",  # no work that comes with time
                       CUPOOL_ASYNC="serve" if "async" in options.what else "threshold",
                       CUPOOL_SIM_MEMORY="512M")  # more is beyond valgrind's address space
    done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}",
                           options.program, str(pairs), str(options.bytes), options.what],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"the program ended with {done.returncode}:\n{done.stdout.decode()}")
    return self_cost(profile, os.path.basename(options.library))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libcupool.so")
    parser.add_argument("--program", required=True, help="hot_pair")
    parser.add_argument("--driver", required=True, help="folder of the simulated driver")
    parser.add_argument("--bytes", type=int, default=65536, help="of a block (default 65536); 0: mixed sizes")
    parser.add_argument("--what", default="", help="lane: pairs in one lane; launch: launches in one; host, host_by_driver: pairs "
                             "of page-locked memory; async, async_by_driver: of stream-ordered memory, served")
    parser.add_argument("--sites", default="0", help="CUPOOL_SITES; 1T: on, and practically no sample")
    parser.add_argument("--at-most", type=int, default=0, help="instructions; 0: only print")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        # A launch costs the simulated driver much more than the library.
        lengths = [n // 4 for n in (SHORT, LONG)] if options.what == "launch" else [SHORT, LONG]
        short, long = (run(options, pairs, folder) for pairs in lengths)
    pair = (long - short) / (lengths[1] - lengths[0])
    print(f"instructions_per_{'launch' if options.what == 'launch' else 'pair'}={pair:.1f} "
          f"bytes={options.bytes} at_most={options.at_most}")
    if pair <= 0:
        sys.exit("nothing was counted")
    return 1 if options.at_most and pair > options.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
