"""Containers whose run folder is in a bucket: credentials go in through memory, and nothing stays on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.spec import Image, TargetEntry
from headway.targets.docker import secrets
from headway.targets.fake import FakeBehaviour
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import CANARY, WAITS
from tests.servers import processes
from tests.testbed.docker import BASE, docker, docker_host
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def start(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[FakeBehaviour], RunHandle]]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    project = write_project(tmp_path / "project")
    (project / "requirements.txt").write_text("")
    with processes.moto() as url:
        settings = {
            "DOCKER_HOST": docker_host,
            "HEADWAY_HOME": str(tmp_path / "home"),
            "HOME": str(tmp_path),
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": CANARY,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
        boto3.client("s3").create_bucket(Bucket="bucket")
        holds: list[RunHandle] = []

        def begin(play: FakeBehaviour) -> RunHandle:
            plan = plan_play(
                project,
                play,
                on="box",
                outputs="s3://bucket/runs",
                image=Image(base=BASE),
                requirements="requirements.txt",
                targets={"box": TargetEntry(kind="docker", options={"network": "host"})},  # where the server listens
            )
            holds.append(lifecycle.launch(plan, detach=True))
            return holds[-1]

        yield begin
        for hold in holds:
            hold.target.down(hold.target_handle)


def test_it_runs_with_credentials_that_docker_never_sees(
    start: Callable[[FakeBehaviour], RunHandle], tmp_path: Path
) -> None:
    hold = start(WAITS)
    wait_until(lambda: any("waits" in line.text for line in hold.logs(rank=0)), "it prints")
    (container,) = hold.target_handle.details["containers"]
    assert CANARY not in json.dumps(json.loads(docker("inspect", container)))
    assert CANARY not in hold.folder.plan().to_json()
    outcome = hold.stop()
    assert outcome.status.state is State.STOPPED
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    assert not secrets.secrets_dir(hold.url).exists()
    assert not Path(hold.target_handle.details["dir"]).exists(), "the bucket has everything"
    assert [line.text for line in lifecycle.logs(hold.url, rank=0)] == ["rank 0 of 1 waits"]


def test_keys_in_a_file_serve_as_well(
    start: Callable[[FakeBehaviour], RunHandle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = somebody\naws_secret_access_key = {CANARY}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    hold = start(FakeBehaviour(lines=("hello",)))
    assert hold.wait().status.state is State.FINISHED
    assert [line.text for line in hold.logs(rank=0)] == ["hello"]
