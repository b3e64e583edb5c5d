"""One truth from every place that starts a supervisor, with the variables those places really set."""

from __future__ import annotations

import json
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.supervisor import rendezvous
from headway.supervisor.topology import (
    NodeTopology,
    accelerators_here,
    detect_topology,
    expand_hostlist,
    rank_env,
    single_node,
    with_workers,
)
from tests.supervisor.supervised import plan_of

Env = dict[str, str]


def plan(nodes: int = 1, processes: int = 1, kind: str = "kubernetes") -> Plan:
    return plan_of(nodes=nodes, processes=processes, kind=kind)


def place(env: Env, nodes: int, kind: str = "kubernetes", **more: Any) -> tuple[int, int, str, int]:
    world = detect_topology(env, plan(nodes, kind=kind), **more)
    return world.node, world.nodes, world.master_addr, world.master_port


def refused(env: Env, nodes: int = 1, kind: str = "kubernetes", **more: Any) -> str:
    with pytest.raises(BadInput) as caught:
        detect_topology(env, plan(nodes, kind=kind), **more)
    assert caught.value.problem.fix
    return str(caught.value)


# -- what each place sets ---------------------------------------------------------------------------------------------

# Kubeflow training operator 1.8 and 1.9, one master and two workers, nprocPerNode: "2". RANK counts replicas.
PYTORCHJOB: Env = {
    "PYTHONUNBUFFERED": "1",
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "MASTER_ADDR": "captions-master-0",
    "PET_MASTER_ADDR": "captions-master-0",
    "WORLD_SIZE": "6",
    "RANK": "2",
    "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "3",
}
# The operator before 1.7: replicas only.
OLD_PYTORCHJOB: Env = {
    "PYTHONUNBUFFERED": "0",
    "MASTER_PORT": "23456",
    "MASTER_ADDR": "captions-master-0",
    "WORLD_SIZE": "3",
    "RANK": "1",
}
TRAINJOB: Env = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "captions-node-0-0.captions",
    "PET_MASTER_PORT": "29500",
}
TORCHRUN: Env = {
    "LOCAL_RANK": "0",
    "RANK": "1",
    "GROUP_RANK": "1",
    "ROLE_RANK": "1",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "1",
    "WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic/none/attempt_0/0/error.json",
}
VERTEX_CLUSTER: dict[str, Any] = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-3f4c51e7f1-0:2222"],
        "workerpool1": [
            "cmle-training-workerpool1-3f4c51e7f1-0:2222",
            "cmle-training-workerpool1-3f4c51e7f1-1:2222",
        ],
    },
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 1},
    "job": '{"worker_pool_specs": []}',
}
# Slurm 22.05, `srun -N3 --ntasks-per-node=1`, on the second node.
SLURM: Env = {
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_NPROCS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
SLURM_BATCH_SCRIPT: Env = {
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
STATEFULSET: Env = {
    "HEADWAY_STATEFULSET": "captions",
    "HEADWAY_SERVICE": "captions",
    "HEADWAY_REPLICAS": "3",
    "HEADWAY_NAMESPACE": "ml",
    "HOSTNAME": "captions-2",
}
HOSTS: Env = {"HEADWAY_HOSTS": "10.1.0.1, gpu-b", "HEADWAY_NODE": "1"}


def vertex(**changes: Any) -> Env:
    return {"CLUSTER_SPEC": json.dumps({**VERTEX_CLUSTER, **changes}), "CLOUD_ML_JOB_ID": "123", "TF_CONFIG": "{}"}


def test_a_plain_process_is_a_world_of_its_own() -> None:
    world = detect_topology({}, plan(processes=2, kind="local"))
    assert (world.node, world.nodes, world.size, world.master_addr) == (0, 1, 2, "127.0.0.1")
    assert str(world) == "2 processes on this machine"


def test_the_replica_index_of_a_pytorchjob_is_a_node_and_not_a_rank() -> None:
    world = detect_topology(PYTORCHJOB, plan(3, processes=2))
    assert (world.node, world.nodes, list(world.ranks), world.size) == (2, 3, [4, 5], 6)
    assert (world.master_addr, world.master_port) == ("captions-master-0", 23456)
    assert str(world) == ("node 2 of 3, ranks 4-5 of 6, master captions-master-0:23456 (Kubeflow's PyTorchJob (PET_*))")


def test_an_old_pytorchjob_is_understood_by_its_replicas() -> None:
    assert place(OLD_PYTORCHJOB, 3) == (1, 3, "captions-master-0", 23456)


def test_a_trainjob_is_understood() -> None:
    assert place(TRAINJOB, 4) == (3, 4, "captions-node-0-0.captions", 29500)


def test_a_trainjob_of_one_node_needs_no_master() -> None:
    assert place({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4"}, 1) == (0, 1, "127.0.0.1", 0)


def test_torchrun_is_understood_and_its_own_port_left_alone() -> None:
    assert place(TORCHRUN, 2) == (1, 2, "10.0.0.7", 29401)


def test_torchrun_inside_a_kubeflow_pod_is_torchrun() -> None:
    assert place({**PYTORCHJOB, **TORCHRUN}, 2)[:3] == (1, 2, "10.0.0.7")


def test_vertex_pools_are_nodes_and_the_port_is_ours() -> None:
    master = "cmle-training-workerpool0-3f4c51e7f1-0"
    assert place(vertex(), 3, "vertex") == (2, 3, master, 29500)
    assert place(vertex(task={"type": "workerpool0", "index": 0}), 3, "vertex")[0] == 0
    assert place(vertex(task={"type": "workerpool1", "index": 0}), 3, "vertex")[0] == 1


def test_a_vertex_job_of_one_machine_is_plain() -> None:
    assert place({"CLOUD_ML_JOB_ID": "123", "AIP_MODEL_DIR": "gs://b/model/"}, 1, "vertex")[:2] == (0, 1)


def test_a_statefulset_is_understood_by_ordinal_and_service() -> None:
    assert place(STATEFULSET, 3) == (2, 3, "captions-0.captions.ml.svc", 29500)
    assert place({**STATEFULSET, "HOSTNAME": "captions-0"}, 3)[0] == 0


def test_slurm_is_understood_without_asking_scontrol() -> None:
    assert place(SLURM, 3, "slurm") == (1, 3, "n1", 29500)


def test_slurm_names_that_do_not_resolve_get_addresses() -> None:
    env = {**SLURM, "HEADWAY_SLURM_ADDRS": "n1=127.0.0.1,n2=127.0.0.2"}
    assert place(env, 3, "slurm")[2] == "127.0.0.1"


def test_our_own_hosts_come_before_anything_else() -> None:
    assert place({**SLURM, **HOSTS}, 2, "ssh") == (1, 2, "10.1.0.1", 29500)


def test_another_port_can_be_chosen() -> None:
    assert place({**HOSTS, "HEADWAY_MASTER_PORT": "31000"}, 2, "ssh")[3] == 31000


def test_what_surrounds_a_local_run_is_not_its_world() -> None:
    for around in (SLURM, PYTORCHJOB, TORCHRUN, vertex()):
        assert place(around, 1, "local")[:2] == (0, 1)


# -- what cannot be right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "nodes", "named"),
    [
        ({**TRAINJOB, "PET_NODE_RANK": "4"}, 4, "PET_NODE_RANK=4 is not a whole number from 0 to 3"),
        ({**TRAINJOB, "PET_NODE_RANK": "two"}, 4, "PET_NODE_RANK=two"),
        ({**TRAINJOB, "PET_NODE_RANK": ""}, 4, "PET_NODE_RANK is not set"),
        ({**TRAINJOB, "PET_MASTER_ADDR": ""}, 4, "PET_MASTER_ADDR is not set"),
        ({**TRAINJOB, "PET_MASTER_PORT": "70000"}, 4, "PET_MASTER_PORT=70000"),
        ({**TRAINJOB, "PET_NNODES": "1:4"}, 4, "PET_NNODES=1:4 is elastic"),
        ({**TRAINJOB, "PET_RDZV_BACKEND": "c10d"}, 4, "is elastic"),
        ({**PYTORCHJOB, "RANK": "1"}, 3, "RANK=1 and PET_NODE_RANK=2 contradict each other"),
        (TRAINJOB, 2, "PET_NNODES says 4 nodes, the plan says 2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, 2, "LOCAL_WORLD_SIZE=4 starts several supervisors"),
        ({**OLD_PYTORCHJOB, "LOCAL_RANK": "0"}, 3, "LOCAL_RANK=0 is set for a rank"),
        ({"CLUSTER_SPEC": "{"}, 2, "CLUSTER_SPEC={ is not a cluster spec"),
        ({"CLUSTER_SPEC": "[]"}, 2, "is not a cluster spec"),
        (vertex(task={"type": "workerpool1", "index": 7}), 3, "has no task workerpool1[7]"),
        (vertex(cluster={**VERTEX_CLUSTER["cluster"], "workerpool2": ["x:1"]}), 3, "has workerpool2"),
        ({**STATEFULSET, "HOSTNAME": "captions-3"}, 3, "'captions-3', not one of captions-0 to captions-2"),
        ({**STATEFULSET, "HOSTNAME": "other-0"}, 3, "HEADWAY_STATEFULSET"),
        ({**STATEFULSET, "HEADWAY_REPLICAS": "0"}, 3, "HEADWAY_REPLICAS=0"),
        ({**STATEFULSET, "HEADWAY_SERVICE": ""}, 3, "HEADWAY_SERVICE is not set"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, 3, "SLURM_STEP_NUM_TASKS=6 is not one supervisor on each"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n[1-"}, 3, "SLURM_STEP_NODELIST=n[1- is not a Slurm node list"),
        ({**SLURM, "HEADWAY_SLURM_ADDRS": "n1"}, 3, "HEADWAY_SLURM_ADDRS=n1 is not a list"),
        (SLURM_BATCH_SCRIPT, 2, "srun --nodes=2 --ntasks=2"),
        ({**HOSTS, "HEADWAY_NODE": "2"}, 2, "HEADWAY_NODE=2"),
        ({"HEADWAY_HOSTS": "a,,b", "HEADWAY_NODE": "0"}, 3, "HEADWAY_HOSTS=a,,b"),
        ({"HEADWAY_HOSTS": "a,b"}, 2, "HEADWAY_NODE is not set"),
        ({}, 2, "the plan has 2 nodes, and no environment variable says which one this is"),
    ],
)
def test_what_is_malformed_or_contradictory_is_named(env: Env, nodes: int, named: str) -> None:
    assert named in refused(env, nodes)


def test_slurm_node_lists_expand_in_slurms_order() -> None:
    assert expand_hostlist("n1") == ["n1"]
    assert expand_hostlist("n[1-3]") == ["n1", "n2", "n3"]
    assert expand_hostlist("n[08-11,15],login") == ["n08", "n09", "n10", "n11", "n15", "login"]
    assert expand_hostlist("a[1-2]-ib[0-1],b") == ["a1-ib0", "a1-ib1", "a2-ib0", "a2-ib1", "b"]
    for broken in ("", "n[", "n]1", "n[2-1]", "n[a-b]", "n[1-99999999]", "a,,b"):
        with pytest.raises(BadInput, match="SLURM_JOB_NODELIST"):
            expand_hostlist(broken)


# -- what a rank is told ----------------------------------------------------------------------------------------------


def three_nodes(node: int) -> NodeTopology:
    env = {"HEADWAY_HOSTS": "10.0.0.1,10.0.0.2,10.0.0.3", "HEADWAY_NODE": str(node)}
    return detect_topology(env, plan(3, processes=2))


def test_a_rank_is_told_its_world_as_torch_and_tensorflow_read_it() -> None:
    hosts = {0: "10.0.0.1", 1: "10.0.0.2", 2: "fd00::3"}
    world = with_workers(three_nodes(1), hosts=hosts, ports={n: [7000, 7001] for n in hosts}, own_address="127.0.0.1")
    told = rank_env(world, 1)
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("3", "1", "6", "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "29500")
    config = json.loads(told["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["cluster"]["worker"] == [
        "10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.2:7000", "10.0.0.2:7001", "[fd00::3]:7000", "[fd00::3]:7001",
    ]  # fmt: skip


def test_alone_everything_is_on_loopback_and_on_free_ports() -> None:
    world = single_node(detect_topology({}, plan(processes=3, kind="local")))
    told = rank_env(world, 0)
    ports = [int(told["MASTER_PORT"]), *(int(worker.rpartition(":")[2]) for worker in world.workers)]
    assert len(set(ports)) == 4
    assert told["GLOO_SOCKET_IFNAME"] == told["NCCL_SOCKET_IFNAME"] == "lo"
    for port in ports:
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))


def test_the_interface_is_found_by_any_of_our_own_addresses() -> None:
    assert rendezvous.interface_of("127.0.0.1") == "lo"
    assert rendezvous.interface_of("127.0.1.1") == "lo"  # what Debian makes of a host's own name
    assert rendezvous.interface_of("203.0.113.77") is None
    outward = [address for address in _addresses() if not address.startswith("127.")]
    for address in outward:
        name = rendezvous.interface_of(address)
        assert name in [known for _, known in socket.if_nameindex()]
        assert name != "lo"


def _addresses() -> list[str]:
    """Our IPv4 addresses by another way: the kernel's table of local routes."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    found = [above.split()[-1] for above, line in pairwise(lines) if "/32 host LOCAL" in line]
    return sorted(set(found))


def test_accelerators_are_counted_as_a_rank_would_see_them(tmp_path: Path) -> None:
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": "0,2,3"}) == 3
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert accelerators_here({"PATH": str(tmp_path)}) == 0
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: GPU-1)'\necho 'GPU 1: Tesla T4 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    assert accelerators_here({"PATH": str(tmp_path)}) == 2
    assert detect_topology({"PATH": str(tmp_path)}, plan(processes=0, kind="local")).processes == 2
