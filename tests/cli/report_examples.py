# SPDX-License-Identifier: Apache-2.0
"""Reports for the tests of the page: of one process with every part filled, of a job of several
ranks, and of a process whose names are hostile. Figures are made up, but they add up."""
import json
import os

MIB = 1 << 20
HOSTILE = "</title><script>window.hostile=1</script><img src=x onerror=window.hostile=2>\"'{{content}}"


def histogram(total, bounds):
    share = total // len(bounds)
    buckets = [{"upper_bound_ns": bound, "count": share} for bound in bounds]
    buckets[0]["count"] += total - share * len(bounds)
    return {"count": total, "sum_ns": sum(b["upper_bound_ns"] * b["count"] for b in buckets),
            "max_ns": bounds[-1], "p50_ns": bounds[len(bounds) // 2], "p90_ns": bounds[-3],
            "p99_ns": bounds[-2], "p99_9_ns": bounds[-1], "buckets": buckets}


def device(ordinal, calls):
    bounds = [round(100 * 1.7 ** i) for i in range(20)]
    gauge = {"application_bytes": (0, 300), "rounding_bytes": (0, 20), "retired_bytes": (40, 90),
             "cached_bytes": (260, 300), "held_bytes": (300, 420), "passthrough_bytes": (0, 64),
             "device_bytes": (0, 364), "leaked_blocks": (0, 0), "leaked_bytes": (0, 0)}
    return {
        "ordinal": ordinal, "name": f"Example GPU {ordinal}", "total_memory_bytes": 16384 * MIB,
        "counters": {
            "malloc_calls_total": calls, "served_thread_cache_total": calls * 6 // 10,
            "served_shared_cache_total": calls * 3 // 10,
            "served_fresh_total": calls - calls * 6 // 10 - calls * 3 // 10,
            "free_calls_total": calls, "frees_unwaited_busy_total": calls // 2,
            "free_waits_total": 12, "free_waits_host_copy_total": 8,
            "free_waits_pending_limit_total": 4, "free_wait_ns_total": 9_000_000,
            "growth_total": 80, "growth_bytes_total": 420 * MIB, "trims_total": 1},
        "gauges": {key: {"current": now * MIB, "peak": peak * MIB} for key, (now, peak) in gauge.items()},
        "times": {"malloc": histogram(calls, bounds), "free": histogram(calls, bounds[2:]),
                  "synchronize": histogram(40, bounds[8:])},
        "requested_sizes": [{"upper_bound_bytes": 1 << power, "count": calls // 12, "bytes": calls << power >> 1}
                            for power in range(9, 21)],
        "pool": {"reserved_current_bytes": 448 * MIB, "reserved_high_bytes": 448 * MIB,
                 "used_current_bytes": 300 * MIB, "used_high_bytes": 420 * MIB},
        "driver_slack_bytes": 148 * MIB, "unaccounted_bytes": 0}


def sites(name):
    """Call sites of a few loops, from broad to too narrow for a name, 5 to 40 calls deep."""
    frames = [{"function": f"step_of_the_solver_{i} ({name})", "file": name, "line": 10 + i} for i in range(40)]
    frames += [{"module": 0, "offset": 4096 * (1 + i)} for i in range(8)] + [{"module": None, "offset": 48}]
    listed = []
    for i in range(24):
        weight = MIB << max(0, 8 - i)
        figures = {"samples": 40, "calls": 1000 + i, "bytes": weight, "live_calls": 3, "live_bytes": weight // 8,
                   "peak_bytes": weight // 4, "temporary_calls": 900, "freed_calls": 997, "waited_calls": i}
        deep = 5 + 35 * (i % 5) // 4
        listed.append({**figures, "frames": [40 + i % 9, *range(deep - 1, -1, -1)]})
    return {"interval_bytes": 512 << 10, "widest_interval_bytes": 64 * MIB,
            "modules": [{"path": name, "build_id": "00ff"}], "frames": frames, "sites": listed,
            "others": {key: 0 for key in listed[0] if key != "frames"}, "unfollowed_samples": 0, "lost_samples": 0}


def report(rank=None, calls=12000, devices=1, name="/opt/example/simulate", host="node1"):
    begin = 1_790_000_000_000_000_000
    second = 1_000_000_000
    samples = [{"time_ns": i * second // 10,
                "devices": [{"ordinal": d, "application_bytes": (100 + 3 * i % 200) * MIB,
                             "rounding_bytes": 10 * MIB, "retired_bytes": (i * 7 % 60) * MIB,
                             "cached_bytes": (60 + i) * MIB, "pool_reserved_bytes": 448 * MIB,
                             "pool_used_bytes": 300 * MIB, "device_free_bytes": 15000 * MIB,
                             "device_total_bytes": 16384 * MIB, "counters": {}}
                            for d in range(devices)]} for i in range(50)]
    return {
        "schema_version": 1, "cupool_version": "0.1.0",
        "process": {"pid": 4711 + (rank or 0), "program_path": name, "argv0": name, "host": host,
                    "rank": None if rank is None else str(rank), "start_wall_ns": begin,
                    "end_wall_ns": begin + 5 * second},
        "snapshot_number": 0, "free_mode": "auto", "backend": "pool",
        "devices": [device(d, calls) for d in range(devices)],
        "threads": [{"tid": 4712 + i, "name": name[:15], "malloc_calls_total": calls // 4,
                     "malloc_requested_bytes_total": calls << 18, "free_calls_total": calls // 4,
                     "free_waits_total": 3, "free_wait_ns_total": 2_250_000} for i in range(4)],
        "other_threads": {"threads": 2, "malloc_calls_total": 4, "malloc_requested_bytes_total": 4096,
                          "free_calls_total": 4, "free_waits_total": 0, "free_wait_ns_total": 0},
        "events": [{"time_ns": i * second // 9, "kind": kind, "device": 0, "count": 1 + i % 3,
                    "bytes": 32 * MIB, "duration_ns": 3_000_000 if kind == "wait" else 0}
                   for i, kind in enumerate(["growth", "growth", "wait", "trim", "growth", "oom_rescue"] * 7)],
        "series": {"interval_ns": second // 10, "kept_interval_ns": second // 10, "samples": samples},
        "leaks": {"sampled_one_in": 1, "is_estimate": False, "sites": [
            {"device": 0, "blocks": 12, "bytes": 6 * MIB, "frames": [
                {"module": name, "offset": 4660, "symbol": "read_mesh"},
                {"module": name, "offset": 22136, "symbol": None}]}]},
        "sites": sites(name),
        "suggested_settings": {"CUPOOL_RELEASE_THRESHOLD": "448M", "CUPOOL_PREALLOC": "448M"},
        "settings": [{"name": "CUPOOL_STATS_FILE", "value": name, "origin": "environment", "is_default": False},
                     {"name": "CUPOOL_IPC", "value": "1", "origin": "default", "is_default": True}]}


def beyond_the_picture():
    """A small program on a device that others use: lines that its memory's picture does not reach."""
    small = report()
    for sample in small["series"]["samples"]:
        for figures in sample["devices"]:
            figures.update({key: figures[key] // 1000 for key in
                            ("application_bytes", "rounding_bytes", "retired_bytes", "cached_bytes")})
            figures.update({"passthrough_bytes": 100_000, "device_free_bytes": 100 * MIB})
    return small


def write(folder):
    """Writes the reports and returns the files of each page."""
    pages = {"one": [report(devices=2)],
             "ranks": [report(rank=r, calls=12000 if r != 2 else 90000) for r in range(5)],
             "hundred": [report(rank=r, calls=12000 + r * 37 % 900 if r != 37 else 90000, host=f"node{r // 8}")
                         for r in range(100)],
             "beyond": [beyond_the_picture()],
             "hostile": [report(name=HOSTILE, host=HOSTILE), report(rank=1, name=HOSTILE)]}
    files = {}
    for page, reports in pages.items():
        files[page] = []
        for i, content in enumerate(reports):
            path = os.path.join(folder, f"{page}{i}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file)
            files[page].append(path)
    return files
