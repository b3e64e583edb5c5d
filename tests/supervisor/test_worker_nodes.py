"""Several supervisors as one gang, over loopback: one attempt number, one end, whoever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from headway.core.platform import timing_with
from headway.supervisor import rendezvous
from tests.supervisor.supervised import PATIENCE_S, Case, Supervisor, alive, cases
from tests.waiting import wait_until

Make = Callable[..., Case]


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def two_free_ports() -> int:
    """The first of two in a row, below those that the kernel gives to anybody who asks for any."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            with socket.create_server(("", port)), socket.create_server(("", port + 1)):
                return port
        except OSError:
            continue


class Gang:
    """A run on several nodes of this machine, each with its own spool."""

    def __init__(self, case: Case, nodes: int) -> None:
        self.case, self.nodes = case, nodes
        self.port = two_free_ports()
        self.members: dict[int, Supervisor] = {}
        for node in range(nodes):
            self.start(node)

    def start(self, node: int) -> Supervisor:
        self.members[node] = self.case.start(**self.env(node))
        return self.members[node]

    def env(self, node: int) -> dict[str, str]:
        return {
            "HEADWAY_HOSTS": ",".join(["127.0.0.1"] * self.nodes),
            "HEADWAY_NODE": str(node),
            "HEADWAY_MASTER_PORT": str(self.port),
            "HEADWAY_SPOOL": str(self.case.tmp / f"node-{node}" / "spool"),
        }

    def end(self) -> list[int]:
        return [self.members[node].ends() for node in range(self.nodes)]


def test_the_nodes_meet_and_every_rank_has_its_place(make: Make) -> None:
    case = make(
        """
        names = "RANK LOCAL_RANK WORLD_SIZE MASTER_PORT TF_CONFIG GLOO_SOCKET_IFNAME HEADWAY_ATTEMPT"
        print(json.dumps({name: os.environ[name] for name in names.split()}))
        control(event="note")
        """,
        nodes=3,
        processes=2,
    )
    gang = Gang(case, 3)
    assert gang.end() == [0, 0, 0], case.explain()
    told = [json.loads(case.log(rank)[0]) for rank in range(6)]
    assert [each["RANK"] for each in told] == list("012345")
    assert [each["LOCAL_RANK"] for each in told] == list("010101")
    assert {each["WORLD_SIZE"] for each in told} == {"6"}
    assert {each["MASTER_PORT"] for each in told} == {str(gang.port)}
    assert {each["GLOO_SOCKET_IFNAME"] for each in told} == {"lo"}
    clusters = [json.loads(each["TF_CONFIG"])["cluster"]["worker"] for each in told]
    assert clusters.count(clusters[0]) == 6
    assert len(set(clusters[0])) == 6
    assert sorted(event["rank"] for event in case.events("note")) == [0, 1, 2, 3, 4, 5]
    assert len(case.events("attempt")) == 1
    assert case.ended["state"] == "finished"
    assert any("node 2 of 3, ranks 4-5 of 6" in line.text for line in case.folder.log_lines(-1))


SURVIVOR = """
    print("attempt", ATTEMPT)
    if not (HERE / "go").exists():
        on_term()
        mark(f"up-{ATTEMPT}-{RANK}")
        wait()
"""


@pytest.mark.slow
def test_a_rank_that_dies_on_one_node_restarts_all_of_them_under_one_number(make: Make) -> None:
    case = make(SURVIVOR, nodes=2, processes=2)
    gang = Gang(case, 2)
    pids = [case.marked(f"up-1-{rank}") for rank in range(4)]
    case.mark("go")
    os.kill(pids[3], signal.SIGKILL)
    assert gang.end() == [0, 0], case.explain()
    for rank in range(4):
        assert case.log(rank) == ["attempt 1", "attempt 2"]
    first = next(event for event in case.events("rank_exit") if event.get("first"))
    assert (first["rank"], first["signal"]) == (3, "SIGKILL")
    assert [event["count"] for event in case.events("restart")] == [1]


@pytest.mark.slow
def test_a_node_that_is_killed_is_waited_for_and_joins_again(make: Make) -> None:
    case = make(SURVIVOR, nodes=2)
    gang = Gang(case, 2)
    pids = [case.marked(f"up-1-{rank}") for rank in range(2)]
    gang.members[1].process.kill()
    gang.members[1].ends()
    wait_until(lambda: not alive(pids[0]), case.explain)  # half a gang cannot train
    case.mark("go")
    gang.start(1)
    assert gang.end() == [0, 0], case.explain()
    assert case.log(1) == ["attempt 1", "attempt 2"]
    assert "node 1 of 2 disconnected" in case.events("restart")[0]["reason"]


@pytest.mark.slow
def test_when_node_0_is_killed_the_others_end_their_ranks_and_meet_its_successor(make: Make) -> None:
    case = make(SURVIVOR, nodes=2)
    gang = Gang(case, 2)
    pids = [case.marked(f"up-1-{rank}") for rank in range(2)]
    gang.members[0].process.kill()
    gang.members[0].ends()
    wait_until(lambda: not alive(pids[1]), case.explain)
    case.mark("go")
    gang.start(0)
    assert gang.end() == [0, 0], case.explain()
    assert case.log(1) == ["attempt 1", "attempt 2"]
    assert case.ended["attempt"] == 2


def test_a_signal_to_any_node_stops_all_of_them(make: Make) -> None:
    case = make("on_term(then=lambda: print('saved')); mark(f'up-{RANK}'); wait()", nodes=3)
    gang = Gang(case, 3)
    for rank in range(3):
        case.marked(f"up-{rank}")
    gang.members[2].send(signal.SIGTERM)
    assert gang.end() == [143, 143, 143], case.explain()
    assert [case.log(rank) for rank in range(3)] == [["saved"]] * 3
    assert case.ended["state"] == "stopped"
    assert case.ended["reason"].startswith("SIGTERM on node 2")


def test_a_signal_to_node_0_stops_all_of_them(make: Make) -> None:
    case = make("on_term(); mark(f'up-{RANK}'); wait()", nodes=2)
    gang = Gang(case, 2)
    for rank in range(2):
        case.marked(f"up-{rank}")
    gang.members[0].send(signal.SIGTERM)
    assert gang.end() == [143, 143], case.explain()


def test_a_run_that_is_given_up_ends_every_node_with_the_same_code(make: Make) -> None:
    case = make("on_term(); sys.exit(2) if RANK == 1 else wait()", nodes=2)
    assert Gang(case, 2).end() == [2, 2], case.explain()
    assert case.ended["rank"] == 1


@pytest.mark.slow
def test_a_node_that_never_came_is_named(make: Make) -> None:
    case = make("mark('up')", nodes=4)
    gang = Gang(case, 0)
    gang.nodes = 4
    leader = case.start(**gang.env(0), HEADWAY_TIMING=timing_with(case.env, peers=2))
    third = case.start(**gang.env(3))
    assert leader.ends() == 1
    assert third.ends() == 1
    assert "nodes 1, 2 of 4 did not join: waited 2 s" in case.ended["reason"]
    assert not (case.tmp / "up").exists()


def test_a_node_that_waits_for_node_0_in_vain_says_so_and_asks_to_be_started_again(make: Make) -> None:
    case = make("", nodes=2)
    gang = Gang(case, 0)
    gang.nodes = 2
    member = case.start(**gang.env(1), HEADWAY_TIMING=timing_with(case.env, peers=0.5))
    assert member.ends() == 143
    assert f"could not reach node 0: waited 0.5 s for 127.0.0.1:{gang.port + 1}" in member.printed
    assert "refused" in member.printed


def test_a_waiting_node_heeds_a_signal(make: Make) -> None:
    case = make("", nodes=2)
    gang = Gang(case, 0)
    gang.nodes = 2
    member = case.start(**gang.env(1))
    wait_until(lambda: "joining node 0" in member.printed)
    member.send(signal.SIGTERM)
    assert member.ends() == 143


def test_a_meeting_port_that_is_taken_is_bad_input(make: Make) -> None:
    case = make("", nodes=2)
    gang = Gang(case, 0)
    gang.nodes = 2
    with socket.create_server(("", gang.port + 1)):
        assert case.start(**gang.env(0)).ends() == 2
    assert f"port {gang.port + 1}, for the rendezvous of the nodes, is not available" in case.ended["reason"]


def test_a_port_of_the_ranks_that_is_taken_is_bad_input_and_starts_none(make: Make) -> None:
    case = make('mark("began")', processes=2)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert case.start(HEADWAY_MASTER_PORT=str(port)).ends() == 2, case.explain()
    assert (
        f"port {port}, for the rendezvous of the ranks, is not available: Address already in use"
        in case.ended["reason"]
    )
    assert "fix: " in case.ended["reason"]
    assert not case.events("restart")
    assert not (case.tmp / "began").exists()


def test_what_a_script_saved_on_node_0_is_given_to_every_node(make: Make) -> None:
    case = make(
        """
        run, resume = (Path(os.environ[name]) for name in ("HEADWAY_RUN_DIR", "HEADWAY_RESUME_DIR"))
        print(sorted(path.name for path in resume.rglob("*") if path.is_file()))
        (run / f"by-{RANK}").write_text("x")
        """,
        nodes=2,
    )
    assert Gang(case, 2).end() == [0, 0], case.explain()
    assert case.log(1) == ["[]"]
    again = Gang(case, 0)
    again.nodes = 2
    case.folder.write_json("intent.json", {"attempts": [{"after": 1}]})
    for node in range(2):
        again.start(node)
    assert again.end() == [0, 0], case.explain()
    assert case.log(0)[-1] == "['by-0']"
    assert case.log(1)[-1] == "['by-0', 'by-1']"


@pytest.mark.slow
@pytest.mark.torch
def test_gloo_meets_over_the_interface_and_port_that_ranks_are_given(make: Make) -> None:
    pytest.importorskip("torch")
    case = make(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1) * (RANK + 1)
        dist.all_reduce(total)
        print(int(total), dist.get_world_size())
        dist.destroy_process_group()
        """,
        nodes=2,
    )
    assert Gang(case, 2).end() == [0, 0], case.explain() + str([case.log(0), case.log(1)])
    assert [case.log(rank)[-1] for rank in range(2)] == ["3 2", "3 2"]


# -- who may join -----------------------------------------------------------------------------------------------------


@pytest.fixture(name="gate")
def _gate() -> Iterator[tuple[int, SimpleQueue[Any]]]:
    posted: SimpleQueue[Any] = SimpleQueue()
    port = two_free_ports()
    gate = rendezvous.RendezvousServer(port, b"key", 3, posted.put)
    yield port, posted
    gate.close()


def test_another_runs_node_is_refused(gate: tuple[int, SimpleQueue[Any]]) -> None:
    port, posted = gate
    with pytest.raises(rendezvous.ConnectionRejected, match="rendezvous of another run"):
        rendezvous.join("127.0.0.1", port, b"other key", 1, {})
    with pytest.raises(rendezvous.ConnectionRejected, match="there is no node 3: the run has 3 nodes"):
        rendezvous.join("127.0.0.1", port, b"key", 3, {})
    assert posted.empty()


def test_strangers_do_not_keep_the_gang_from_meeting(gate: tuple[int, SimpleQueue[Any]]) -> None:
    port, posted = gate
    silent = socket.create_connection(("127.0.0.1", port))
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff" * 5000 + b"\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(noise)
    ours = rendezvous.join("127.0.0.1", port, b"key", 2, {"ports": [1]})
    joined = posted.get(timeout=PATIENCE_S)
    assert (joined.node, joined.hello["ports"]) == (2, [1])
    ours.send({"exit": "x" * 100_000})
    assert posted.get(timeout=PATIENCE_S).message == {"exit": "x" * 100_000}
    ours.close()
    assert posted.get(timeout=PATIENCE_S).node == 2
    silent.close()


def test_something_else_on_the_port_is_not_mistaken_for_node_0() -> None:

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"220 smtp ready\r\n"), daemon=True).start()
        with pytest.raises(rendezvous.ConnectionRejected, match="another service is listening there"):
            rendezvous.join("127.0.0.1", server.getsockname()[1], b"key", 1, {})


def test_joining_waits_for_a_node_0_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    port, posted, refused, join = two_free_ports(), SimpleQueue[Any](), threading.Event(), rendezvous.join

    def noting(*args: Any) -> rendezvous.Connection:
        try:
            return join(*args)
        except OSError:
            refused.set()
            raise

    monkeypatch.setattr(rendezvous, "join", noting)
    rendezvous.JoinThread(("127.0.0.1", port), b"key", 1, {}, posted.put, timeout_s=PATIENCE_S).start()
    assert refused.wait(PATIENCE_S)
    gate = rendezvous.RendezvousServer(port, b"key", 2, lambda message: None)
    assert isinstance(posted.get(timeout=PATIENCE_S), rendezvous.Connected)
    gate.close()


def test_after_a_failure_every_node_is_kept_until_its_time_is_up_or_it_is_taken_down(make: Make) -> None:
    keep = {"HEADWAY_KEEP_ON_FAILURE_S": "3600"}
    case = make("sys.exit(3)", nodes=2, job={"retries": 0, "env": keep}, limits={"budget_s": 1800.0})
    gang = Gang(case, 2)
    for node in range(2):
        wait_until(lambda node=node: "kept after the failure until" in gang.members[node].printed, case.explain)  # type: ignore[misc]
    assert (case.folder.ended() or {})["state"] == "failed", "said before anybody waits"
    for member in gang.members.values():
        member.send(signal.SIGTERM)
    assert gang.end() == [1, 1], case.explain()
