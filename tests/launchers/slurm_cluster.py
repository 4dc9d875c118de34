# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of this test's own: two nodes on this machine, with keys, ports, sockets and state in a
scratch folder. It uses nothing of a Slurm that the machine may belong to, and leaves no process behind.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time

NODES = ("first", "second")

CONFIGURATION = """\
ClusterName=cupool
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task_prolog
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=1
NodeName=first NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=second NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=all Nodes=ALL Default=YES State=UP
"""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)
DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
START_SECONDS = 30


def path_of(tool):
    return shutil.which(tool, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def obstacle():
    """Why there can be no cluster here, or ""."""
    missing = [tool for tool in DAEMONS if path_of(tool) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "Slurm's daemons need root here"
    return ""


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def descendants(root):
    """All processes below `root`."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


class Cluster:
    """The daemons, from start() to stop()."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"SLURM_CONF": self.place("slurm.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

    def place(self, name):
        return os.path.join(self.folder, name)

    def start(self):
        # Step daemons leave their parent, and would outlive it: they become children of this process.
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.mkdir(self.place("state"))
        with open(self.place("munge.key"), "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(self.place("munge.key"), 0o400)
        with open(self.place("slurm.conf"), "w", encoding="ascii") as file:
            file.write(CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=self.folder,
                                            ports=free_ports(3), cores=os.cpu_count()))
        if self.version() >= (23, 2):
            # The daemons look for control groups also where no plugin uses them.
            with open(self.place("cgroup.conf"), "w", encoding="ascii") as file:
                file.write("CgroupPlugin=disabled\n")
        self.set_task_prolog("")
        self.daemon("munged", "--foreground", "--force", *(f"--{name}={self.place('munge.' + end)}" for name, end in (
            ("socket", "socket"), ("key-file", "key"), ("log-file", "log"), ("pid-file", "pid"), ("seed-file", "seed"))))
        self.wait_for("munged", lambda: os.path.exists(self.place("munge.socket")))
        self.daemon("slurmctld", "-D", "-c")
        for node in NODES:
            self.daemon("slurmd", "-D", "-c", "-N", node)
        self.wait_for("idle nodes", self.is_idle)

    def version(self):
        """Of `slurm-wlm 22.05.8`: (22, 5)."""
        text = subprocess.run([path_of("slurmctld"), "-V"], env=self.environment, stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        return tuple(int(part) for part in text.split()[1].split(".")[:2])

    def set_task_prolog(self, lines):
        with open(self.place("task_prolog"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + lines)
        os.chmod(self.place("task_prolog"), 0o755)

    def daemon(self, name, *arguments):
        # Also if this process is killed, they end.
        with open(self.place(name + ".out"), "ab") as out:
            subprocess.Popen([path_of(name), *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=out,
                             stderr=out, preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))

    def is_idle(self):
        done = subprocess.run([path_of("sinfo"), "-h", "-o", "%T"], env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=START_SECONDS, check=False)
        return done.stdout.split() == ["idle"]

    def wait_for(self, what, holds):
        end = time.monotonic() + START_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"no {what} after {START_SECONDS} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".out", ".log")):
                with open(self.place(name), encoding="utf-8", errors="replace") as file:
                    text += f"{name}:\n" + "".join(file.readlines()[-20:])
        return text

    def stop(self):
        """Ends every process below this one. No state is kept, so nothing is asked first."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            left = descendants(os.getpid())
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)
        raise AssertionError(f"processes that do not end: {left}")
