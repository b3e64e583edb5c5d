"""Detect the topology from the environment: which node this is, of how many, and the address of node 0.

One function per launcher (Slurm, Kubeflow, Vertex AI, torchrun, a StatefulSet, ssh hosts) reads its variables into a
`NodeInfo`; these are pure. One supervisor runs per node and starts the ranks itself, so only node-level numbers are
read. `detect_topology` checks the result against the plan; `rank_env` gives it to a rank in the variables that torch
and TensorFlow expect. No torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.core.errors import BadInput, json_of
from headway.core.plan import Plan
from headway.plugins import plugin_of
from headway.supervisor import rendezvous

Env = Mapping[str, str]


NO_LAUNCHER = "a plain process"  # no cluster, no launcher: nothing in the environment tells of other nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeInfo:
    """Which node this is, as the launcher says. `variable` is the variable that gave the number of nodes."""

    node: int
    nodes: int
    master_addr: str
    source: str
    variable: str
    master_port: int | None = None  # None: not chosen by the launcher


def headway_launcher(env: Env, hostname: str) -> NodeInfo | None:
    """Read Headway's own variables. They are meant for this supervisor, so they take precedence over all others."""
    if "HEADWAY_HOSTS" in env:
        return hosts(env)
    if "HEADWAY_STATEFULSET" in env:
        return stateful_set(env, hostname)
    return None


def other_launcher(env: Env, plan_nodes: int) -> NodeInfo | None:
    """Read the variables of other launchers. The innermost one wins: torchrun inside a Kubeflow pod is torchrun."""
    if "TORCHELASTIC_RUN_ID" in env:
        return torchrun(env)
    if "CLUSTER_SPEC" in env:
        return vertex(env)
    if "PET_NNODES" in env or "PET_NODE_RANK" in env:
        return kubeflow(env)
    if "SLURM_JOB_ID" in env and plan_nodes > 1:
        return slurm(env)
    if "RANK" in env and "WORLD_SIZE" in env:
        return node_level_rank(env, plan_nodes)
    return None


def hosts(env: Env) -> NodeInfo:
    """Read HEADWAY_HOSTS (all hosts, in order) and HEADWAY_NODE (the index of this one), set for machines over ssh."""
    names = [name.strip() for name in env["HEADWAY_HOSTS"].split(",")]
    if not all(names):
        raise _bad("HEADWAY_HOSTS", env, "is not a list like host0,host1")
    node = integer_variable(env, "HEADWAY_NODE", 0, len(names) - 1) if len(names) > 1 else 0
    return NodeInfo(node=node, nodes=len(names), master_addr=names[0], source="HEADWAY_HOSTS", variable="HEADWAY_HOSTS")


def stateful_set(env: Env, hostname: str) -> NodeInfo:
    """Read the ordinal in a StatefulSet pod's host name; node 0's address is its name in the headless service."""
    name, service = required_variable(env, "HEADWAY_STATEFULSET"), required_variable(env, "HEADWAY_SERVICE")
    replicas = integer_variable(env, "HEADWAY_REPLICAS", 1)
    match = re.fullmatch(rf"{re.escape(name)}-(\d+)", hostname.split(".")[0])
    if match is None or int(match[1]) >= replicas:
        raise BadInput(
            f"the host name is {hostname!r}, not one of {name}-0 to {name}-{replicas - 1}",
            where="HEADWAY_STATEFULSET",
            fix="do not override the host names that the StatefulSet sets",
        )
    namespace = env.get("HEADWAY_NAMESPACE")
    domain = f"{service}.{namespace}.svc" if namespace else service
    return NodeInfo(
        node=int(match[1]),
        nodes=replicas,
        master_addr=f"{name}-0.{domain}",
        source="the StatefulSet's ordinal",
        variable="HEADWAY_REPLICAS",
    )


def torchrun(env: Env) -> NodeInfo:
    """Read torchrun's variables; it must start one supervisor per node.

    torchrun's own store listens on MASTER_PORT, so the ranks use the next port.
    """
    if integer_variable(env, "LOCAL_WORLD_SIZE", 1) != 1:
        raise _bad("LOCAL_WORLD_SIZE", env, "starts several supervisors on each node", "torchrun --nproc-per-node=1 …")
    nodes = (
        integer_variable(env, "GROUP_WORLD_SIZE", 1)
        if "GROUP_WORLD_SIZE" in env
        else integer_variable(env, "WORLD_SIZE", 1)
    )
    node = integer_variable(env, "GROUP_RANK" if "GROUP_RANK" in env else "RANK", 0, nodes - 1)
    return NodeInfo(
        node=node,
        nodes=nodes,
        master_addr=required_variable(env, "MASTER_ADDR"),
        master_port=integer_variable(env, "MASTER_PORT", 1, 65533) + 1,
        source="torchrun",
        variable="GROUP_WORLD_SIZE",
    )


def vertex(env: Env) -> NodeInfo:
    """Read Vertex AI's CLUSTER_SPEC: pool 0 is node 0, pool 1 the other nodes.

    Its ports are meant for TensorFlow and ignored; Headway chooses its own.
    """
    name = "CLUSTER_SPEC"
    try:
        spec: dict[str, Any] = json_of(env[name])
        pools, task = spec["cluster"], spec["task"]
        first, others = pools["workerpool0"], pools.get("workerpool1", [])
        pool, index = task["type"], int(task["index"])
        master = str(first[0]).rpartition(":")[0] or str(first[0])
        if not isinstance(first, list) or not isinstance(others, list) or not isinstance(pool, str):
            raise TypeError("pools must be lists, and a task's type a string")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise _bad(name, env, f"is not a cluster spec ({type(error).__name__}: {error})") from None
    extra = sorted(set(pools) - {"workerpool0", "workerpool1"})
    if extra or len(first) != 1:
        raise _bad(name, env, f"has {extra[0] if extra else 'several primaries'}, which Headway does not support")
    if pool not in pools or not 0 <= index < len(pools[pool]):
        raise _bad(name, env, f"has no task {pool}[{index}]")
    return NodeInfo(
        node=0 if pool == "workerpool0" else 1 + index,
        nodes=1 + len(others),
        master_addr=master,
        source="Vertex AI's CLUSTER_SPEC",
        variable=name,
    )


def kubeflow(env: Env) -> NodeInfo:
    """Read PET_*, set by both PyTorchJob v1 and TrainJob. PyTorchJob's RANK is the replica's index: it counts nodes."""
    low, _, high = required_variable(env, "PET_NNODES").partition(":")
    if (high and high != low) or "PET_RDZV_BACKEND" in env:
        raise _bad(
            "PET_NNODES",
            env,
            "is elastic, but Headway needs a fixed number of ranks",
            "remove elasticPolicy from the job",
        )
    nodes = integer_variable({"PET_NNODES": low}, "PET_NNODES", 1)
    node = integer_variable(env, "PET_NODE_RANK", 0, nodes - 1) if nodes > 1 or "PET_NODE_RANK" in env else 0
    replica = env.get("RANK")
    if replica is not None and replica != str(node):
        raise BadInput(
            f"RANK={replica} and PET_NODE_RANK={node} contradict each other: both are node numbers here",
            where="RANK",
            fix="do not override the variables that the operator sets",
        )
    address = "PET_MASTER_ADDR" if "PET_MASTER_ADDR" in env else "MASTER_ADDR"
    port = "PET_MASTER_PORT" if "PET_MASTER_PORT" in env else "MASTER_PORT"
    return NodeInfo(
        node=node,
        nodes=nodes,
        master_addr=required_variable(env, address) if nodes > 1 else "",
        master_port=integer_variable(env, port, 1, 65534) if port in env else None,
        source="Kubeflow's PyTorchJob (PET_*)" if replica is not None else "Kubeflow's TrainJob (PET_*)",
        variable="PET_NNODES",
    )


def slurm(env: Env) -> NodeInfo:
    """Read Slurm's variables; the step must have one task per node.

    HEADWAY_SLURM_ADDRS=n1=10.0.0.1,… gives addresses to host names that do not resolve.
    """
    listed = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in env else "SLURM_JOB_NODELIST"
    names = expand_hostlist(required_variable(env, listed), where=listed)
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    if tasks not in env or integer_variable(env, tasks, 1) != len(names):
        fix = f"srun --nodes={len(names)} --ntasks={len(names)} --ntasks-per-node=1 …"
        raise _bad(tasks, env, f"is not one supervisor on each of the {len(names)} nodes of {listed}", fix)
    node = integer_variable(env, "SLURM_NODEID", 0, len(names) - 1)
    addresses = _pairs(env, "HEADWAY_SLURM_ADDRS")
    return NodeInfo(
        node=node,
        nodes=len(names),
        master_addr=addresses.get(names[0], names[0]),
        source=f"Slurm job {env['SLURM_JOB_ID']}",
        variable=listed,
    )


def node_level_rank(env: Env, plan_nodes: int) -> NodeInfo:
    """Read MASTER_ADDR, RANK and WORLD_SIZE as PyTorchJob before 1.7 sets them: they count replicas, not ranks."""
    size = integer_variable(env, "WORLD_SIZE", 1)
    if "LOCAL_RANK" in env:
        fix = "start one supervisor on each node, without LOCAL_RANK"
        raise _bad(
            "LOCAL_RANK",
            env,
            "is set for a rank, but this process is the supervisor, which starts the ranks itself",
            fix,
        )
    return NodeInfo(
        node=integer_variable(env, "RANK", 0, size - 1),
        nodes=size,
        master_addr=required_variable(env, "MASTER_ADDR") if size > 1 else "",
        master_port=integer_variable(env, "MASTER_PORT", 1, 65534) if "MASTER_PORT" in env else None,
        source="RANK and WORLD_SIZE, as node number and number of nodes",
        variable="WORLD_SIZE",
    )


def expand_hostlist(listed: str, *, where: str = "SLURM_JOB_NODELIST") -> list[str]:
    """Expand a Slurm node list such as `n[01-03,7],gpu-[1-2]-ib` into names, in Slurm's order, without scontrol."""
    pieces = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", listed)
    if ",".join(pieces) != listed.strip() or not pieces:
        raise _bad(where, {where: listed}, "is not a Slurm node list")
    return [name for piece in pieces for name in _expand(piece, listed, where)]


def _expand(piece: str, listed: str, where: str) -> list[str]:
    head, bracket, rest = piece.partition("[")
    if not bracket:
        return [piece]
    inside, _, tail = rest.partition("]")
    names = []
    for span in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", span.strip())
        if match is None:
            raise _bad(where, {where: listed}, f"has an invalid range: [{inside}]")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) > 100_000:
            raise _bad(where, {where: listed}, f"has an invalid range: [{inside}]")
        names += [f"{head}{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return [name + ending for name in names for ending in _expand(tail, listed, where)] if tail else names


def required_variable(env: Env, name: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise BadInput(f"{name} is not set", where=name, fix=f"set {name} where the supervisor is started")
    return value


def integer_variable(env: Env, name: str, low: int, high: int | None = None) -> int:
    """Return a variable as an integer within bounds, or raise a BadInput that names it."""
    value = required_variable(env, name)
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < low or (high is not None and int(value) > high):
        bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise _bad(name, env, f"is not a whole number {bounds}")
    return int(value)


def _pairs(env: Env, name: str) -> dict[str, str]:
    pairs = {}
    for item in filter(None, env.get(name, "").split(",")):
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise _bad(name, env, "is not a list like n1=10.0.0.1,n2=10.0.0.2")
        pairs[key.strip()] = value.strip()
    return pairs


def _bad(name: str, env: Env, what: str, fix: str = "") -> BadInput:
    shown = env.get(name, "(not set)")
    shown = shown if len(shown) <= 120 else shown[:117] + "…"
    return BadInput(f"{name}={shown} {what}", where=name, fix=fix or f"correct {name} where the supervisor is started")


# Topology of the run


MASTER_PORT = 29500
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTopology:
    """This node's index, the number of nodes, and the master's address. Every node has the same number of ranks."""

    node: int
    nodes: int
    processes: int
    master_addr: str
    master_port: int  # 0: a free one is chosen at every start
    source: str  # where it was read from, for messages
    workers: tuple[str, ...] = ()  # host:port of every rank, for TensorFlow; known after the rendezvous
    interface: str | None = None  # the network interface that routes to the master

    @property
    def size(self) -> int:
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        return range(self.node * self.processes, (self.node + 1) * self.processes)

    @property
    def rendezvous_port(self) -> int:
        """Port of the supervisors' rendezvous: the one after the ranks' MASTER_PORT."""
        return self.master_port + 1

    def __str__(self) -> str:
        if self.nodes == 1 and self.source == NO_LAUNCHER:
            return f"{self.size} process{'es' if self.size > 1 else ''} on this machine"
        if self.nodes == 1:
            return f"1 node, {_count(self.size, 'rank')} ({self.source})"
        ranks = f"rank {self.ranks[0]}" if self.processes == 1 else f"ranks {self.ranks[0]}-{self.ranks[-1]}"
        return (
            f"node {self.node} of {self.nodes}, {ranks} of {self.size}, "
            f"master {self.master_addr}:{self.master_port} ({self.source})"
        )


def detect_topology(env: Mapping[str, str], plan: Plan, *, hostname: str | None = None) -> NodeTopology:
    """Read the topology from the environment and check it against the plan.

    Raises BadInput naming the variable that is malformed or contradictory.
    """
    hostname = hostname or env.get("HOSTNAME") or socket.gethostname()
    info = headway_launcher(env, hostname)
    if info is None and plugin_of(plan.kind, plan.plugins).scheduler_env:
        info = other_launcher(env, plan.nodes)
    if info is None:
        info = NodeInfo(node=0, nodes=1, master_addr=LOOPBACK, source=NO_LAUNCHER, variable="the environment")
    _check_against_plan(info, plan)
    return NodeTopology(
        node=info.node,
        nodes=info.nodes,
        processes=plan.processes or accelerators_here(env) or 1,
        master_addr=LOOPBACK if info.nodes == 1 else info.master_addr,
        master_port=_master_port(env, info),
        source=info.source,
    )


def with_workers(
    topology: NodeTopology, *, hosts: Mapping[int, str], ports: Mapping[int, list[int]], own_address: str
) -> NodeTopology:
    """Complete the topology for starting ranks: add every node's address and TensorFlow ports, and our interface."""
    workers = tuple(f"{_bracketed(hosts[node])}:{port}" for node in sorted(ports) for port in ports[node])
    return replace(topology, workers=workers, interface=rendezvous.interface_of(own_address))


def single_node(topology: NodeTopology) -> NodeTopology:
    """Complete the topology of a single node: everything on loopback, on ports that are free now."""
    port, *others = rendezvous.free_ports(1 + topology.processes)
    chosen = replace(topology, master_port=topology.master_port or port)
    return with_workers(chosen, hosts={0: LOOPBACK}, ports={0: others}, own_address=LOOPBACK)


def rank_env(topology: NodeTopology, local_rank: int) -> dict[str, str]:
    """Return the environment variables that describe the topology to one rank."""
    rank = topology.ranks[local_rank]
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(topology.size),
        "LOCAL_WORLD_SIZE": str(topology.processes),
        "MASTER_ADDR": topology.master_addr,
        "MASTER_PORT": str(topology.master_port),
    }
    if topology.workers:
        task = {"cluster": {"worker": list(topology.workers)}, "task": {"type": "worker", "index": rank}}
        variables["TF_CONFIG"] = json.dumps(task)
    if topology.interface:
        # By default gloo binds to the address of the host name, which on Debian is 127.0.1.1.
        variables |= {"GLOO_SOCKET_IFNAME": topology.interface, "NCCL_SOCKET_IFNAME": topology.interface}
    return variables


def accelerators_here(env: Mapping[str, str]) -> int:
    """Return the number of GPUs visible to a rank on this node."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    tool = shutil.which("nvidia-smi", path=env.get("PATH"))
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0  # the driver does not respond: no usable GPU
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def cpus_here() -> int:
    """Return the number of CPUs this process may use, from its affinity and the container's quota."""
    usable = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()[:2]
        return usable if quota == "max" else max(1, min(usable, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2
        return usable


def _check_against_plan(info: NodeInfo, plan: Plan) -> None:
    if info.nodes == plan.nodes:
        return
    if info.nodes == 1:
        raise BadInput(
            f"the plan has {plan.nodes} nodes, and no environment variable says which one this is",
            where=info.variable,
            fix="start it through a target, or set HEADWAY_HOSTS=host0,host1,… and HEADWAY_NODE=0,1,…",
        )
    raise BadInput(
        f"{info.variable} says {info.nodes} nodes, the plan says {plan.nodes}",
        where=info.variable,
        fix="headway plan with the right resources.nodes, or submit with as many nodes as the plan has",
    )


def _master_port(env: Mapping[str, str], info: NodeInfo) -> int:
    if "HEADWAY_MASTER_PORT" in env:
        return integer_variable(env, "HEADWAY_MASTER_PORT", 1, 65534)
    if info.nodes == 1:
        return 0
    return info.master_port or MASTER_PORT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
