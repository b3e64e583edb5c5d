"""Which node this is, of how many, and where the first one is: one truth, whatever started us. No torch.

`node_world` reads it from the environment; `rank_env` says it to a rank the way torch and TensorFlow expect it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headway.errors import BadInput
from headway.planning.model import Plan
from headway.runtime import environments, network
from headway.runtime.environments import Seat

MASTER_PORT = 29500
LOOPBACK = "127.0.0.1"
_UNMANAGED = ("docker", "local", "ssh")  # Slurm's or Kubeflow's variables around these are not about this run


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeWorld:
    """One node's place among the nodes. Every node has the same number of ranks."""

    node: int
    nodes: int
    processes: int
    master_addr: str
    master_port: int  # 0: a free one is chosen at every start
    source: str  # what it was understood from, in words
    workers: tuple[str, ...] = ()  # host:port of every rank, for TensorFlow; known once the nodes have met
    interface: str | None = None  # the network interface that routes to the master

    @property
    def size(self) -> int:
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        return range(self.node * self.processes, (self.node + 1) * self.processes)

    @property
    def meeting_port(self) -> int:
        """Where supervisors meet: beside the port where ranks do."""
        return self.master_port + 1

    def __str__(self) -> str:
        if self.nodes == 1:
            return f"world: 1 node, {_count(self.size, 'rank')}, from {self.source}"
        ranks = f"rank {self.ranks[0]}" if self.processes == 1 else f"ranks {self.ranks[0]}-{self.ranks[-1]}"
        return (
            f"world: node {self.node} of {self.nodes}, {ranks} of {self.size}, "
            f"master {self.master_addr}:{self.master_port}, from {self.source}"
        )


def node_world(env: Mapping[str, str], plan: Plan, *, hostname: str | None = None) -> NodeWorld:
    """What the environment says, held against the plan. A BadInput names what is contradictory or malformed."""
    hostname = hostname or env.get("HOSTNAME") or socket.gethostname()
    seat = environments.own(env, hostname)
    if seat is None and plan.kind not in _UNMANAGED:
        seat = environments.foreign(env, plan.nodes)
    if seat is None:
        seat = Seat(node=0, nodes=1, master_addr=LOOPBACK, source="nothing: a plain process", said_by="the environment")
    _hold_against(seat, plan)
    return NodeWorld(
        node=seat.node,
        nodes=seat.nodes,
        processes=plan.processes or accelerators_here(env) or 1,
        master_addr=LOOPBACK if seat.nodes == 1 else seat.master_addr,
        master_port=_master_port(env, seat),
        source=seat.source,
    )


def ready(world: NodeWorld, *, hosts: Mapping[int, str], ports: Mapping[int, list[int]], own_address: str) -> NodeWorld:
    """The world as it is at the start of the ranks: every node's address and TensorFlow ports, and our interface."""
    workers = tuple(f"{_bracketed(hosts[node])}:{port}" for node in sorted(ports) for port in ports[node])
    return replace(world, workers=workers, interface=network.interface_of(own_address))


def alone(world: NodeWorld) -> NodeWorld:
    """`ready` for a world of one node: everything on loopback, on ports that are free now."""
    port, *others = network.free_ports(1 + world.processes)
    chosen = replace(world, master_port=world.master_port or port)
    return ready(chosen, hosts={0: LOOPBACK}, ports={0: others}, own_address=LOOPBACK)


def rank_env(world: NodeWorld, local_rank: int) -> dict[str, str]:
    """The world as one rank reads it."""
    rank = world.ranks[local_rank]
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(world.processes),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
    }
    if world.workers:
        task = {"cluster": {"worker": list(world.workers)}, "task": {"type": "worker", "index": rank}}
        variables["TF_CONFIG"] = json.dumps(task)
    if world.interface:
        # Left to itself, gloo binds to what the host name resolves to, which on Debian is 127.0.1.1.
        variables |= {"GLOO_SOCKET_IFNAME": world.interface, "NCCL_SOCKET_IFNAME": world.interface}
    return variables


def accelerators_here(env: Mapping[str, str]) -> int:
    """How many GPUs a rank started here would see."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    tool = shutil.which("nvidia-smi", path=env.get("PATH"))
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver that does not answer has no GPU to offer
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def cpus_here() -> int:
    """CPUs this process may use: its affinity, and a container's quota."""
    usable = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()[:2]
        return usable if quota == "max" else max(1, min(usable, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroups v2 here
        return usable


def _hold_against(seat: Seat, plan: Plan) -> None:
    if seat.nodes == plan.nodes:
        return
    if seat.nodes == 1:
        raise BadInput(
            f"the plan wants {plan.nodes} nodes, and nothing here says which of them this is",
            where=seat.said_by,
            fix="start it through a target, or set HEADWAY_HOSTS=host0,host1,… and HEADWAY_NODE=0,1,…",
        )
    raise BadInput(
        f"{seat.said_by} says {seat.nodes} nodes, the plan says {plan.nodes}",
        where=seat.said_by,
        fix="headway plan with the right resources.nodes, or submit with as many nodes as the plan has",
    )


def _master_port(env: Mapping[str, str], seat: Seat) -> int:
    if "HEADWAY_MASTER_PORT" in env:
        return environments.whole(env, "HEADWAY_MASTER_PORT", 1, 65534)
    if seat.nodes == 1:
        return 0
    return seat.master_port or MASTER_PORT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
