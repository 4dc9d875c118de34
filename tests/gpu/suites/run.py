#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs other people's own tests without cupool and with it in each mode, and compares every test's outcome.

Takes prepared suites from a folder; suites.json says which there can be and how each is run. Keeps every
outcome in OUT/suites.jsonl as it comes. A run that ends early is continued by the next one, which is given
the earlier files by --earlier. Tests that differ are run alone again. Writes OUT/suites.md and
OUT/suites.json, and with --write the part of docs/evidence.md; --report does only that. Exit code: 0,
nothing differs unexplained; 1, something does; 2, nothing was compared; 3, not finished yet.
Needs only Python's standard library, and pytest for suites that use it.
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import kinds  # noqa: E402
import merge  # noqa: E402
import sections  # noqa: E402
from attempt import MODES  # noqa: E402
from common import records  # noqa: E402
from common.document import write_part  # noqa: E402
from common.machine import REPOSITORY, built, session_record  # noqa: E402
from tables import Summary  # noqa: E402
from work import Work  # noqa: E402

FOR_AGAIN = 0.15  # of the budget, kept for what differs


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help="names of suites; default: all")
    parser.add_argument("--folder", default=os.path.join(REPOSITORY, ".gpu", "suites"), help="prepared suites")
    parser.add_argument("--list", default=os.path.join(HERE, "suites.json"), metavar="FILE", help="the descriptions")
    parser.add_argument("--explanations", default=os.path.join(HERE, "explanations.json"), metavar="FILE")
    parser.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at a time")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--again", type=int, default=3, metavar="N", help="runs alone, each way, of what differs")
    parser.add_argument("--earlier", action="append", default=[], metavar="FILE", help="results to go on from")
    parser.add_argument("--out", default=os.environ.get("OUT", "out"))
    parser.add_argument("--library", default=built("libcupool.so"))
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    if options.modes[0] != merge.WITHOUT or set(options.modes) - set(MODES):
        parser.error(f"--modes needs 'without' first, then some of {', '.join(MODES)}")
    options.library = os.path.abspath(options.library)
    if not options.report and not os.path.exists(options.library):
        parser.error(f"{options.library} is missing: tests/gpu/build.sh makes it")
    return options


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def run_all(suites, recorder, options, explanations, deadline):
    """True if there is nothing left to do."""
    work = Work(suites, recorder, options, explanations)
    work.list_all()
    first_deadline = deadline - FOR_AGAIN * options.budget
    alone, others = work.slices()
    # One at a time takes longest for the fewest tests: last, so that a budget that ends has compared the most.
    finished = work.run(others, options.jobs, first_deadline) and work.run(alone, 1, first_deadline)
    for kind in ("again", "company"):
        pieces = work.again(kind)
        print(f"{len(pieces)} runs once more of what differs ({kind})", flush=True)
        alone = [piece for piece in pieces if piece.suite.wants_alone(piece.names)]
        others = [piece for piece in pieces if not piece.suite.wants_alone(piece.names)]
        finished = work.run(alone, 1, deadline) and work.run(others, options.jobs, deadline) and finished
    return finished


def main():
    options = parse()
    deadline = time.monotonic() + options.budget
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "suites.jsonl")
    earlier = [name for name in options.earlier if os.path.abspath(name) != os.path.abspath(path)]
    recorder = records.Recorder(path, records.read([*earlier, *([path] if os.path.exists(path) else [])]))
    rows = [row for row in load(options.list)["suites"] if not options.suites or row["name"] in options.suites]
    suites = [kinds.suite(row, options.folder) for row in rows]
    explanations = merge.Explanations(load(options.explanations)["explanations"])
    finished = True
    if not options.report:
        recorder.add(kind="session", **session_record(options.library))
        finished = run_all(suites, recorder, options, explanations, deadline)
    names = {suite.name for suite in suites}
    asked = {name: result for name, result in merge.results(recorder.records).items() if name in names}
    summary = Summary(rows, asked, explanations, options.modes, options.again)
    sessions = [{key: value for key, value in record.items() if key != "kind"} for record in recorder.of("session")]
    text = summary.markdown(sessions)
    with open(os.path.join(options.out, "suites.md"), "w", encoding="utf-8") as file:
        file.write(text)
    with open(os.path.join(options.out, "suites.json"), "w", encoding="utf-8") as file:
        json.dump(summary.json(sessions), file, indent=1, ensure_ascii=False)
    if options.write:
        document = sections.of_document(options.write)
        for row in rows:
            if row["name"] not in asked:
                continue
            of_suite = Summary([row], {row["name"]: asked[row["name"]]}, explanations, options.modes, options.again)
            section = of_suite.markdown(sections.sessions_of(row["name"], recorder.records), f"### {row['name']}")
            if sections.counts(section) or row["name"] not in document:  # not run here is no news
                document[row["name"]] = section
        order = [row["name"] for row in load(options.list)["suites"]]
        write_part(options.write, "suites", sections.text(document, order))
    print("\n" + summary.headline())
    if not finished:
        print(f"Not finished: the same command with --earlier {path} goes on.")
    if summary.unexplained():
        return 1
    return 3 if not finished else 0 if summary.compared() else 2


if __name__ == "__main__":
    sys.exit(main())
