"""A training script that does what its argument says, and the plans that run it. Needs neither torch nor a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.planning import Plan, plan
from headway.plugins import TargetPlugin
from headway.spec import Job, Resources, Secret
from headway.targets.fake import FakeBehaviour

# The fake is no place for users to run things, so it is in the registry only where a test puts it.
FAKE = TargetPlugin(
    "headway.targets.fake:FakeTarget", options="headway.targets.fake:Options", extra=None, summary="in memory"
)
SCRIPT = """\
import json, os, signal, sys

os.environ["HEADWAY_RESUME_DIR"]  # so it may go on from there, and is started again by itself where that is paid for
play = json.loads(sys.argv[1])
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
if play["until_stopped"]:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
for line in play["lines"]:
    print(line.format(rank=rank, world=world, **os.environ))
while play["until_stopped"]:
    signal.pause()
sys.exit(play["exit_code"])
"""


# Nothing in it loads earlier state.
FORGETFUL = "forgetful.py"
FORGETS = """\
import pathlib, time

pathlib.Path("model.pt").write_bytes(b"weights")
print("begins", flush=True)
while True:
    time.sleep(1)
"""


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "play.py").write_text(SCRIPT)
    return folder


def write_forgetful(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FORGETFUL).write_text(FORGETS)
    (folder / "requirements.txt").write_text("")
    return folder


def plan_play(
    project: Path,
    play: FakeBehaviour,
    *,
    on: str,
    outputs: str,
    ranks: int = 1,
    name: str = "play",
    retries: int = 0,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, Secret] | None = None,
    nodes: int = 1,
    **more: Any,
) -> Plan:
    """A plan whose ranks all do what `play` says. `more` are further keys of the job."""
    keys: dict[str, Any] = {
        "resources": Resources(processes=ranks, nodes=nodes),
        "retries": retries,
        "env": env or {},
        "secrets": secrets or {},
        **more,
    }
    script = {"script": "play.py", "args": (json.dumps(asdict(play), ensure_ascii=False),), "root": str(project)}
    job = Job(name=name, outputs=outputs, **{**script, **keys})
    return plan(job, on=on)


def play_of(plan: Plan) -> FakeBehaviour:
    """What a plan made by `plan_play` does, read back from it."""
    known: dict[str, Any] = json.loads(plan.job["args"][0])
    return FakeBehaviour(**{**known, "lines": tuple(known["lines"])})
