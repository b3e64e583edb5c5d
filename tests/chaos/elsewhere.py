"""Trouble that takes more than one machine: a cable that is pulled, a host that is given up and wakes again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

from tests.chaos.board import Wish
from tests.chaos.scene import Scene, Skipped, send_all

_BOOT = "/proc/sys/kernel/random/boot_id"
_ANOTHER_MACHINE = f'mount --bind "$0" {_BOOT} && exec "$@"'
_ASLEEP_AT = ("step", "write part", "write manifest", "wrote manifest", "write last", "remove manifest", "removed part")


def cut_from_its_bucket(scene: Scene) -> str:
    """The cable of its host is pulled for a while: training goes on, and nobody has to start it again."""
    case, hosts = scene.case, scene.hosts
    assert hosts is not None
    case.prefix = hosts.inside(0)
    case.start()
    if scene.until_commit():
        with hosts.cut(0):
            time.sleep(scene.dice.uniform(1.0, 25.0))
    code = case.ends()
    assert code == 0, f"the supervisor ended with {code}\n{case.explain()}"
    return "a network cut from the bucket"


def nodes_cut_apart(scene: Scene) -> str:
    """The cable between two nodes: a short cut costs nothing, after a long one they meet again and go on."""
    case, hosts, seconds = scene.case, scene.hosts, scene.dice.choice([1.0, 5.0, 40.0])
    assert hosts is not None
    nodes = []
    for node in (1, 0):  # the last one is the case's own: where the lease is, and the first rank
        case.prefix = hosts.inside(node)
        env = {"HEADWAY_HOSTS": ",".join(hosts.addresses), "HEADWAY_NODE": str(node), "HEADWAY_MASTER_PORT": "29400"}
        nodes.append(case.start(**env, HEADWAY_SPOOL=str(case.tmp / f"spool-{node}")))
    if scene.until_commit():
        with hosts.cut(scene.dice.choice([0, 1])):
            time.sleep(seconds)
    codes = [case.ends(node) for node in nodes]
    assert codes == [0, 0], f"the supervisors ended with {codes}\n{case.explain()}"
    return f"two nodes cut apart for {seconds:g} s"


def woken_too_late(scene: Scene) -> str:
    """All its processes stand still until another machine has taken over: when they wake, they may spoil nothing."""
    case, asleep_at = scene.case, scene.dice.choice(_ASLEEP_AT)
    Wish(asleep_at, 0, scene.dice.choice([4, 7, 9]), linger_s=0.5).write(case.boards)
    first = case.start()
    case.until(lambda: any(seen.here for seen in case.ranks_now()) or not case.running, f"it never came to {asleep_at}")
    asleep = case.family()
    send_all(asleep, signal.SIGSTOP)
    try:
        scene.note()
        before = case.committed()
        case.prefix = another_machine(case.tmp)
        case.start(HEADWAY_SPOOL=str(case.tmp / "spool-of-another"))
        ahead = scene.dice.choice([1, 5, 9])
        case.until(lambda: case.committed() >= before + ahead or not case.running, "nobody took over", every_s=0.1)
    finally:
        send_all(asleep, signal.SIGCONT)
    case.ends(first)
    scene.to_its_end()
    return f"woken too late, at {asleep_at!r}"


def another_machine(tmp: Path) -> tuple[str, ...]:
    """What a command is started by to believe that it is on another machine: it cannot see who lives here."""
    if os.geteuid() != 0:
        raise Skipped("mounting needs root")
    boot = tmp / "boot-of-another"
    boot.write_text(f"{uuid.uuid4()}\n")
    prefix = ("unshare", "--mount", "sh", "-c", _ANOTHER_MACHINE, str(boot))
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Skipped(f"no mount namespace: {tried.stderr.strip()}")
    return prefix
