#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Contract rows 4 to 12 on a real GPU: each program without cupool and with it, compared.

contract.py one|two [NAME...]: the programs for one GPU or for two, all or those whose name contains a
NAME. What a program can do without cupool it must be able to do with it, its memory and its exit code
included (contract.h says which lines are compared how). Writes environment.txt, raw.csv, table.md and
log.txt into the output folder; exits non-zero if something required does not hold. Usually started by
run_contract.sh.
"""
import concurrent.futures
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from common.machine import (argument_parser, built, parse_arguments, python,  # noqa: E402
                            write_environment)
from common.session import MIB, VARIANTS, Session  # noqa: E402

VARIANTS["malloc"] = {"CUPOOL_BACKEND": "malloc"}
PLAIN, AUTO, MALLOC = "legacy", "auto", "malloc"
# A growth step of each of the two pools, and the chunk that is kept for the driver's own small blocks.
TOLERANCE = (2 * 32 + 2) * MIB
# With pools from the first allocation on, a refusal makes spare streams (docs/compatibility.md).
SPARE_STREAMS = 2 * MIB
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


class Job:
    """One program with its arguments. code: its exit code without cupool, where it is no verdict.
    alone: it looks at the device's free memory, or at times. named: each line's name is fixed, so that
    one that is missing under cupool counts. most: the highest value of a fact with cupool."""

    def __init__(self, name, command, variants=(PLAIN, AUTO), limit=20, code=None, alone=False,
                 named=True, reports=True, setup=None, arguments=None, most=None):
        self.name = name
        self.command = command
        self.variants = variants
        self.limit = limit
        self.code = code
        self.alone = alone
        self.named = named
        self.reports = reports
        self.setup = setup or {}
        self.arguments = arguments or {}
        self.most = most or {}
        self.runs = {}


def torch_jobs(script, *arguments, limit=60, **options):
    name = os.path.splitext(os.path.basename(script))[0]
    return [Job(f"{name} {label}", python(script, *arguments), limit=limit, setup=setup, **options)
            for label, setup in (("cache off", NO_CACHE), ("cache on", {}))]


def jobs_of_one():
    fill = built("fill_memory")
    jobs = [Job(f"fill {part}", [fill, part], variants, alone=True)
            for part, variants in (("fresh", (PLAIN, AUTO, MALLOC)), ("live", (PLAIN, AUTO, MALLOC)),
                                   ("phase", (PLAIN, AUTO)), ("blocks", (PLAIN, AUTO)))]
    jobs += [Job(f"other allocators {group}", [built("other_allocators"), str(group)], alone=True)
             for group in range(4)]
    # A growth step of the pool may stay; a pair with a wait costs 108 to 145 us without cupool (H100).
    jobs += [Job(f"default pool {part}", [built("default_pool"), part], limit=40, reports=False,
                 alone=part != "reads", most={"pair_us": 20} if part == "times" else None)
             for part in ("times", "reads", "others", "pending", "fragments", "reset", "owned")]
    jobs += torch_jobs("proofs/contract/torch_graphs.py")
    jobs += torch_jobs("proofs/contract/torch_multi.py")
    jobs += [Job(f"captures {part}", [built("captures"), part]) for part in ("matrix", "launches")]
    jobs += [Job("captures calls", [built("capture_calls")]),
             Job("captures contexts", [built("capture_contexts")]),
             Job("step aside", [built("step_aside")], limit=60, alone=True),
             Job("step aside copies", [built("step_aside"), "copy=1"])]
    jobs += [Job(f"life {mode}", [built("lifecycle"), mode], code=code, reports=False)
             for mode, code in (("exit_busy", 7), ("handlers", 7), ("quick_exit", 5), ("_exit", 6),
                                ("abort", -6), ("terminate", -15), ("return", 0),
                                ("exit_in_handler", 0), ("fork__exit", 0), ("fork_exit", 0),
                                ("fork_malloc", 0), ("fork_before", 0))]
    jobs += [Job(f"contexts {part}", [built("contexts"), part], alone=True)
             for part in ("facts", "own", "reset")]
    jobs.append(Job("life threads", [built("lifecycle"), "threads"], alone=True))
    return jobs


def jobs_of_two():
    peers = built("peers")
    three = (PLAIN, AUTO, MALLOC)
    jobs = [Job(f"peers {part}", [peers, part], three) for part in ("copies", "kernels", "driver")]
    jobs.append(Job("peers stress", [peers, "stress"], three, alone=True,
                    arguments={PLAIN: ["limit_ms=4000"], AUTO: ["limit_ms=8000"],
                               MALLOC: ["limit_ms=4000"]}))
    jobs.append(Job("captures contexts", [built("capture_contexts")]))
    jobs += torch_jobs("proofs/contract/torch_nccl.py")
    if os.path.exists(built("ipc_pair")):
        jobs.append(Job("ipc_pair", [built("ipc_pair")], three, limit=40, alone=True, named=False))
    jobs += torch_jobs("proofs/contract/torch_share.py", named=False)
    return jobs


def verdicts(run):
    """The PASS and FAIL lines by name; a name that comes twice is as bad as its worst line."""
    found = {}
    for line in run.out.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("PASS", "FAIL"):
            name = rest.partition(": ")[0].rstrip(":")
            found[name] = found.get(name, True) and kind == "PASS"
    return found


def facts(run):
    return dict(re.findall(r"^fact ([\w.]+)=(.*)$", run.out, re.MULTILINE))


def shorter(names):
    names = list(names)
    return "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")


def difference(key, theirs, ours):
    """What is wrong with a fact under cupool, or None."""
    kind = key.partition(".")[0]
    if kind not in ("same", "valid", "exact", "bytes"):
        return None
    if ours is None:
        return f"{key} is missing"
    if kind == "same":
        return None if ours == theirs else f"{key} is {ours}, not {theirs}"
    if kind == "valid":
        return None if int(ours) >= int(theirs) else f"{key} no more"
    short = int(theirs) - int(ours)
    exact = SPARE_STREAMS if "CUPOOL_POOL_START=first" in sys.argv else 0
    allowed = exact if kind == "exact" else TOLERANCE
    # More than without cupool is no harm.
    return None if short <= allowed else f"{key}: {short} bytes ({short / MIB:.1f} MiB) less"


def judge_plain(session, job, plain):
    good = plain.code == job.code if job.code is not None else plain.code in (0, 1)
    good = good and (job.code is not None or bool(verdicts(plain) or facts(plain)))
    session.require(f"{job.name}: runs without cupool", good, f"exit {plain.code}",
                    f"exit {job.code}" if job.code is not None else "exit 0, or 1 with verdicts")
    # What fails without cupool is not required of it, but what it does instead is of interest.
    failing = [name for name, right in verdicts(plain).items() if not right]
    for variant, run in job.runs.items() if failing else ():
        lines = [line for line in run.out.splitlines()
                 if line.startswith(("PASS ", "FAIL ")) and line[5:].startswith(tuple(failing))]
        session.notes.append(f"- {job.name}, {'without' if run is plain else variant}: {shorter(lines)}")


def judge(session, job):
    plain = job.runs.get(PLAIN)
    if plain is None:
        session.require(f"{job.name}: runs", False, "no time left", "a run")
        return
    judge_plain(session, job, plain)
    for variant in job.variants[1:]:
        run = job.runs.get(variant)
        if run is None:
            session.require(f"{job.name}, {variant}: runs", False, "no time left", "a run")
            continue
        theirs, ours = verdicts(plain), verdicts(run)
        worse = [name for name, right in ours.items() if not right and theirs.get(name, True)]
        if job.named:
            worse += [f"{name} (missing)" for name, right in theirs.items()
                      if right and name not in ours]
        mine = facts(run)
        worse += filter(None, (difference(key, value, mine.get(key))
                               for key, value in facts(plain).items()))
        worse += [f"{key} is {mine.get(key)}, above {most}" for key, most in job.most.items()
                  if float(mine.get(key, "inf")) > most]
        # Better than without is right as well, where the exit code is a verdict.
        ends = run.code == plain.code or (job.code is None and run.code == 0)
        passed = sum(ours.values())
        session.require(f"{job.name}, {variant}: as without cupool", ends and not worse,
                        f"exit {run.code}, {passed} PASS" + (f", worse: {shorter(worse)}" if worse else ""),
                        f"exit {plain.code}, {sum(theirs.values())} PASS")
        if job.reports and run.code in (0, 1):
            session.require(f"{job.name}, {variant}: cupool was there", run.report is not None,
                            "report" if run.report else "no report", "report")


def show(session, job):
    """The facts side by side; of many only those that differ."""
    found = {variant: facts(run) for variant, run in job.runs.items()}
    for variant, values in found.items():
        for key, value in values.items():
            session.rows.append([session.section, job.name, variant, 0, key, value])
        for name, right in verdicts(job.runs[variant]).items():
            session.rows.append([session.section, job.name, variant, 0, name, "PASS" if right else "FAIL"])
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    if len(keys) > 40:
        keys = [key for key in keys if len({values.get(key) for values in found.values()}) > 1]
    if keys:
        session.facts += [[job.name, key] + [found.get(variant, {}).get(key, "-")
                                             for variant in (PLAIN, AUTO, MALLOC)] for key in keys]


def execute(session, job, variant):
    if time.monotonic() > session.deadline:
        return
    job.runs[variant] = session.run(job.name, job.command + job.arguments.get(variant, []), variant,
                                    job.limit, setup={"CUPOOL_TEST_MODULE": built("kernels.fatbin"),
                                                      **job.setup}, may_fail=True)


def run_all(session, jobs, workers):
    for job in jobs:
        if job.alone and job.name.startswith(("fill", "other")):
            for variant in job.variants:
                execute(session, job, variant)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(execute, session, job, variant)
                   for job in jobs if not job.alone for variant in job.variants]
        for one in waiting:
            one.result()
    for job in jobs:
        if job.alone and not job.runs:
            for variant in job.variants:
                execute(session, job, variant)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("gpus", choices=("one", "two"))
    parser.add_argument("names", nargs="*", help="parts of names of programs (default: all)")
    parser.add_argument("--workers", type=int, default=4, help="programs side by side")
    options = parse_arguments(parser)
    options.budget = options.budget or {"one": 145, "two": 115}[options.gpus]
    write_environment(options)
    session = Session(options)
    session.section, session.notes, session.facts = options.gpus, [], []
    jobs = jobs_of_one() if options.gpus == "one" else jobs_of_two()
    jobs = [job for job in jobs if not options.names or any(n in job.name for n in options.names)]
    if not jobs:
        parser.error("no program has such a name")
    run_all(session, jobs, options.workers)
    for job in jobs:
        judge(session, job)
        show(session, job)
    notes = ("\n".join(session.notes) or "- nothing failed") + "\n"
    session.tables.append("### What fails without cupool, and with it\n\n" + notes)
    session.table("Facts", ["program", "fact", "without", "auto", "malloc"], session.facts)
    # The rest is in table.md: what is printed has to fit the end of a log.
    print("\n" + notes)
    for row in session.failed():
        print(f"NOT MET {row[1]}: {row[2]} (goal: {row[3]})")
    return 0 if session.conclude() else 1


if __name__ == "__main__":
    sys.exit(main())
