#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates real reports against docs/report.schema.json.

Probe programs run on the simulated device under the preload, in settings that fill different parts
of a report; each report must be valid, and must hold no key that the schema does not describe. Then
reports are spoilt on purpose, and each must be found invalid. Usage:
schema_test.py --schema FILE --library LIBCUPOOL --probes FOLDER --driver FOLDER [--runtime SANITIZER]
"""
import argparse
import copy
import glob
import json
import os
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    debian = "/usr/bin/python3"
    if os.path.realpath(sys.executable) == os.path.realpath(debian) or not os.path.exists(debian):
        sys.exit("schema_test.py needs python3-jsonschema (scripts/setup.sh installs it)")
    os.execv(debian, [debian, *sys.argv])

# Probe, its settings, and a question to its report: the part of it that this run is to fill.
RUNS = [
    ("probe_runtime_shared", {}, lambda r: r["devices"][0]["requested_sizes"]),
    ("probe_runtime_shared threads=3 iterations=30", {}, lambda r: len(r["threads"]) >= 3),
    ("probe_runtime_shared", {"CUPOOL_BACKEND": "malloc"}, lambda r: r["devices"][0]["pool"] is None),
    ("probe_runtime_shared", {"CUPOOL_FREE_MODE": "sync", "SLURM_PROCID": "3"},
     lambda r: r["process"]["rank"] == "3"),
    ("probe_driver_linked", {"CUPOOL_MAX_CACHED": "0"}, lambda r: r["events"]),
    ("probe_series mode=steps", {"CUPOOL_STATS_INTERVAL": "5ms"},
     lambda r: len(r["series"]["samples"]) >= 3),
    ("probe_runtime_shared", {"CUPOOL_TRACE": "%FOLDER%/trace.csv"},
     lambda r: r["trace"]["events_total"] == 160),
    ("probe_lane leave=per_thread", {"CUPOOL_LANE": "1"},
     lambda r: r["process"]["lane"]["end_call"] is not None),
    ("probe_lane mode=away", {"CUPOOL_LANE": "1"}, lambda r: r["process"]["lane"]["away"] > 0),
    ("probe_leaks", {"CUPOOL_LEAKS": "1"}, lambda r: r["leaks"]["sites"][0]["frames"]),
    ("probe_sites rounds=10", {"CUPOOL_SITES": "2"}, lambda r: r["sites"]["sites"][0]["frames"]),
    ("probe_series mode=small", {},
     lambda r: r["devices"][0]["peak_use"]["driver_slack_bytes"]),
    ("probe_contexts", {}, lambda r: r["devices"]),
    ("probe_runtime_shared", {"CUPOOL_MODE": "observe"}, lambda r: r["observe"]["threads"]),
    ("probe_runtime_shared devices=2", {"CUPOOL_SIM_DEVICES": "2"},
     lambda r: len(r["devices"]) >= 2),
]

# Where a report is spoilt: a path into it and what is put there (None: the key is taken out).
SPOILT = [
    (["schema_version"], 2),
    (["process", "pid"], -1),
    (["process", "rank"], 3),
    (["process", "lane"], {"seconds": 1.5}),
    (["backend"], "heap"),
    (["devices", 0, "counters", "malloc_calls_total"], None),
    (["devices", 0, "counters", "malloc_calls_total"], 1.5),
    (["devices", 0, "gauges", "held_bytes", "peak"], "1"),
    (["devices", 0, "times", "malloc", "buckets", 0, "count"], -1),
    (["devices", 0, "requested_sizes", 0, "upper_bound_bytes"], None),
    (["devices", 0, "peak_use"], {"taken_bytes": 1}),
    (["threads", 0, "tid"], 0),
    (["events", 0, "kind"], "party"),
    (["series"], 7),
    (["settings", 0, "origin"], "nowhere"),
    (["other_threads"], None),
]


def strict(schema):
    """The schema with no key allowed that it does not describe: readers tolerate them, we do not."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: strict(part) for key, part in schema.items()}
    if isinstance(changed.get("properties"), dict) and "additionalProperties" not in changed:
        changed["additionalProperties"] = False
    return changed


def run(arguments, probe, settings):
    """The reports of a probe."""
    with tempfile.TemporaryDirectory() as folder:
        preload = f"{arguments.runtime}:{arguments.library}" if arguments.runtime else arguments.library
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_LIBRARY_PATH": arguments.driver,
                       "LD_PRELOAD": preload, "CUPOOL_STATS": "json", "CUPOOL_POOL_START": "first",
                       "CUPOOL_STATS_FILE": f"{folder}/%p.json", **{key: value.replace("%FOLDER%", folder) for key, value in settings.items()}}
        environment.update({key: os.environ[key] for key in os.environ if key.endswith("SAN_OPTIONS")})
        words = probe.split()
        done = subprocess.run([os.path.join(arguments.probes, words[0]), *words[1:]], env=environment,
                              capture_output=True, timeout=120, check=False)
        if done.returncode != 0:
            sys.exit(f"{probe} {settings}: exit code {done.returncode}\n{done.stderr.decode()}")
        return [json.load(open(file, encoding="utf-8")) for file in glob.glob(f"{folder}/*.json")]


def spoil(report, path, value):
    spoilt = copy.deepcopy(report)
    place = spoilt
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return spoilt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("schema", "library", "probes", "driver"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--runtime", default="")
    arguments = parser.parse_args()
    if not hasattr(jsonschema, "Draft202012Validator"):
        print("jsonschema", jsonschema.__version__, "does not know the schema's draft: 4.0 does")
        return 77
    with open(arguments.schema, encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(strict(schema))
    failures = []
    reports = []
    for probe, settings, fills in RUNS:
        found = run(arguments, probe, settings)
        if not found:
            failures.append(f"{probe} {settings}: no report")
        for report in found:
            for error in validator.iter_errors(report):
                where = "/".join(str(step) for step in error.absolute_path)
                failures.append(f"{probe} {settings}: at {where}: {error.message[:300]}")
        if not any(fills(report) for report in found):
            failures.append(f"{probe} {settings}: does not fill the part that it is for")
        reports += found
    tolerant = jsonschema.Draft202012Validator(schema)
    for path, value in SPOILT:
        if tolerant.is_valid(spoil(reports[0], path, value)):
            failures.append(f"a report with {path} = {value} is valid")
    if not tolerant.is_valid({**reports[0], "a_key_of_a_later_version": 1}):
        failures.append("a report with a further key is not valid")
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{len(reports)} reports, {len(SPOILT)} spoilt ones, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
