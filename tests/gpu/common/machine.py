# SPDX-License-Identifier: Apache-2.0
"""What the scripts for real GPUs share: paths, arguments, the record of the machine. Needs only
Python's standard library.
"""
import argparse
import datetime
import hashlib
import os
import platform
import shlex
import shutil
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


VERSIONS = """import importlib.metadata as m
wanted = ('torch', 'cupy-cuda13x', 'nvidia-cudnn-cu13', 'nvidia-ml-py', 'rmm-cu13', 'jax', 'cuda-core',
          'cuda-bindings', 'numba-cuda', 'warp-lang', 'pytest')
print(', '.join(sorted({f'{d.name} {d.version}' for d in m.distributions() if d.name in wanted})) or 'no package')"""


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def gpu():
    if shutil.which("nvidia-smi") is None:
        return "no GPU"
    return first_line(["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader"])


def session_record(library):
    """What results say of the machine, the libraries and the command that they come from."""
    with open(library, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"date": now(), "command": shlex.join([os.path.relpath(sys.argv[0], REPOSITORY), *sys.argv[1:]]),
            "gpu": gpu(), "kernel": f"{platform.platform()}, {os.cpu_count()} cores",
            "versions": "Python " + sys.version.split()[0] + ", " + first_line([sys.executable, "-c", VERSIONS]),
            "library": f"{os.path.basename(library)} sha256 {digest[:12]}"}


def write_environment(options):
    lines = [
        f"date: {now()}",
        f"command: {' '.join(sys.argv)}",
        f"variables given to cupool: {' '.join(options.env) or 'none'}",
        f"GPU: {gpu()}",
        f"nvidia-smi: {first_line(['nvidia-smi', '--version'])}",
        f"kernel: {platform.platform()}, {os.cpu_count()} cores",
        f"python: {sys.version.split()[0]} at {sys.executable}",
        "versions: " + first_line([sys.executable, "-c", VERSIONS]),
        f"nvcc: {first_line(['nvcc', '--version']).splitlines()[-1]}",
        f"library: {options.library}, {os.path.getsize(options.library)} bytes",
    ]
    with open(os.path.join(options.out, "environment.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
