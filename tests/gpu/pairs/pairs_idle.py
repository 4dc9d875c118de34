# SPDX-License-Identifier: Apache-2.0
"""The section of pairs.py about idle memory: what calls feel of memory that goes back to the device, and
what the first allocation waits for.
"""
from common.machine import built
from common.session import VARIANTS, spread
from pairs_session import in_turn, middle, right_counts, values

IDLE_MIB = 16384
GIB = 1 << 30
# The driver itself would serve the first blocks while the pools start.
POOLED = {"CUPOOL_POOL_START": "first"}
VARIANTS.update({
    "pooled": POOLED,
    "no give-back": {**POOLED, "CUPOOL_DECAY_MS": "0"},
    "decay": {**POOLED, "CUPOOL_DECAY_MS": "400"},
    "prealloc": {**POOLED, "CUPOOL_PREALLOC": "8G"},
    "prealloc, background": {**POOLED, "CUPOOL_PREALLOC": "8G,background"},
})
CALLS = ("malloc", "launch", "free")
# What the program may feel of the default give-back, and of one every 0.4 s: another scheduling hiccup.
MOST_TIMES = {"pooled": 1.1, "decay": 1.5}
# The default gives back after 5 s.
SECONDS = 8


def reserved(run):
    devices = run.report["devices"] if run.report else []
    return sum(device["pool"]["reserved_current_bytes"] for device in devices if device["pool"])


def idle(session):
    names = ["pooled", "no give-back", "decay", "prealloc", "prealloc, background"]
    runs = {name: [] for name in names}
    for i, name in in_turn(session, names):
        seconds = 1 if "prealloc" in name else SECONDS
        run = session.run("idle_memory", [built("idle_memory"), f"idle_mib={IDLE_MIB}", f"seconds={seconds}"],
                          name, 40, index=i)
        if run.code == 0 and right_counts(session, run, name, "idle_memory"):
            runs[name].append(run)
    rows = []
    for name, done in runs.items():
        left = [reserved(run) / GIB for run in done]
        rows.append([name, len(done), spread(values(done, "first_malloc_us"), " us"), spread(left, " GiB"),
                     *[spread(values(done, f"{call}_{share}_ns"), " ns")
                       for call in CALLS for share in ("p999", "max")]])
    for run in runs["decay"] + runs["pooled"]:
        returned = run.counter("returned_bytes_total")
        # A thread that goes on keeps some for itself.
        session.require("what lies idle goes back to the device",
                        reserved(run) <= GIB and returned >= (IDLE_MIB << 20) - GIB,
                        f"{reserved(run)} bytes reserved, {returned} returned",
                        "at most 1 GiB, all but 1 GiB")
    for name, most in MOST_TIMES.items():
        for call in CALLS:
            given, kept = (middle(runs[of], f"{call}_p999_ns") for of in (name, "no give-back"))
            session.require(f"p99.9 of {call} while memory goes back ({name}), to that without",
                            None not in (given, kept) and given <= most * kept, f"{given} ns, {kept} ns",
                            f"<= {most}")
    first = {name: middle(runs[name], "first_malloc_us") for name in names}
    told = first["prealloc, background"], first["prealloc"], first["pooled"]
    session.require("the first allocation does not wait for a preallocation in the background",
                    None not in told and told[0] - told[2] <= (told[1] - told[2]) / 10,
                    " us, ".join(str(each) for each in told) + " us",
                    "a tenth of what it waits for one in the foreground")
    session.table("Idle memory: 16 GiB left, then blocks of 64 KiB",
                  ["variant", "runs", "first cudaMalloc", "reserved at exit",
                   *[f"{call} {share}" for call in CALLS for share in ("p99.9", "max")]], rows)
