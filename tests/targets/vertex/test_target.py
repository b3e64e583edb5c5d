"""Runs on Vertex AI: the contract of every target, and what is Vertex AI's own. The client is the real one, over HTTP.

The machines are processes with the variables that Vertex AI injects; see tests/servers/vertex.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.core.types import State, Target
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.rundir.index import MAX_NAME_LENGTH
from headway.spec import Image, Secret
from headway.targets.fake import FakeBehaviour
from headway.targets.vertex.options import Options
from headway.targets.vertex.target import VertexTarget
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import CANARY, WAITS, TargetContract
from tests.servers.loopback import Fault
from tests.targets.vertex.cloud import Cloud, Registry, google
from tests.targets.vertex.jobs import entry

pytestmark = pytest.mark.slow
REPOSITORY = "us-docker.pkg.dev/my-project/headway/play"


class TestVertex(TargetContract):
    kind = "vertex"

    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        with google(tmp_path, monkeypatch) as cloud:
            yield cloud

    @pytest.fixture
    def target(self, cloud: Cloud) -> Target:
        options = Options(project="my-project", region="us-east1", grace=10.0)
        return VertexTarget(options, engine=Registry(vertex=cloud.vertex, folder=cloud.folder))

    @pytest.fixture
    def outputs(self) -> str:
        return "gs://bucket/runs"

    @pytest.fixture
    def plan_of(self, tmp_path: Path, outputs: str, cloud: Cloud) -> Callable[..., Plan]:
        project = write_project(tmp_path / "project")

        def made(play: FakeBehaviour, **more: Any) -> Plan:
            said = {"targets": entry(grace=10.0), "image": Image(repository=REPOSITORY), "outputs": outputs, **more}
            return plan_play(project, play, **{"on": self.kind, **said})

        return made

    def half_gone(self, hold: RunHandle) -> None:
        server = self.server
        (name,) = server.live()
        server.machines[name].crash("workerpool0-0")

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        """What crashes Vertex AI starts again a few times: here it has done so already, and the job fails."""
        machines = self.server.machines[str(hold.target_handle.details["job"])]
        machines.exhaust()
        (replica,) = machines.replicas
        replica.signal(signal.SIGSTOP)
        yield
        machines.crash(replica.task)

    def own_limit_s(self, hold: RunHandle) -> float | None:
        timeout = self.server.jobs[str(hold.target_handle.details["job"])]["jobSpec"]["scheduling"]["timeout"]
        return float(timeout.removesuffix("s"))

    @pytest.fixture(autouse=True)
    def _here(self, cloud: Cloud) -> None:
        self.cloud_here, self.server = cloud, cloud.vertex

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        """The job is made, the answer is lost, and whether it was made cannot be found out."""
        refused = Fault(kind="refuse", status=403, method="GET", times=1)
        lost = Fault(kind="lose", status=500, method="POST", meanwhile=lambda: self.server.faults.append(refused))
        self.server.faults.append(lost)
        yield
        assert lost.times == refused.times == 0
        assert len(self.server.jobs) == 1

    def preempt(self, hold: RunHandle) -> None:
        """Vertex AI starts what it has taken away by itself: to see the run stopped, the job is cancelled."""
        self.server.machines[str(hold.target_handle.details["job"])].cancel()

    # What is not the same here: folders are in a bucket, secrets in Google's store.

    def test_names_at_their_limits_and_any_script_of_the_world(
        self, start: Callable[..., RunHandle], tmp_path: Path
    ) -> None:
        text = "größer 模型 обучение 🚂 \u202e"
        hold = start(
            FakeBehaviour(lines=(text,)), run="n" * MAX_NAME_LENGTH, name="j" * 40, outputs="gs://bucket/läufe 跑"
        )
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == [text]

    def test_a_secret_reaches_the_script_and_is_written_nowhere(
        self,
        start: Callable[..., RunHandle],
        plan_of: Callable[..., Plan],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        cloud = self.cloud_here
        cloud.secrets.secrets["my-project", "wandb-key"] = [b"an old one", CANARY.encode()]
        play = FakeBehaviour(lines=("the key is {TOKEN}", "and that is that"))
        hold = start(play, secrets={"TOKEN": Secret(ref="gcp-sm://wandb-key")})
        assert hold.wait().status.state is State.FINISHED
        assert self.texts(hold) == ["the key is ***", "and that is that"]
        assert CANARY not in repr(cloud.vertex.jobs)
        assert CANARY not in repr(cloud.vertex.entries), "not in Cloud Logging either"
        for name, blob in cloud.gcs.objects.buckets["bucket"].items():
            assert CANARY.encode() not in blob.content, name
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path

    def test_a_secret_is_in_no_request_and_no_process_listing_while_the_run_lives(
        self, start: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.cloud_here.secrets.secrets["my-project", "key"] = [CANARY.encode()]
        secrets = {"TOKEN": Secret(ref="gcp-sm://key"), "KEY": Secret(ref="gcp-sm://my-project/key/1", as_="file")}
        hold = self.running(start(WAITS, secrets=secrets))
        assert CANARY not in hold.folder.plan().to_json()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert CANARY.encode() not in path.read_bytes(), path
            except OSError:  # gone while we looked
                continue
        assert all(CANARY.encode() not in request.body for request in self.server.requests)
