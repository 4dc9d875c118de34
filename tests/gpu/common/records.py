# SPDX-License-Identifier: Apache-2.0
"""Results as JSON lines: appended one by one, so that a killed run keeps what it has seen, and read again
by the run that goes on.
"""
import gzip
import json
import os
import threading


def read(paths):
    """The records of files (.jsonl, .jsonl.gz) and of folders that hold such, in this order."""
    records = []
    for path in paths:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith((".jsonl", ".jsonl.gz")))
            records += read([os.path.join(path, name) for name in names])
            continue
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    records.append(json.loads(line))
                except ValueError:
                    continue  # the last line of a run that was killed in it
    return records


class Recorder:
    """Appends records to a file and keeps them, with those of earlier runs first."""

    def __init__(self, path, earlier=()):
        self.records = list(earlier)
        self.lock = threading.Lock()
        torn = os.path.exists(path) and not open(path, "rb").read().endswith(b"\n")
        self.file = open(path, "a", encoding="utf-8")
        if torn and self.file.tell():
            self.file.write("\n")

    def add(self, **record):
        with self.lock:
            self.records.append(record)
            self.file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self.file.flush()

    def of(self, kind):
        with self.lock:
            return [record for record in self.records if record.get("kind") == kind]
