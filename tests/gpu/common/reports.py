# SPDX-License-Identifier: Apache-2.0
"""What the reports of cupool in a folder say: that it took part in a run, and how."""
import glob
import json
import os


def variables(folder):
    """The environment that makes every process of a run leave a report in the folder."""
    return {"CUPOOL_STATS": "json", "CUPOOL_STATS_FILE": os.path.join(folder, "report-%p")}


def counters(folder):
    """The sums of all processes' counters, by their keys."""
    totals = {}
    for path in glob.glob(os.path.join(folder, "report-*")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                devices = json.load(file)["devices"]
        except (OSError, ValueError, KeyError):
            continue
        for device in devices:
            for key, value in device["counters"].items():
                totals[key] = totals.get(key, 0) + value
    return totals
