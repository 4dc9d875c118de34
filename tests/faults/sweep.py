#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every driver call of every test program made to fail once, in turn, on the simulated device; with
--pairs a call that comes after it, too; with --shut-down the driver ends there, as it does when
another thread leaves the process.

Our trouble is never the program's error (docs/design.md, fail open). A program run under the
preload learns which driver functions are called and how often; then it is run once for each
function, call and plausible code. It must end, show what it showed without the fault, or what it
shows without the preload when a call that it makes itself fails so.

A pair is such a fault and the next call, after it, of a function that the program is seen to call then.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

SERVES = {"CUPOOL_ASYNC": "serve"}
SERVES_FULL = {"CUPOOL_ASYNC": "serve", "CUPOOL_SIM_MEMORY": "256M"}

# Name, command, environment. The probes are those of tests/preload that end by themselves soon.
PROGRAMS = [
    ("crowd", "faults/programs/crowd", {}),
    ("crowd_ordered", "faults/programs/crowd lean=no",
     {"CUPOOL_FREE_MODE": "ordered", "CUPOOL_MAX_PENDING": "256K"}),
    ("crowd_sync", "faults/programs/crowd", {"CUPOOL_FREE_MODE": "sync"}),
    ("crowd_malloc", "faults/programs/crowd",
     {"CUPOOL_BACKEND": "malloc", "CUPOOL_MAX_CACHED": "128K"}),
    ("crowd_no_events", "faults/programs/crowd", {"LD_LIBRARY_PATH": "lib-no-ctx-event"}),
    ("pressure", "faults/programs/pressure", {"CUPOOL_SIM_MEMORY": "128M"}),
    ("pressure_prealloc", "faults/programs/pressure",
     {"CUPOOL_SIM_MEMORY": "256M", "CUPOOL_PREALLOC": "48M"}),
    ("crowd_start", "faults/programs/crowd", {"CUPOOL_POOL_START": "background"}),
    ("crowd_pools", "faults/programs/crowd", {"CUPOOL_BACKEND": "pool"}),
    ("crowd_default_pool", "faults/programs/crowd", {"CUPOOL_POOL": "default"}),
    ("contexts", "faults/programs/contexts", {"CUPOOL_SIM_DEVICES": "2"}),
    ("runtime", "preload/probes/probe_runtime_shared threads=1", {}),
    ("runtime_static", "preload/probes/probe_runtime_static", {}),
    ("driver_linked", "preload/probes/probe_driver_linked", {}),
    ("dlsym", "preload/probes/probe_dlsym", {}),
    ("getproc", "preload/probes/probe_getproc", {}),
    ("errors_runtime", "preload/probes/probe_errors route=runtime", {}),
    ("errors_driver", "preload/probes/probe_errors route=driver", {}),
    ("pitch", "preload/probes/probe_pitch", {}),
    ("alignment", "preload/probes/probe_alignment", {}),
    ("reset", "preload/probes/probe_contexts mode=reset", {}),
    ("two_contexts", "preload/probes/probe_contexts mode=contexts", {}),
    ("primary", "preload/probes/probe_contexts mode=primary", {}),
    ("capture_contexts", "preload/probes/probe_capture_contexts", {"CUPOOL_SIM_DEVICES": "2"}),
    ("step_aside", "preload/probes/probe_step_aside", {"CUPOOL_SIM_MEMORY": "512M"}),
    ("host_memory", "preload/probes/probe_host_memory case=pairs threads=3 rounds=2", {}),
    ("host_memory_busy", "preload/probes/probe_host_memory case=busy", {"CUPOOL_FREE_MODE": "ordered"}),
    ("host_memory_reset", "preload/probes/probe_host_memory case=reset", {}),
    ("serve_pairs", "preload/probes/probe_async mode=pairs", SERVES),
    ("serve_others", "preload/probes/probe_async mode=others", SERVES),
    ("serve_order", "preload/probes/probe_async mode=order stream=legacy", SERVES),
    ("serve_free", "preload/probes/probe_async mode=free", SERVES),
    ("serve_errors", "preload/probes/probe_async mode=errors", SERVES),
    ("serve_context", "preload/probes/probe_async mode=context", SERVES),
    ("serve_info", "preload/probes/probe_async mode=info", SERVES),
    ("serve_oom", "preload/probes/probe_async mode=oom", SERVES),
    ("serve_sizes", "preload/probes/probe_async mode=sizes", SERVES),
    ("serve_full", "preload/probes/probe_async_full case=elsewhere by=malloc", SERVES_FULL),
    ("serve_gone", "preload/probes/probe_async_full case=gone by=async", SERVES_FULL),
    ("serve_later", "preload/probes/probe_async_full case=later by=async",
     {**SERVES_FULL, "CUPOOL_SIM_MODE": "timed"}),
    ("serve_captured", "preload/probes/probe_async_full case=captured by=malloc", SERVES_FULL),
    ("serve_ended", "preload/probes/probe_async_full case=ended end=reset by=malloc", SERVES_FULL),
    ("serve_chunk", "preload/probes/probe_async_beside chunk",
     {**SERVES_FULL, "CUPOOL_SIM_MODE": "timed"}),
    ("serve_gap", "preload/probes/probe_async_beside gap", {**SERVES_FULL, "CUPOOL_SIM_MODE": "timed"}),
    ("full_device", "preload/probes/probe_full_device", {}),
    ("full_wait", "preload/probes/probe_device_limit mode=wait", {}),
    ("lane_graph", "preload/probes/probe_lane leave=graph", {}),
    ("exit_return", "preload/probes/probe_exit mode=return", {}),
    ("exit_destructor", "preload/probes/probe_exit mode=destructor", {}),
]

# What a function may plausibly answer, by the first pattern that matches. "!": there to stay.
CODES = [(re.compile(pattern + "$"), codes.split()) for pattern, codes in [
    (r"cuMemAllocFromPoolAsync|cuMemAllocAsync|cuMemAlloc(Pitch|Managed)?(_v2)?",
     "2 1 801 999 700!"),
    (r"cu(Event|Stream)(Query|Synchronize)|cuCtxSynchronize(_v2)?", "700! 719! 4! 999"),
    (r"cuCtxRecordEvent", "801 1 2 901 999 700!"),
    (r"cuEventRecord.*", "1 2 999 700!"),
    (r"cu(Event|Stream)Create.*", "2 999 700!"),
    (r"cuMemPoolCreate|cuDeviceGet(Default)?MemPool", "801 2 1"),
    (r"cuMemPool.*", "1 801"),
    (r"cuMemGetInfo_v2", "1 999 700!"),
    (r"cuCtxGetCurrent", "3 4! 201"),
    (r"cuCtx(Push|Pop|Set)Current(_v2)?", "201 4!"),
    (r"cuDevicePrimaryCtx.*|cuCtx(Create|Destroy).*", "2 201 999 700!"),
    (r"cuMemFree(Async)?(_v2)?", "1 999 700!"),
    (r"cuGetProcAddress.*", "1 500"),
    (r"cuInit", "100 999"),
    (r"cuStream(Begin|End)Capture.*", "1 901 999 700!"),
    (r"cuGraph.*", "1 2 700!"),
    (r"cuMem(cpy|set).*|cuLaunch.*", "1 700!"),
    (r".*", "1 999"),
]]

# Faults and pairs that once went wrong: always tried.
FOUND = [
    "serve_info cuStreamSynchronize:1=999",
    "serve_gone cuStreamQuery:1=999",
    "serve_gone cuMemGetInfo_v2:1=700!",
    "serve_captured cuCtxRecordEvent:3=901",
    "serve_later cuCtxRecordEvent:4=901",
    "serve_chunk cuCtxRecordEvent:4=901",
    "serve_gap cuMemGetInfo_v2:3=999",
    "full_device cuMemFree_v2:2=1",
    "full_device cuEventCreate:1=999",
    "full_wait cuMemFreeHost:1=999",
    "lane_graph cuStreamIsCapturing:1=1",
    "reset cuStreamQuery:2=999,>cuMemFreeAsync:1=1",
    "lane_graph cuStreamWaitEvent:2=1,>cuEventSynchronize:1=999",
    "errors_driver cuPointerGetAttributes:2=999,>cuPointerGetAttributes:1=1",
    "errors_driver cuCtxPopCurrent_v2:2=201,>cuCtxGetCurrent:1=3",
]

# Where nothing but the driver can do what it refused twice, the program sees what it would without
# us: the refusal of its own call. Pools that are refused twice are taken for pools that cannot be shared.
ONLY_THE_DRIVER = [("cuMemPoolExport", "cuIpcGetMemHandle", None),
                   ("cuMemPoolCreate", "cuIpcGetMemHandle", "1")]

# They show how much memory is free, or how soon. What the driver refuses twice to take back, or to tell, stays.
SINGLE_FAULTS = {"serve_info", "serve_gap", "full_device"}

EACH_CALL_UP_TO = 4   # of one function; from there on ever fewer of the later ones
PLAIN_CALLS_TRIED = 100  # the nearest, then as many of the others, then the rest
SHUT_DOWN = "4!"
MOST_OWN_CALLS = 4       # of a pair's functions, in a selection
BOTH_CALLS_TRIED = 3     # of the second function, after a fault of the first
LIMIT_S = 60

Run = collections.namedtuple("Run", "code out err reports timed_out")
Calls = collections.namedtuple("Calls", "counts followers")  # of each function; after a fault, by order
Case = collections.namedtuple("Case", "program function nth code")
Pair = collections.namedtuple("Pair", "program first then")  # both Cases; the second counts from the first


def fault_of(case):
    if isinstance(case, Pair):
        return f"{fault_of(case.first)},>{fault_of(case.then)}"
    return f"{case.function}:{case.nth}={case.code}"


def case_of(text):
    """The case or pair of a text such as --only takes."""
    program, faults = text.split()
    cases = [Case(program, function, int(nth), code)
             for function, nth, code in re.findall(r"(\w+):(\d+)=(\d+!?)", faults)]
    return cases[0] if len(cases) == 1 else Pair(program, *cases)


def found(names, kind):
    cases = [case_of(text) for text in FOUND if text.split()[0] in names]
    return [case for case in cases if isinstance(case, kind)]


def stays(case):
    return isinstance(case, Case) and case.code.endswith("!")


def is_shut_down(case):
    return isinstance(case, Case) and case.code == SHUT_DOWN


def codes_of(function):
    return next(codes for pattern, codes in CODES if pattern.match(function))


class Sweep:
    def __init__(self, arguments):
        self.build = pathlib.Path(arguments.build).resolve()
        self.library = os.path.abspath(arguments.library)
        self.before_library = arguments.sanitizer_runtime
        self.scratch = tempfile.TemporaryDirectory(prefix="cupool-faults-")
        self.numbers = itertools.count()
        self.plain, self.preloaded, self.calls, self.plain_calls = {}, {}, {}, {}
        self.plain_with_fault = {}
        self.lock = threading.Lock()
        self.runs = 0

    def environment(self, name, preload, fault):
        sim = self.build / "tests/sim"
        own = dict(next(row[2] for row in PROGRAMS if row[0] == name))
        values = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "LC_ALL": "C",
                  "CUPOOL_SIM_JUDGE": "1", "CUPOOL_POOL_START": "first"}
        folders = [str(sim / folder) for folder in (own.pop("LD_LIBRARY_PATH", None), "lib")
                   if folder]
        values["LD_LIBRARY_PATH"] = ":".join(folders)
        for option in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if option in os.environ:
                values[option] = os.environ[option]
        if preload:
            values["LD_PRELOAD"] = ":".join(filter(None, [self.before_library, self.library]))
        else:
            own = {key: value for key, value in own.items() if key.startswith("CUPOOL_SIM_")}
        if fault:
            values["CUPOOL_SIM_FAIL"] = fault
        values.update(own)
        return values

    def command(self, name):
        words = shlex.split(next(row[1] for row in PROGRAMS if row[0] == name))
        return [str(self.build / "tests" / words[0])] + words[1:]

    def run(self, name, preload, fault=None, calls=False):
        number = next(self.numbers)
        folder = pathlib.Path(self.scratch.name) / str(number)
        folder.mkdir()
        environment = self.environment(name, preload, fault)
        if preload:
            environment["CUPOOL_STATS"] = "json"
            environment["CUPOOL_STATS_FILE"] = str(folder / "report-%p.json")
        if calls:
            environment["CUPOOL_SIM_CALLS"] = str(folder / "calls")
        with self.lock:
            self.runs += 1
        process = subprocess.Popen(self.command(name), env=environment, cwd=folder, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        timed_out = False
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        reports = []
        for file in sorted(folder.glob("report-*.json")):
            reports.append(json.loads(file.read_text()))
        counts, followers = {}, {}
        file = folder / "calls"
        if file.exists():  # not of a program that a signal ended
            for line in file.read_text().splitlines():
                symbol, count, *after = line.split()
                counts[symbol] = int(count)
                if after:
                    followers[int(after[1])] = symbol
        shutil.rmtree(folder, ignore_errors=True)  # a child that outlives it may still write
        calls = Calls(counts, [followers[place] for place in sorted(followers)])
        return Run(process.returncode, out, err, reports, timed_out), calls

    def learn(self, name):
        self.plain[name], plain = self.run(name, False, calls=True)
        self.preloaded[name], preloaded = self.run(name, True, calls=True)
        self.plain_calls[name], self.calls[name] = plain.counts, preloaded.counts

    def cases(self, names, shut_down):
        """All of them, in a fixed order."""
        result = []
        for name in names:
            for function, count in sorted(self.calls[name].items()):
                for nth in chosen_calls(count):
                    codes = [SHUT_DOWN] if shut_down else codes_of(function)
                    result += [Case(name, function, nth, code) for code in codes]
        return result

    def pairs_after(self, first, all_codes):
        """The pairs that begin with a fault: one for each function that is called after it."""
        _, calls = self.run(first.program, True, fault_of(first), calls=True)
        for function in calls.followers:
            lasting = [code for code in codes_of(function) if not code.endswith("!")]
            for code in lasting if all_codes else lasting[:1]:
                yield Pair(first.program, first, Case(first.program, function, 1, code))

    def is_costly(self, pair):
        """Whether the program itself calls the functions so often that many outcomes are right."""
        counts = self.plain_calls[pair.program]
        return counts.get(pair.first.function, 0) + counts.get(pair.then.function, 0) > MOST_OWN_CALLS

    def outcomes_without_us(self, case):
        """What the program shows when its own n-th call fails so, for one n after the other."""
        if isinstance(case, Pair):
            yield from self.outcomes_without_us(case.first)
            yield from self.outcomes_without_us(case.then)
            yield from self.outcomes_of_both(case)
            for ours, the_programs, code in ONLY_THE_DRIVER:
                if case.first.function.startswith(ours) and case.then.function.startswith(ours):
                    refused = case.then._replace(function=the_programs, code=code or case.then.code)
                    yield from self.outcomes_without_us(refused)
            return
        count = self.plain_calls[case.program].get(case.function, 0)
        nearest = sorted(range(1, count + 1), key=lambda nth: abs(nth - case.nth))
        near, far = nearest[:PLAIN_CALLS_TRIED], nearest[PLAIN_CALLS_TRIED:]
        some = far[::1 + len(far) // PLAIN_CALLS_TRIED]
        for nth in dict.fromkeys(near + some + far):
            key = case._replace(nth=nth)
            with self.lock:
                known = self.plain_with_fault.get(key)
            if known is None:
                run, _ = self.run(case.program, False, fault_of(key))
                known = (run.code, run.out)
                with self.lock:
                    self.plain_with_fault[key] = known
            yield known

    def outcomes_of_both(self, pair):
        """The same where both calls are the program's own."""
        for nth in range(1, min(self.plain_calls[pair.program].get(pair.first.function, 0),
                                PLAIN_CALLS_TRIED) + 1):
            for then in range(1, 1 + BOTH_CALLS_TRIED):
                both = pair._replace(first=pair.first._replace(nth=nth), then=pair.then._replace(nth=then))
                run, _ = self.run(pair.program, False, fault_of(both))
                yield run.code, run.out

    def check(self, case):
        """What is wrong with the run, or None."""
        run, _ = self.run(case.program, True, fault_of(case))
        normal = self.plain[case.program]
        wrong = None
        if run.timed_out:
            wrong = "a hang"
        elif run.code < 0:
            if (run.code, run.out) not in self.outcomes_without_us(case):
                wrong = f"signal {-run.code}"
        elif "Sanitizer" in run.err:
            wrong = "a sanitizer's complaint"
        elif is_shut_down(case) and warnings_of(run) - warnings_of(self.preloaded[case.program]):
            wrong = "a warning, though the driver has ended"
        elif (run.code, run.out) == (normal.code, normal.out):
            wrong = self.wrong_in_reports(case, run)
        elif stays(case) and tells_only(run, normal, case.code[:-1], is_shut_down(case)):
            pass
        elif not any(same_or_success(run, *shown) for shown in self.outcomes_without_us(case)):
            wrong = "the program sees a difference"
        return wrong and f"{wrong}\n{self.described(run, normal)}"

    def wrong_in_reports(self, case, run):
        """Lost blocks: the program has freed what it frees without the fault."""
        if stays(case):
            return None  # the driver frees nothing any more
        expected = figures(self.preloaded[case.program].reports)
        found = figures(run.reports)
        for report in run.reports:
            for device in report["devices"]:
                if device["unaccounted_bytes"] != 0:
                    return f"unaccounted: {device['unaccounted_bytes']} bytes"
        if found["live_bytes"] > expected["live_bytes"]:
            return f"live: {found['live_bytes']} bytes instead of {expected['live_bytes']}"
        # What a destroyed context left behind waits in the pool for the device's next one.
        if expected["lost_bytes"] == 0 and found["lost_bytes"] != 0:
            return f"lost in the pool: {found['lost_bytes']} bytes"
        return None

    @staticmethod
    def described(run, normal):
        lines = [f"exit code {run.code}, without the fault {normal.code}"]
        for title, text in (("shown", run.out), ("without the fault", normal.out),
                            ("standard error", run.err)):
            lines += [f"--- {title}"] + text.splitlines()[-25:]
        return "\n".join(lines)


def warnings_of(run):
    return set(re.findall(r"cupool\[\d+\] (warning.*)", run.err))


def chosen_calls(count):
    nth, step = 1, 1
    while nth <= count:
        yield nth
        if nth >= EACH_CALL_UP_TO:
            step *= 2
        nth += step


def figures(reports):
    sums = collections.Counter()
    for report in reports:
        for device in report["devices"]:
            for key in ("application_bytes", "passthrough_bytes"):
                sums["live_bytes"] += device["gauges"][key]["current"]
            pool = device["pool"]
            if pool is not None:
                held = device["gauges"]["held_bytes"]["current"]
                sums["lost_bytes"] += max(0, pool["used_current_bytes"] - held)
    return sums


def same_or_success(run, code, out):
    """The same, or fewer errors: a call that succeeds where the driver's would not."""
    lines, others = run.out.splitlines(), out.splitlines()
    missing = [line for line in others if line not in lines]
    return (run.code == code and all(line in others for line in lines) and
            all(line.startswith("error:") for line in missing))


def tells_only(run, normal, code, details):
    """A sticky error may reach the program anywhere, but it is the only thing that may; with `details`,
    also what the program tells of such a call in indented lines below it."""
    def without_number(line):
        return re.sub(r" x\d+$", "", line)  # of times that an error was told
    usual = {without_number(line) for line in normal.out.splitlines()}
    if "wrong:" in run.out or "WRONG" in run.out or run.code not in (normal.code, 4):
        return False
    told = False
    for line in run.out.splitlines():
        if re.search(rf"\b{code}\b", line):
            told = True
        elif not details or not line.startswith("  "):
            told = False
        if not told and without_number(line) not in usual:
            return False
    return True


def selected(cases, runs, seed):
    """A part of the cases: every function of every program before a second call of one."""
    random_numbers = random.Random(seed)
    groups = collections.defaultdict(list)
    for case in cases:
        groups[(case.program, case.function)].append(case)
    for group in groups.values():
        random_numbers.shuffle(group)
    keys = sorted(groups)
    random_numbers.shuffle(keys)
    rounds = itertools.zip_longest(*(groups[key] for key in keys))
    flat = (case for turn in rounds for case in turn if case is not None)
    return list(itertools.islice(flat, runs))


def pairs(sweep, pool, cases, wanted, everything):
    """The pairs that begin with one of the cases, each pair of functions once unless all are wanted."""
    begun = (case for case in cases if not stays(case))
    seen = set()
    result = []
    while wanted is None or len(result) < wanted:
        some = list(itertools.islice(begun, 4 * os.cpu_count()))
        if not some:
            break
        for found in pool.map(lambda first: list(sweep.pairs_after(first, everything)), some):
            for pair in found:
                names = (pair.first.function, pair.then.function)
                if everything:
                    result.append(pair)
                elif names not in seen and not sweep.is_costly(pair):
                    seen.add(names)
                    result.append(pair)
                    break  # the nearest; another case that begins so has the next
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="build folder")
    parser.add_argument("--library", required=True, help="libcupool.so")
    parser.add_argument("--sanitizer-runtime", default="", help="preloaded before the library")
    parser.add_argument("--runs", type=int, default=900, help="how many of the cases")
    parser.add_argument("--all", action="store_true", help="all cases")
    parser.add_argument("--seed", type=int, default=1, help="of the choice")
    parser.add_argument("--program", action="append", help="only this one")
    parser.add_argument("--function", default=".*", help="only functions that match")
    parser.add_argument("--pairs", action="store_true", help="faults in pairs")
    parser.add_argument("--shut-down", action="store_true", help="the driver ends there")
    parser.add_argument("--only", help="one case: PROGRAM FUNCTION:N=CODE[,>FUNCTION:N=CODE]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    sweep = Sweep(arguments)
    names = arguments.program or [row[0] for row in PROGRAMS]
    if arguments.only:
        names = arguments.only.split()[:1]
    if arguments.pairs and not arguments.only:
        names = [name for name in names if name not in SINGLE_FAULTS]
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    list(pool.map(sweep.learn, names))
    for name in names:
        plain, preloaded = sweep.plain[name], sweep.preloaded[name]
        if (plain.code, plain.out) != (preloaded.code, preloaded.out) or not plain.out:
            sys.exit(f"{name} differs without any fault:\n{Sweep.described(preloaded, plain)}")
    cases = [case for case in sweep.cases(names, arguments.shut_down)
             if re.match(arguments.function, case.function)]
    possible = len(cases)
    if arguments.only:
        cases = [case_of(arguments.only)]
    elif arguments.pairs:
        cases = selected(cases, possible, arguments.seed)
        cases = found(names, Pair) + pairs(sweep, pool, cases, None if arguments.all else arguments.runs,
                                           arguments.all)
    else:
        cases = selected(cases, possible if arguments.all else arguments.runs, arguments.seed)
        before = [] if arguments.shut_down else found(names, Case)
        cases = before + [case for case in cases if case not in before]

    failures = 0
    for case, wrong in zip(cases, pool.map(sweep.check, cases)):
        if not wrong:
            continue
        failures += 1
        again = [sys.argv[0], "--build", arguments.build, "--library", arguments.library]
        if arguments.sanitizer_runtime:
            again += ["--sanitizer-runtime", arguments.sanitizer_runtime]
        again += ["--only", f"{case.program} {fault_of(case)}"]
        print(f"{case.program} {fault_of(case)}: {wrong}\nagain: {shlex.join(again)}\n", flush=True)
    what = "pairs of" if arguments.pairs else f"of {possible}"
    print(f"{len(cases)} {what} faults in {len(names)} programs, {sweep.runs} runs: "
          f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
