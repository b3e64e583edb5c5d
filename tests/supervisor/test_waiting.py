"""Nodes that are missing: the run waits and says so, counts what idle nodes cost, and gives billed ones back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.rundir.lease import LeaseRecord, seconds_spent
from headway.supervisor.node_wait import NodeWait
from tests.supervisor.supervised import Case, cases
from tests.supervisor.test_worker_nodes import two_free_ports
from tests.waiting import wait_until

Make = Callable[..., Case]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def node_env(case: Case) -> list[dict[str, str]]:
    """The environment of each of two nodes on this machine."""
    port = two_free_ports()
    hosts = {"HEADWAY_HOSTS": "127.0.0.1,127.0.0.1", "HEADWAY_MASTER_PORT": str(port)}
    spools = [str(case.tmp / f"node-{node}" / "spool") for node in range(2)]
    return [{**hosts, "HEADWAY_NODE": str(node), "HEADWAY_SPOOL": spools[node]} for node in range(2)]


def wait_of(**changes: object) -> NodeWait:
    options = {"run": "night", "nodes": 3, "max_wait_s": None, "release_s": 600.0, "usd_per_hour": None}
    return NodeWait(**{**options, **changes})  # type: ignore[arg-type]


def test_machines_that_are_not_there_cost_nothing() -> None:
    billed = wait_of(usd_per_hour=30.0)
    billed.advance(120.0, {2})
    assert billed.free_s == pytest.approx(40.0)
    assert billed.billed_usd == pytest.approx(80 / 3600 * 30)
    assert "waiting 2/3: node 2 of 3 has not joined" in billed.condition["text"]
    assert "2 nodes are billed meanwhile ($0.667), and given back after 10m00s" in billed.condition["text"]
    here = wait_of()
    here.advance(7200.0, {1, 2})
    assert (here.free_s, here.absent, here.released) == (7200.0, "", "")


def test_billed_nodes_are_given_back_and_max_wait_ends_a_wait() -> None:
    billed = wait_of(usd_per_hour=30.0)
    billed.advance(601.0, {1, 2})
    assert "headway resume night" in billed.released
    limited = wait_of(max_wait_s=900.0)
    limited.advance(899.0, {1})
    assert limited.absent == ""
    limited.advance(2.0, {1})
    assert limited.absent == "node 1 of 3 did not join: waited 901 s (max_wait)"


def test_a_dead_holder_is_not_charged_for_the_time_that_counted_for_nothing() -> None:
    record = LeaseRecord(attempt=1, holder="x", beat=60, renew_s=10.0, free_s=450.0)
    assert seconds_spent([], record) == 150.0


def test_a_late_node_is_waited_for_and_status_and_why_name_it(make: Make) -> None:
    case = make("print('here')", nodes=2)
    envs = node_env(case)
    case.start(**envs[0])
    wait_until(lambda: "condition" in (case.folder.progress() or {}), case.explain)
    condition = (case.folder.progress() or {})["condition"]
    assert condition["text"].startswith("waiting 1/2: node 1 of 2 has not joined")
    (event,) = case.events("waiting")
    assert (event["have"], event["need"], event["missing"]) == (1, 2, [1])
    case.start(**envs[1])
    assert [each.ends() for each in case.supervisors] == [0, 0], case.explain()
    assert case.events("waiting_over")
    assert "condition" not in (case.folder.progress() or {})
    waited = case.events("waiting_over")[0]["seconds"]
    assert case.ended["spent_s"] < waited + 30


def test_a_node_that_never_comes_ends_the_run_at_max_wait(make: Make) -> None:
    case = make("", nodes=2, limits={"max_wait_s": 1.0})
    assert case.start(**node_env(case)[0]).ends() == 1
    assert "did not join: waited" in case.ended["reason"]
    assert case.ended["spent_s"] < 1.0


def test_a_node_waits_for_its_coordinator_as_long_as_that_waits_for_it(make: Make) -> None:
    case = make("", nodes=2, limits={"max_wait_s": 1.0})
    assert case.start(**node_env(case)[1]).ends() == 143
    assert "could not reach node 0" in case.explain()
