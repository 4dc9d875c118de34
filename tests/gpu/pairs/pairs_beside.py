# SPDX-License-Identifier: Apache-2.0
"""A pair with another build of the library beside the present one, for run_pairs.sh beside: did a
change of the engine cost time? --beside names the other library.
"""
from pairs_session import PAIR_HEADER, measure, pair_rows, ratio_goal, values

KIB = 1 << 10
MIB = 1 << 20
MIXED = {"sizes": "mixed", "blocks": 16}
SHAPES = {
    "1 thread, 64 KiB, idle": {"threads": 1, "size": 64 * KIB, "streams": 0},
    "1 thread, mixed, idle": {"threads": 1, **MIXED, "streams": 0},
    "1 thread, 4 MiB, idle": {"threads": 1, "size": 4 * MIB, "streams": 0},
    "16 threads, 64 KiB, idle": {"threads": 16, "size": 64 * KIB, "streams": 0},
    "16 threads, mixed, idle": {"threads": 16, **MIXED, "streams": 0},
    "producer and consumer, 64 KiB, idle": {"mode": "producer", "threads": 2, "size": 64 * KIB,
                                            "streams": 0},
    "1 thread, 64 KiB, 1 busy stream": {"threads": 1, "size": 64 * KIB, "streams": 1},
    "1 thread, 64 KiB, 4 busy streams": {"threads": 1, "size": 64 * KIB, "streams": 4},
}
# Medians of runs in turn differ by as much without any change.
MOST = 1.03


def beside(session):
    if not session.options.beside:
        session.require("another library is named", False, "no --beside", "a path")
        return
    rows, ratios = [], []
    for what, shape in SHAPES.items():
        runs = measure(session, shape, ["cupool", "beside"])
        rows += pair_rows(what, runs)
        ratio = ratio_goal(session, f"no slower than the library beside, {what}",
                           values(runs["cupool"], "ns_per_pair"),
                           values(runs["beside"], "ns_per_pair"), MOST)
        ratios.append([what, ratio])
    session.table("This library to the one beside it", ["shape", "ratio of ns per pair"], ratios)
    session.table("Both libraries", PAIR_HEADER, rows)
