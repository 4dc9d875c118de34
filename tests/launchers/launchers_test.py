#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real launchers start a program on the simulated device by the lines of docs/cluster.md: each rank is served,
rank 0 has the whole report and every other a line, and files have rank, job and node in their names.

    launchers_test.py Slurm|OpenMpi|Mpich|Torchrun --command build/dev/cupool --library build/dev/libcupool.so
        --program PROBE --driver build/dev/tests/sim/lib

Each launcher is a test of CTest (label `launchers`). One that is not installed is skipped (77), and named.
"""

import argparse
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import slurm_cluster

OPTIONS = argparse.Namespace()
HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 60  # of a whole job, which takes less than one
CALLS = 80    # allocations of a rank of the program


def wait_for(what, holds):
    end = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"no {what} after {SECONDS} s")
        time.sleep(0.02)


class Ended:
    """A process's output and exit status."""

    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __str__(self):
        return f"exit {self.status}\nstandard output:\n{self.out}\nstandard error:\n{self.err}"


class Job(unittest.TestCase):
    """A folder for each test, a clean environment, and the checks."""

    variables = {}

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def place(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self):
        return {"PATH": os.path.dirname(OPTIONS.command) + ":/usr/local/bin:/usr/bin:/bin", "HOME": self.folder,
                "LC_ALL": "C", "TMPDIR": self.folder, "LD_LIBRARY_PATH": OPTIONS.driver,
                "CUPOOL_LIBRARY": OPTIONS.library, "CUPOOL_POOL_START": "first", "CUPOOL_SIM_JUDGE": "1",
                "PROGRAM": OPTIONS.program, "LIBRARY": OPTIONS.library, **self.variables}

    def shell(self, line, **variables):
        """A line as a user types it; `$PROGRAM` is the program, `$LIBRARY` the library."""
        done = subprocess.run(["/bin/sh", "-c", line], cwd=self.folder, env={**self.environment(), **variables},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=SECONDS, check=False)
        ended = Ended(done)
        self.assertEqual(ended.status, 0, ended)
        return ended

    def reports(self, pattern="*.json"):
        """Rank and report of each file."""
        found = {}
        for path in glob.glob(self.place(pattern)):
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            found[report["process"]["rank"]] = report
        return found

    def assert_ranks(self, number, pattern="*.json"):
        reports = self.reports(pattern)
        self.assertEqual(sorted(reports), [str(rank) for rank in range(number)], os.listdir(self.folder))
        for report in reports.values():
            self.assertEqual(report["devices"][0]["counters"]["malloc_calls_total"], CALLS)
            self.assertEqual(report["backend"], "pool")
            self.assertIsNone(report["mode_reason"])
        return reports

    def assert_one_report_and_a_line_each(self, ended, number):
        self.assertEqual(ended.out.count("wrong_bytes=0"), number, ended)
        self.assertEqual(ended.err.count("\n  Device       0: "), 1, ended)
        self.assertEqual(len(re.findall(r", rank 0,", ended.err, re.MULTILINE)), 1, ended)
        lines = re.findall(rf"^cupool: rank (\d+), process \d+ on .*: {CALLS} allocations", ended.err, re.MULTILINE)
        self.assertEqual(sorted(lines), [str(rank) for rank in range(1, number)], ended)


class Launcher(Job):
    """What holds for all. `self.start` begins each line, `self.give` hands a variable to the ranks."""

    ranks = 2
    start = give = None

    @classmethod
    def setUpClass(cls):
        if cls is Launcher:
            raise unittest.SkipTest("the tests of each launcher")

    def test_command_runs_in_each_rank(self):
        self.assert_one_report_and_a_line_each(self.shell(f"{self.start} cupool run $PROGRAM"), self.ranks)

    def test_command_runs_the_launcher(self):
        self.assert_one_report_and_a_line_each(self.shell(f"cupool run {self.start} $PROGRAM"), self.ranks)

    def test_reports_of_all_ranks(self):
        ended = self.shell(f"{self.start} cupool run --stats json --stats-file %r.json $PROGRAM")
        # srun says so where a job had to wait for the one before.
        self.assertEqual(re.sub(r"^srun: job \d+ .*\n", "", ended.err, flags=re.MULTILINE), "")
        self.assertEqual(sorted(os.listdir(self.folder)), [f"{rank}.json" for rank in range(self.ranks)])
        self.assert_ranks(self.ranks)
        summary = self.shell("cupool report .")
        for rank in range(self.ranks):
            self.assertRegex(summary.out, rf"\brank {rank}\b")

    def test_a_shared_name_loses_no_report(self):
        ended = self.shell(f"{self.start} cupool run --stats json --stats-file run.json $PROGRAM")
        self.assert_ranks(self.ranks)
        self.assertIn("run.json", os.listdir(self.folder))
        self.assertEqual(ended.err.count("does not tell ranks apart"), 1, ended)

    def test_variables_handed_to_the_ranks(self):
        given = self.give.format(variable="LD_PRELOAD=" + OPTIONS.library)
        self.assert_one_report_and_a_line_each(self.shell(f"{self.start} {given} $PROGRAM"), self.ranks)

    def test_observe_has_one_verdict(self):
        ended = self.shell(f"cupool observe {self.start} $PROGRAM")
        self.assertEqual(ended.err.count("pooling would save at most"), 1, ended)
        self.assertIn(f"of {self.ranks} processes together", ended.err)
        self.assertNotIn("ranks reported", ended.err)

    def test_compare_counts_the_processes(self):
        # A launcher passes on the ranks' lines as they come: sorted, they are the same each time.
        ended = self.shell(f"cupool compare -n 1 -- sh -c '{self.start} $PROGRAM > lines && sort lines'")
        self.assertIn(f"{self.ranks} processes used the GPU in each run", ended.out)
        self.assertIn("Same results", ended.out)

    def assert_snapshots(self, signal_job):
        """Each rank of a running job writes a snapshot once signal_job(launcher) has sent USR1."""
        line = (f"exec {self.start} cupool run --stats json --stats-file %r.json --stats-signal USR1 --trace %r.csv "
                "--trace-limit 1M $PROGRAM iterations=10000000")
        launcher = subprocess.Popen(["/bin/sh", "-c", line], cwd=self.folder, env=self.environment(),
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # From the first allocation on there is a handler.
            wait_for("allocations", lambda: all(os.path.exists(self.place(f"{rank}.csv")) and
                                                os.path.getsize(self.place(f"{rank}.csv")) > 4096
                                                for rank in range(self.ranks)))
            signal_job(launcher)
            wait_for("snapshots", lambda: all(os.path.exists(self.place(f"{rank}.1.json"))
                                              for rank in range(self.ranks)))
            self.assertIsNone(launcher.poll())
            for report in self.reports("*.1.json").values():
                self.assertEqual(report["snapshot_number"], 1)
        finally:
            launcher.terminate()
            launcher.wait(timeout=SECONDS)

    def test_signal_to_the_launcher_writes_snapshots(self):
        self.assert_snapshots(lambda launcher: launcher.send_signal(signal.SIGUSR1))


class MpiLauncher(Launcher):
    """Programs of MPI besides: cupool serves them with plain memory, and says why."""

    compiler = library = headers = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if cls is MpiLauncher:
            raise unittest.SkipTest("the tests of each MPI")

    def build(self, compiler, source):
        """Compiles a program of MPI with the launcher's own compiler, or skips the test."""
        if shutil.which(compiler) is None:
            self.skipTest(f"no {compiler}")
        self.shell("echo '#include <mpi.h>' >header.c")
        if "missing" in self.shell(f"{self.compiler} -E header.c >/dev/null 2>&1 || echo missing").out:
            self.skipTest(f"no header of {self.compiler} (Debian: {self.headers})")
        self.shell(f"{compiler} -O1 -o program {shlex.quote(os.path.join(HERE, source))} "
                   f"-L{shlex.quote(OPTIONS.driver)} -l:libcudart.so.13", LD_LIBRARY_PATH="")

    def test_calls_of_fortran_are_seen(self):
        self.build(self.compiler.replace("mpicc", "mpif90"), "mpi_program.f90")
        ended = self.shell(f"{self.start} cupool run --stats json --stats-file %r.json ./program")
        self.assertIn("sum=1\n", ended.out, str(ended))
        for report in self.reports().values():
            self.assertEqual((report["free_mode"], report["backend"]), ("auto", "malloc"), report["mode_reason"])

    def test_program_of_mpi_has_plain_memory(self):
        self.build(self.compiler, "mpi_program.c")
        ended = self.shell(f"{self.start} cupool run --stats text,json --stats-file %r.json ./program")
        self.assertIn(f"rank 1 of {self.ranks}: sum=1 errors=0", ended.out)
        for rank in range(self.ranks):
            report = self.reports()[str(rank)]
            self.assertEqual(report["requested"], {"free_mode": "auto", "backend": "auto"})
            self.assertEqual((report["free_mode"], report["backend"]), ("auto", "malloc"))
            self.assertTrue(report["mode_reason"]["library"].startswith(self.library), report["mode_reason"])
            with open(self.place(f"{rank}.txt"), encoding="utf-8") as file:
                self.assertRegex(file.read(), r"In force: free mode auto, backend malloc \(plain memory\), because "
                                              + re.escape(self.library))


class OpenMpi(MpiLauncher):
    start, give = "mpirun.openmpi --oversubscribe -n 2", "-x {variable}"
    compiler, library, headers = "mpicc.openmpi", "libmpi.so", "libopenmpi-dev"
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if shutil.which("mpirun.openmpi") is None:
            raise unittest.SkipTest("no mpirun.openmpi (Debian: openmpi-bin)")

    def test_four_ranks(self):
        self.shell("mpirun.openmpi --oversubscribe -n 4 cupool run --stats json --stats-file %r-%n.json $PROGRAM")
        for report in self.assert_ranks(4).values():
            self.assertEqual(report["process"]["ranks"], 4)


class Mpich(MpiLauncher):
    start, give = "mpiexec.hydra -n 2", "-genv {variable}"
    compiler, library, headers = "mpicc.mpich", "libmpich.so", "libmpich-dev"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if shutil.which("mpiexec.hydra") is None:
            raise unittest.SkipTest("no mpiexec.hydra (Debian: mpich)")
        cls.give = "-genv LD_PRELOAD " + shlex.quote(OPTIONS.library)


class Torchrun(Launcher):
    start = "torchrun --nproc-per-node 2 --no-python"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if shutil.which("torchrun") is None:
            raise unittest.SkipTest("no torchrun (PyTorch)")

    def test_variables_handed_to_the_ranks(self):
        ended = self.shell(f"LD_PRELOAD=$LIBRARY {self.start} $PROGRAM")
        self.assert_one_report_and_a_line_each(ended, self.ranks)


class Slurm(Launcher):
    """Two nodes, each of them this machine."""

    start, give = "srun -N2 -n2", "--export=ALL,{variable}"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if slurm_cluster.obstacle():
            raise unittest.SkipTest(slurm_cluster.obstacle())
        cls.cluster_folder = tempfile.mkdtemp(prefix="slurm-")
        cls.cluster = slurm_cluster.Cluster(cls.cluster_folder)
        cls.addClassCleanup(shutil.rmtree, cls.cluster_folder)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()
        cls.variables = {"SLURM_CONF": cls.cluster.place("slurm.conf")}

    def test_words_of_env(self):
        ended = self.shell("srun -N2 -n2 $(cupool env --shell slurm) $PROGRAM")
        self.assert_one_report_and_a_line_each(ended, 2)

    def test_names_have_rank_job_and_node(self):
        ended = self.shell("srun -N2 -n2 $(cupool env --shell slurm --stats json --stats-file %j-%r-%n.json) "
                           "sh -c 'echo job=$SLURM_JOB_ID node=$SLURMD_NODENAME; exec $PROGRAM'")
        jobs = set(re.findall(r"^job=(\d+) ", ended.out, re.MULTILINE))
        self.assertEqual(len(jobs), 1, ended)
        (job,) = jobs
        self.assertEqual(sorted(os.listdir(self.folder)), [f"{job}-0-first.json", f"{job}-1-second.json"])
        for report in self.assert_ranks(2).values():
            self.assertEqual(report["process"]["job"], job)
            self.assertEqual(report["process"]["ranks"], 2)

    def test_two_ranks_on_a_node(self):
        self.shell("srun -N1 -n2 --overcommit $(cupool env --shell slurm --stats json --stats-file %n.%r.json) $PROGRAM")
        reports = self.assert_ranks(2)
        self.assertEqual(len(set(name.split(".")[0] for name in os.listdir(self.folder))), 1)
        self.assertEqual(len(reports), 2)

    def batch(self, options, lines):
        """Runs a batch script to its end."""
        with open(self.place("job.sh"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n#SBATCH -N2 -n2 --output=out --error=err {options}\n{lines}\n")
        self.shell("sbatch job.sh")  # --wait looks every ten seconds
        wait_for("end of the job", lambda: self.shell("squeue -h -t PENDING,RUNNING").out == "")
        ended = argparse.Namespace()
        for name in ("out", "err"):
            with open(self.place(name), encoding="utf-8") as file:
                setattr(ended, name, file.read())
        return ended

    def test_batch_script(self):
        self.assert_one_report_and_a_line_each(self.batch("", 'eval "$(cupool env)"\nsrun $PROGRAM'), 2)

    def test_batch_script_without_the_users_environment(self):
        """Then srun hands nothing on but what the words name."""
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.environment().items())
        ended = self.batch("--export=NONE", exports + "\nsrun $(cupool env --shell slurm) $PROGRAM")
        self.assert_one_report_and_a_line_each(ended, 2)

    def test_steps_of_a_job_share_its_number(self):
        step = "srun cupool run --stats json --stats-file %j-%r.json $PROGRAM"
        both = self.batch("", f"{step}\n{step.replace('.json', '-%p.json')}\n{step}")
        self.assertEqual(both.err, "")
        jobs = [name.split("-") for name in os.listdir(self.folder) if name.endswith(".json")]
        self.assertEqual(len(set(job for job, *_ in jobs)), 1, jobs)
        self.assertEqual(len(jobs), 4, "of the two steps of one name there are the later's: " + str(jobs))

    def test_task_prolog_preloads_every_task(self):
        self.addCleanup(self.cluster.set_task_prolog, "")
        self.cluster.set_task_prolog(
            f'echo "export LD_PRELOAD={OPTIONS.library}${{LD_PRELOAD:+:$LD_PRELOAD}}"\n')
        self.assert_one_report_and_a_line_each(self.shell("srun -N2 -n2 $PROGRAM"), 2)
        self.assertEqual(self.shell("CUPOOL_ENABLE=0 srun -N2 -n2 $PROGRAM").err, "")

    def test_signal_of_the_batch_system_writes_snapshots(self):
        self.assert_snapshots(lambda launcher: self.shell("scancel --signal=USR1 $(squeue -h -o %i)"))

    def test_process_managers_of_mpi(self):
        for manager in ("pmi2", "pmix"):
            with self.subTest(manager):
                if manager not in self.shell("srun --mpi=list 2>&1").out:
                    self.skipTest(f"this Slurm has no {manager}")
                self.shell(f"srun -N1 -n2 --overcommit --mpi={manager} cupool run --stats json "
                           f"--stats-file {manager}-%r.json $PROGRAM")
                for report in self.assert_ranks(2, f"{manager}-*.json").values():
                    self.assertEqual(report["process"]["ranks"], 2)


class EndOfACluster(unittest.TestCase):
    def test_leaves_no_process(self):
        if slurm_cluster.obstacle():
            self.skipTest(slurm_cluster.obstacle())
        folder = tempfile.mkdtemp(prefix="slurm-")
        self.addCleanup(shutil.rmtree, folder)
        cluster = slurm_cluster.Cluster(folder)
        cluster.start()
        job = ["srun", "-N2", "-n2", "sleep", "1000"]
        with subprocess.Popen(job, env=cluster.environment, stderr=subprocess.DEVNULL):
            cluster.wait_for("tasks", lambda: len(slurm_cluster.descendants(os.getpid())) >= 9)
            cluster.stop()
        self.assertEqual(slurm_cluster.descendants(os.getpid()), [])


PARTS = {"Slurm": (Slurm, EndOfACluster), "OpenMpi": (OpenMpi,), "Mpich": (Mpich,), "Torchrun": (Torchrun,)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    for option in ("command", "library", "program", "driver"):
        parser.add_argument(f"--{option}", required=True, type=os.path.abspath)
    parser.add_argument("-k", action="append", dest="patterns", help="tests whose names have this pattern")
    parser.parse_args(namespace=OPTIONS)
    loader = unittest.TestLoader()
    if OPTIONS.patterns:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in OPTIONS.patterns]
    tests = unittest.TestSuite(loader.loadTestsFromTestCase(part) for part in PARTS[OPTIONS.part])
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    if not result.wasSuccessful():
        return 1
    skipped_alone = result.skipped and len(result.skipped) >= result.testsRun
    return 77 if skipped_alone else 0


if __name__ == "__main__":
    sys.exit(main())
