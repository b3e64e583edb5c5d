"""A real Slurm on this machine: four nodes, fake GPUs, partitions that preempt. Needs root and Debian's packages.

By hand: `python -m tests.testbed.slurm.cluster start FOLDER` prints what to export; `… stop FOLDER` ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct")
NODES = ("n1", "n2", "n3", "n4")  # names that resolve nowhere, as on clusters that rely on NodeAddr
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"

# cred_expire is also how long a requeued job waits before it may start again; Slurm's default is two minutes.
CONFIG = """\
ClusterName=headway
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait=10
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=4000 Gres=gpu:t4:4
PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=INFINITE DefMemPerNode=200 PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=n[1-4] MaxTime=INFINITE DefMemPerNode=200 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=polite Nodes=n[1-4] MaxTime=INFINITE DefMemPerNode=200 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=n[1-4] MaxTime=INFINITE DefMemPerNode=200 PriorityTier=9 PreemptMode=OFF
"""
GRES = "Name=gpu Type=t4 File={folder}/nvidia[0-3]\n"


def lacking() -> str:
    """Why no cluster can be had here, in words; empty where one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install {' '.join(PACKAGES)}"
    return "" if os.geteuid() == 0 else "a Slurm of our own needs root"


@dataclass(frozen=True)
class Cluster:
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        host, port = socket.gethostname(), _free_ports(1 + len(NODES))
        self.config.write_text(
            CONFIG.format(folder=self.folder, host=host, port=port, first=port + 1, last=port + len(NODES))
        )
        (self.folder / "gres.conf").write_text(GRES.format(folder=self.folder))
        for number in range(4):
            (self.folder / f"nvidia{number}").touch()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        named = [
            f"--{name}={self.folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file")
        ]
        self.run("munged", "--force", f"--key-file={key}", f"--seed-file={self.folder}/munge.seed", *named)
        self.run("slurmctld")
        for node in NODES:
            self.start_node(node)
        self.wait_for(lambda: self.run("sinfo", "-h", "-p", "debug", "-o", "%D:%T") == "4:idle", "four idle nodes")

    def stop(self) -> None:
        """Only what `start` started, and what that has started since."""
        try:
            self.run("scancel", "--user=root")
            self.wait_for(lambda: not self.run("squeue", "--noheader"), "an empty queue", within_s=20)
        except (AssertionError, RuntimeError):
            pass  # it never came up, or a step hangs: it is ended below
        for name in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "munge"):
            self._end(self.folder / f"{name}.pid", signal.SIGTERM)
        for pid in _with({f"SLURM_CONF={self.config}"}):
            _kill(pid)

    def start_node(self, node: str) -> None:
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self.run("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """As a power failure would: its daemon, its steps and all they started are gone without a word."""
        self._end(self.folder / f"slurmd-{node}.pid", signal.SIGKILL)
        for pid in _with({f"SLURM_CONF={self.config}", f"SLURMD_NODENAME={node}"}):
            _kill(pid)

    def run(self, *command: str) -> str:
        """What it prints; its complaint as an error."""
        env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.config)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def wait_for(self, holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        wait_until(lambda: self._answers(holds), what, within_s)

    def _answers(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except RuntimeError:  # the controller is not up yet
            return False

    def _end(self, pid_file: Path, number: signal.Signals) -> None:
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, number)
        except (OSError, ValueError):  # never started, or gone already
            return
        wait_until(lambda: not _lives(pid), f"{pid_file.name} ends")


def _with(variables: set[str]) -> set[int]:
    """Processes of Slurm's jobs that have these variables, and the steps they run in: a step is a task's parent."""
    wanted = {variable.encode() for variable in variables}
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            carried = set((entry / "environ").read_bytes().split(b"\0"))
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone while we looked
            continue
        if wanted <= carried and ("slurmstepd" in _command(int(entry.name)) or b"SLURM_JOB_ID=" in b"\0".join(carried)):
            found |= {int(entry.name)} | ({parent} if "slurmstepd" in _command(parent) else set())
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses, below those the kernel gives away."""
    mine = 21000 + os.getpid() % 20 * 500  # another process may look for its own at this moment
    for first in (*range(mine, 32000, count), *range(21000, mine, count)):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise RuntimeError("no free ports")


def main(verb: str, folder: Path) -> int:
    if verb == "lacking":
        print(lacking())
        return 1 if lacking() else 0
    if verb == "stop":
        Cluster(folder).stop()
    else:
        Cluster(folder).start()
        print(f"export SLURM_CONF={folder}/slurm.conf")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "slurm").resolve()))
