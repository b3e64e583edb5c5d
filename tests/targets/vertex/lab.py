"""Launching small jobs on the strict cloud, and waiting for what must come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import Image
from headway.spec.loading import from_plain
from headway.targets.fake import FakeBehaviour
from headway.targets.vertex.options import Options
from headway.targets.vertex.target import VertexTarget
from tests.contract.plays import plan_play, write_project
from tests.servers.vertex_machines import Image as There
from tests.servers.vertex_machines import Machines
from tests.targets.vertex.cloud import Cloud, Registry
from tests.targets.vertex.jobs import IMAGE, PREBUILT, entry
from tests.waiting import wait_until

REPOSITORY = "us-docker.pkg.dev/my-project/headway/play"


class Lab:
    """One project, one cloud. Whatever is still there at the end is taken down."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self.cloud, self.server = cloud, cloud.vertex
        self.project = write_project(folder / "project")
        self.server.images |= {PREBUILT: There(fresh=True), IMAGE: There(fresh=True)}
        self.holds: list[RunHandle] = []

    def close(self) -> None:
        for hold in self.holds:
            hold.target.down(hold.target_handle)

    def plan(self, play: FakeBehaviour, **more: Any) -> Plan:
        options = {"grace": 10.0, **more.pop("options", {})}
        said = {
            "on": "vertex",
            "outputs": "gs://bucket/runs",
            "image": Image() if options.get("mode") == "package" else Image(repository=REPOSITORY),
            "targets": entry(**options),
            **more,
        }
        return plan_play(self.project, play, **said)

    def target(self, plan: Plan) -> VertexTarget:
        options = from_plain(plan.options, Options)
        return VertexTarget(options, engine=Registry(vertex=self.server, folder=self.cloud.folder))

    def start(self, play: FakeBehaviour, *, run: str | None = None, **more: Any) -> RunHandle:
        plan = self.plan(play, **more)
        hold = lifecycle.launch(plan, name=run, detach=True, target=self.target(plan))
        self.holds.append(hold)
        return hold

    def machines(self, hold: RunHandle) -> Machines:
        return self.server.machines[str(hold.target_handle.details["job"])]

    def texts(self, hold: RunHandle, rank: int | None = 0) -> list[str]:
        return [line.text for line in hold.logs(rank=rank)]

    def prints(self, hold: RunHandle, times: int = 1, rank: int = 0) -> RunHandle:
        wait_until(lambda: len(self.texts(hold, rank)) >= times, f"{hold.run} prints {times} times")
        return hold

    def ends(self, hold: RunHandle) -> State:
        wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "its end is seen")
        return hold.outcome().status.state


def attempts(hold: RunHandle) -> int:
    return [event["kind"] for event in hold.folder.events()].count("attempt")
