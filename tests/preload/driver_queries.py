#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a driver for its functions in every way, with and without cupool: each hook has to be given out,
and nothing else to be touched. A genuine driver needs no GPU for that: --driver names the folder of its
library, as old or new as it may be."""

import argparse
import ctypes
import os
import re
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = (0, 1, 2)  # no, the legacy, the per-thread default stream


class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def hooks():
    """Exported name to (base name, version)."""
    found = {}
    with open(os.path.join(REPOSITORY, "src/entry/hooks.def"), encoding="utf-8") as table:
        for line in table:
            match = re.match(r"HOOK\((\w+), (\w+), (\d+),", line)
            if match:
                found[match.group(1)] = (match.group(2), int(match.group(3)))
    return found


def exports(driver):
    """The names that the driver's library exports."""
    output = subprocess.run(["nm", "-D", "--defined-only", os.path.join(driver, "libcuda.so.1")],
                            check=True, capture_output=True, text=True).stdout
    return sorted({line.split()[-1].split("@")[0] for line in output.splitlines()
                   if re.match(r".* [TW] cu[A-Z]", line)})


def ask(names):
    """What this process is given, a line an answer: how it was asked for, whose, its exported name."""
    driver = ctypes.CDLL("libcuda.so.1")
    process = ctypes.CDLL(None)
    process.dlsym.restype = ctypes.c_void_p
    process.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    info = DlInfo()

    def tell(question, address):
        process.dladdr(ctypes.c_void_p(address), ctypes.byref(info))
        ours = "cupool" if b"libcupool" in os.path.basename(info.file) else "driver"
        exact = info.symbol.decode() if info.symbol and info.address == address else "-"
        print(question, ours, exact)

    for name in names:
        address = process.dlsym(driver._handle, name.encode())
        if address:
            tell(f"dlsym:{name}", address)
    query = ctypes.cast(process.dlsym(driver._handle, b"cuGetProcAddress_v2"),
                        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int,
                                         ctypes.c_uint64, ctypes.c_void_p))
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    versions = sorted({2000, version.value} | {v + d for _, v in hooks().values() for d in (-10, 0)})
    for name in sorted({re.sub(r"(_v\d+|_ptsz|_ptds)+$", "", name) for name in names}):
        for asked in versions:
            for flags in FLAGS:
                found = ctypes.c_void_p()
                if query(name.encode(), ctypes.byref(found), asked, flags, None) == 0 and found.value:
                    tell(f"query:{name}:{asked}:{flags}", found.value)
    print("version", version.value)


def answers(options, preload):
    environment = dict(os.environ, LD_LIBRARY_PATH=options.driver, CUPOOL_STATS="off")
    if preload:
        environment["LD_PRELOAD"] = options.library
    output = subprocess.run([sys.executable, os.path.abspath(__file__), "--driver", options.driver, "--ask"],
                            check=True, capture_output=True, text=True, env=environment).stdout
    lines = [line.split() for line in output.splitlines()]
    return {line[0]: line[1:] for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True, help="the folder of libcuda.so.1")
    parser.add_argument("--library", default=os.path.join(REPOSITORY, "build/release/libcupool.so"))
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask(exports(options.driver))
        return 0
    plain, preloaded = answers(options, False), answers(options, True)
    table = hooks()
    hooked = wrong = 0
    for question, answer in sorted(plain.items()):
        if question == "version":
            continue
        _, name = answer
        expected = ["cupool", name] if name in table else answer
        hooked += name in table
        if preloaded.get(question) != expected:
            wrong += 1
            print(f"{question}: {preloaded.get(question)} in place of {expected}")
    unexported = sum(answer[-1] == "-" for answer in plain.values())
    print(f"driver {plain['version'][0]}: {len(plain) - 1} answers, {hooked} of them hooks, "
          f"{unexported} not exported, {wrong} wrong")
    invented = sorted(set(preloaded) - set(plain))
    for question in invented:
        print(f"{question}: only under cupool")
    return 1 if wrong or not hooked or invented else 0


if __name__ == "__main__":
    sys.exit(main())
