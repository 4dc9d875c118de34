#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs public programs that allocate in their loops: as they are, with cupool, and with their own pool.

Takes ready-made programs from a folder; programs.json says which there can be. Every run is kept in
OUT/programs.jsonl as it comes; programs that earlier files (--earlier) have in full on this kind of GPU are not
run again. Writes OUT/programs.md, and with --write the part of docs/evidence.md; --report does only that, from
all --earlier files: one of each kind of GPU, say. Exit code: 0; 1, results differ; 2, nothing ran; 3, no time
for all. Needs only Python's standard library, and pynvml for finer peaks of memory.
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from common import records  # noqa: E402
from common.document import write_part  # noqa: E402
from common.machine import REPOSITORY, built, session_record  # noqa: E402
from programs import AS_IS, OWN, Program  # noqa: E402
from table import measured, part  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs; default: all")
    parser.add_argument("--folder", default=os.path.join(REPOSITORY, ".gpu", "public"), help="ready-made programs")
    parser.add_argument("--list", default=os.path.join(HERE, "programs.json"), metavar="FILE", help="the descriptions")
    parser.add_argument("--runs", type=int, default=5, help="each way (default: 5)")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--env", action="append", default=[], metavar="CUPOOL_X=VALUE", help="for the runs with cupool")
    parser.add_argument("--earlier", action="append", default=[], metavar="FILE", help="results to go on from")
    parser.add_argument("--out", default=os.environ.get("OUT", "out"))
    parser.add_argument("--library", default=built("libcupool.so"))
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    if not options.report and not os.path.exists(options.library):
        parser.error(f"{options.library} is missing: tests/gpu/build.sh makes it")
    return options


def run_program(program, session, recorder, options, deadline):
    """All runs of a program, in rounds that each begin with another way; False if there was no time."""
    ways = program.ways
    if OWN in ways and program.missing(OWN):
        ways = [way for way in ways if way != OWN]
        recorder.add(kind="not_run", program=f"{program.name}:own pool", why=program.missing(OWN))
    begin = time.monotonic()
    first = program.run(AS_IS, options, deadline - begin)  # files and the driver's cache are read once
    if time.monotonic() >= deadline:
        return False
    if first["exit"] != 0:
        why = f"not done after {program.limit} s" if first["exit"] == "timeout" else f"exit {first['exit']}: {first['tail']}"
        recorder.add(kind="not_run", program=program.name, why="fails as it is: " + why)
        return True
    for round_number in range(options.runs):
        round_begin = time.monotonic()
        shift = round_number % len(ways)
        for way in ways[shift:] + ways[:shift]:
            run = program.run(way, options, deadline - time.monotonic())
            if time.monotonic() >= deadline:
                return False  # it may have been cut off, which says nothing
            recorder.add(kind="run", program=program.name, way=way, round=round_number, gpu=session["gpu"],
                         session=session["date"], **run)
            print(f"  {program.name}, {way}: exit {run['exit']}, {run['seconds']:.2f} s"
                  + (f", time {run['time']:g}" if run["time"] is not None else ""), flush=True)
        # By this round: the first run of all, which reads the files, can take many times as long.
        rounds_left = options.runs - round_number - 1
        if time.monotonic() + (time.monotonic() - round_begin) * rounds_left > deadline:
            return False
    return True


def run_all(programs, session, recorder, options, deadline):
    """Names of programs that there was no time for."""
    done = {name: min(len(runs) for runs in found.runs.values())
            for name, found in measured([p.row for p in programs], recorder.records, session["gpu"]).items()}
    late = []
    for program in programs:
        if done.get(program.name, 0) >= options.runs:
            continue
        if program.missing():
            recorder.add(kind="not_run", program=program.name, why=program.missing())
        elif time.monotonic() > deadline or not run_program(program, session, recorder, options, deadline):
            late.append(program.name)
    return late


def main():
    options = parse()
    deadline = time.monotonic() + options.budget
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "programs.jsonl")
    earlier = [name for name in options.earlier if os.path.abspath(name) != os.path.abspath(path)]
    recorder = records.Recorder(path, records.read([*earlier, *([path] if os.path.exists(path) else [])]))
    with open(options.list, encoding="utf-8") as file:
        rows = [row for row in json.load(file)["programs"] if not options.programs or row["name"] in options.programs]
    late = []
    if not options.report:
        session = session_record(options.library)
        recorder.add(kind="session", **session)
        late = run_all([Program(row, options.folder) for row in rows], session, recorder, options, deadline)
    text = part(rows, recorder.records)
    with open(os.path.join(options.out, "programs.md"), "w", encoding="utf-8") as file:
        file.write(text)
    if options.write:
        write_part(options.write, "programs", text)
    print("\n" + text)
    runs = recorder.of("run")
    if late:
        print(f"No time for {', '.join(late)}: the same command with --earlier {path} goes on.")
    if any(found.wrong() for gpu in {run["gpu"] for run in runs}
           for found in measured(rows, recorder.records, gpu).values()):
        return 1
    return 2 if not runs else 3 if late else 0


if __name__ == "__main__":
    sys.exit(main())
