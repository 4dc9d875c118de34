# SPDX-License-Identifier: Apache-2.0
"""What the scripts for real GPUs share: paths, arguments, the record of the machine. Needs only
Python's standard library.
"""
import argparse
import datetime
import os
import platform
import subprocess
import sys

GPU_TESTS = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
REPOSITORY = os.path.abspath(os.path.join(GPU_TESTS, "..", ".."))
BUILT = os.path.join(REPOSITORY, ".gpu")
GPU_FIELDS = "name,driver_version,memory.total,clocks.max.sm,persistence_mode"


def built(name):
    return os.path.join(BUILT, name)


def python(script, *arguments):
    """The command of a script, named by its path in tests/gpu."""
    return [sys.executable, os.path.join(GPU_TESTS, script), *arguments]


def argument_parser(description, budget=None):
    """The arguments of all of them; the caller adds its own. budget: the default, in seconds."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--budget", type=float, default=budget, help="seconds for everything")
    parser.add_argument("--out", default=os.environ.get("OUT", "out"))
    parser.add_argument("--library", default=built("libcupool.so"))
    parser.add_argument("--env", action="append", default=[], metavar="CUPOOL_X=VALUE",
                        help="a variable for the runs with cupool; may be repeated")
    return parser


def parse_arguments(parser, sections=()):
    """The options, with the output folder made. sections: the names that are allowed there."""
    options = parser.parse_args()
    unknown = set(options.sections) - set(sections) if sections else ()
    if unknown:
        parser.error(f"no such section: {' '.join(sorted(unknown))}")
    options.out = os.path.abspath(options.out)
    options.library = os.path.abspath(options.library)
    os.makedirs(options.out, exist_ok=True)
    if not os.path.exists(options.library):
        parser.error(f"{options.library} is missing: tests/gpu/build.sh makes it")
    return options


def first_line(command):
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=60)
        return (done.stdout or done.stderr).strip() or f"exit {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def write_environment(options):
    versions = ("import importlib.metadata as m\n"
                "print([(d.name, d.version) for d in m.distributions() if d.name in "
                "('torch', 'cupy-cuda13x', 'nvidia-cudnn-cu13', 'nvidia-ml-py', 'rmm-cu13')])")
    lines = [
        f"date: {datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')}",
        f"command: {' '.join(sys.argv)}",
        f"variables given to cupool: {' '.join(options.env) or 'none'}",
        f"GPU: {first_line(['nvidia-smi', '--query-gpu=' + GPU_FIELDS, '--format=csv,noheader'])}",
        f"nvidia-smi: {first_line(['nvidia-smi', '--version'])}",
        f"kernel: {platform.platform()}, {os.cpu_count()} cores",
        f"python: {sys.version.split()[0]} at {sys.executable}",
        "versions: " + first_line([sys.executable, "-c", versions]),
        f"nvcc: {first_line(['nvcc', '--version']).splitlines()[-1]}",
        f"library: {options.library}, {os.path.getsize(options.library)} bytes",
    ]
    with open(os.path.join(options.out, "environment.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
