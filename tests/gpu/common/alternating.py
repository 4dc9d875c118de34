# SPDX-License-Identifier: Apache-2.0
"""Variants of a whole program in alternating rounds: what ordered.py and pairs.py both measure, so that
no variant gets the warmer machine.
"""
from common.machine import python
from common.session import Process


def alternating(session, name, variants, metric, limit, peaks=None):
    """variants: label -> (variant, command, setup). Seven rounds, each begun by another variant.
    peaks, a dictionary, gets the peaks of device memory by label."""
    times = {label: [] for label in variants}
    results = {label: set() for label in variants}
    labels = list(variants)
    for i in range(session.options.rounds):
        shift = i % len(labels)
        for label in labels[shift:] + labels[:shift]:
            variant, command, setup = variants[label]
            run = session.run(f"{name}, {label}", command, variant, limit, setup, index=i,
                              memory=peaks is not None)
            if run.code == 0:
                times[label].append(run.values[metric])
                results[label].add("\n".join(run.results))
                if peaks is not None:
                    peaks.setdefault(label, []).append(run.memory)
    return times, results


def torch_runs(session):
    """As alternating(), but the imports of two rounds go side by side before these are timed."""
    command = python("programs/warm_start.py")
    script = python("programs/torch_train.py")[1]
    variants = {"own allocator": ("legacy", "own"), "cupool": ("auto", "plain"),
                "cupool, 64M pending": ("auto-64M", "plain")}
    labels = list(variants)
    order = []
    for i in range(session.options.rounds):
        order += [(i, label) for label in labels[i % 3:] + labels[:i % 3]]
    times = {label: [] for label in variants}
    results = {label: set() for label in variants}
    for begin in range(0, len(order), 6):
        started = []
        for i, label in order[begin:begin + 6]:
            variant, kind = variants[label]
            started.append((i, label, Process(session, command + [kind, script, "60"], variant,
                                              stdin=True)))
        for _, _, process in started:
            process.wait_ready(session.left(60))
        for i, label, process in started:
            process.go()
            run = process.finish(session.left(40))
            variant, kind = variants[label]
            session.record(f"torch, {label}", variant, i, run)
            reserved = run.values.get("torch_reserved_bytes", -1)
            if run.code == 0 and (reserved > 0) != (kind == "own"):
                session.require(f"torch uses the allocator that is meant, {label}", False,
                                f"{reserved:.0f} bytes reserved", "> 0 with its own only")
            elif run.code == 0:
                times[label].append(run.values["ms_per_step"])
                results[label].add("\n".join(run.results))
    return times, results
