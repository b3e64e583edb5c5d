"""When the reaper ends a run, and when it must not. Its folder is real; the cluster and its clock are a test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import targets
from headway.core.types import State
from headway.launcher import lifecycle
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from headway.targets.fake import FakeTarget
from headway.targets.kubernetes import reaper
from headway.targets.kubernetes.reaper import ReaperConfig, watch_run
from tests.contract.plays import FAKE, plan_play, write_project
from tests.contract.suite import WAITS
from tests.targets.kubernetes.answering import Answering

BORN = 1_700_000_000.0
SET = "/apis/apps/v1/namespaces/ml/statefulsets/r1"
STATEFUL: dict[str, Any] = {
    "metadata": {"name": "r1", "creationTimestamp": "2023-11-14T22:13:20Z", "generation": 2},
    "spec": {"replicas": 3},
}
EMPTY = {"metadata": {**STATEFUL["metadata"], "generation": 1}, "spec": {"replicas": 0}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeTarget, str]:
    """A run that waits to be moved by the test."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(targets.TARGETS, "fake", FAKE)
    target = FakeTarget()
    plan = plan_play(write_project(tmp_path / "project"), WAITS, on="fake", outputs=str(tmp_path / "runs"))
    hold = lifecycle.launch(plan, name="r1", detach=True, target=target)
    return target, hold.url


def watch(
    url: str,
    looks: list[Callable[[Answering], None]],
    *,
    lifetime_s: float | None = None,
    max_wait_s: float | None = None,
    found: dict[str, Any] = STATEFUL,
) -> tuple[int, list[str], Answering]:
    """Guard it; before each further look something happens. After the last one the reaper is asked to leave."""
    api, coming = Answering(answers={SET: found}, clock=BORN + 10), iter(looks)
    said: list[str] = []

    def wait() -> bool:
        happens = next(coming, None)
        if happens is None:
            return True
        happens(api)
        return False

    watched = ReaperConfig(url=url, namespace="ml", name="r1", workers=3, lifetime_s=lifetime_s, max_wait_s=max_wait_s)
    return watch_run(watched, api, wait=wait, log=said.append), said, api


def nothing(api: Answering) -> None:
    pass


def deleted(api: Answering) -> bool:
    return ("DELETE", SET) in api.asked


def test_an_empty_set_is_given_its_workers_and_one_that_somebody_has_emptied_is_left_alone(
    run: tuple[FakeTarget, str],
) -> None:
    _, url = run
    _, said, api = watch(url, [], found=EMPTY)
    assert said == ["calling 3 workers"]
    assert api.changes == {f"{SET}/scale": {"spec": {"replicas": 3}}}
    emptied = {**EMPTY, "metadata": {**EMPTY["metadata"], "generation": 3}}
    assert watch(url, [], found=emptied)[2].changes == {}


def test_a_set_whose_run_is_over_before_it_began_is_given_no_workers(run: tuple[FakeTarget, str]) -> None:
    target, url = run
    target.begin(url)
    target.end(url, State.FAILED)
    _, _, api = watch(url, [], found=EMPTY)
    assert deleted(api)
    assert api.changes == {}


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.BUDGET])
def test_a_run_that_is_done_is_ended(run: tuple[FakeTarget, str], state: State) -> None:
    target, url = run
    target.begin(url)
    target.end(url, state)
    code, said, api = watch(url, [nothing])
    assert code == 0
    assert deleted(api)
    assert state.value in said[0]


def test_a_preempted_run_goes_on_and_a_stopped_one_is_ended(run: tuple[FakeTarget, str]) -> None:
    target, url = run
    target.begin(url)
    target.end(url, State.STOPPED, exit_code=143)
    code, _, api = watch(url, [nothing, nothing])
    assert (code, deleted(api)) == (143, False), "the cluster starts it again"
    RunFolder(open_store(url)).write_json("stop.json", {"by": "me"})
    code, said, api = watch(url, [nothing])
    assert (code, deleted(api)) == (0, True)
    assert "stopped" in said[0]


def test_time_is_the_api_servers(run: tuple[FakeTarget, str]) -> None:
    target, url = run
    target.begin(url)

    def later(api: Answering) -> None:
        api.clock = BORN + 101

    code, said, api = watch(url, [nothing, later, nothing], lifetime_s=100.0)
    assert code == 0
    assert deleted(api)
    assert "time of 100 s is up" in said[0]


def test_what_never_began_is_ended_after_max_wait_and_what_has_begun_is_not(run: tuple[FakeTarget, str]) -> None:
    target, url = run

    def later(api: Answering) -> None:
        api.clock = BORN + 61

    code, said, api = watch(url, [later, nothing], max_wait_s=60.0)
    assert (code, deleted(api)) == (0, True)
    assert "waited" in said[0]
    target.begin(url)
    code, _, api = watch(url, [later, nothing], max_wait_s=60.0)
    assert (code, deleted(api)) == (143, False)


def test_a_folder_that_cannot_be_read_ends_nothing_before_its_time(run: tuple[FakeTarget, str]) -> None:
    target, url = run
    target.begin(url)
    (Path(url) / "lease.json").unlink()
    (Path(url) / "intent.json").write_text("damaged")
    (Path(url) / "plan.json").write_text("damaged")
    code, said, api = watch(url, [nothing])
    assert (code, deleted(api)) == (143, False)
    assert "cannot be read" in said[0]


def test_a_run_whose_folder_was_deleted_is_ended(run: tuple[FakeTarget, str]) -> None:
    import shutil

    _, url = run
    shutil.rmtree(url)
    code, _, api = watch(url, [nothing])
    assert (code, deleted(api)) == (0, True)


def test_a_reaper_whose_set_is_gone_goes_too_and_one_whose_client_died_waits_a_while_for_it(
    run: tuple[FakeTarget, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = run
    code, said, _ = watch(url, [lambda api: api.answers.clear()])
    assert (code, said[-1]) == (0, "statefulset/r1 is gone")
    watched = ReaperConfig(url=url, namespace="ml", name="r1", workers=3, lifetime_s=None, max_wait_s=None)
    looks = iter([False, True])
    assert watch_run(watched, Answering(), wait=lambda: next(looks), log=lambda text: None) == 143, "it may still come"
    monkeypatch.setattr(reaper, "START_WAIT_S", -1.0)
    assert watch_run(watched, Answering(), wait=lambda: False, log=lambda text: None) == 0
