# SPDX-License-Identifier: Apache-2.0
"""Masks what may differ from run to run in the output of a program: times, rates, addresses, process ids."""
import re

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# Times and rates: a number with its unit, or a number after a word that announces one.
MASKS = [
    rf"{NUMBER}\s*\(?(?:ms|msecs?|milliseconds?|us|usecs?|microseconds?|ns|s|secs?|seconds?|"
    r"[KMGT]i?B/s(?:ec)?|[KMGT]?flops?(?:/s)?|[A-Z]?ops?/s|fps|[KMG]?elements?/s(?:ec)?)\b\)?",
    rf"(?i)(?:time|elapsed|bandwidth|throughput|speedup|perf\w*)[^\d\n]*{NUMBER}",
    r"0x[0-9a-fA-F]{6,}",
    r"(?i)\bpid\s*=?\s*\d+",
]


def compiled(more=()):
    return [re.compile(mask) for mask in [*more, *MASKS]]


def masked(text, masks):
    for mask in masks:
        text = mask.sub("#", text)
    return text
