"""Clients that are lost: `headway run` killed at any moment. What it began goes on, or can be begun by another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from headway.rundir.layout import PLAN, RECEIPT, SUBMISSION
from tests.chaos.case import SCRIPT, Case, send
from tests.chaos.scene import Scene

_JOB = """\
name: chaos
script: train.py
config: {config}
seed: 7
checkpoint: {{every: 2 steps, keep_last: 2, keep_every: 5 epochs}}
retries: 10
outputs: {outputs}
resources: {{processes: {ranks}}}
env: {{OMP_NUM_THREADS: "1"}}
secrets: {{CHAOS_SECRET: "env:CHAOS_CANARY"}}
"""
_MOST_CLIENTS = 4


def lost_client(scene: Scene) -> str:
    """Whenever it dies: the run ends with the same bits, and there is a receipt that nothing was left."""
    case, dice = scene.case, scene.dice
    case.folder.store.delete(PLAN)  # this time the client makes it
    launch = ("run", "--file", str(_job_file(case)), "--name", case.tmp.name)
    until = dice.choice(["at once", "planned", "announced", "started", "in training"])
    client = _client(case, *launch)
    case.until(lambda: _has_come(case, until) or client.poll() is not None, f"it was never {until}")
    time.sleep(dice.choice([0.0, dice.uniform(0.0, 0.5)]))
    send(client.pid, signal.SIGKILL)
    client.wait()
    scene.note()
    for _ in range(_MOST_CLIENTS):
        case.until(lambda: not case.labelled(), "it does not end", every_s=0.1)
        if case.folder.ended() is not None:
            break
        case.ends(_client(case, *(("resume", case.url) if _is_there(case, PLAN) else launch)))
    assert case.ends(_client(case, "status", case.url)) == 0, case.explain()  # whoever sees its end writes the receipt
    receipt = json.loads(case.folder.store.read(RECEIPT))
    assert not receipt["left"], receipt
    return f"a client lost {until}"


def _job_file(case: Case) -> Path:
    project = case.tmp / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    job = _JOB.format(config=json.dumps(case.config), outputs=case.url.rpartition("/")[0], ranks=case.ranks)
    (project / "headway.yaml").write_text(job)
    return project / "headway.yaml"


def _client(case: Case, *words: str) -> subprocess.Popen[bytes]:
    own = ("HEADWAY_CODE_DIR", "HEADWAY_RUN", "HEADWAY_SPOOL")  # what a client gives to the supervisor by itself
    env = {name: value for name, value in case.base_env.items() if name not in own}
    env["HEADWAY_HOME"] = str(case.tmp / "home")
    case.starts += 1
    with (case.tmp / f"supervisor-{case.starts}.out").open("wb") as output:
        client = subprocess.Popen(
            [sys.executable, "-m", "headway", *words],
            env=env,
            cwd=case.tmp,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    case.seen_pids.add(client.pid)
    return client


def _has_come(case: Case, until: str) -> bool:
    if until == "at once":
        return True
    if until in ("planned", "announced"):
        return _is_there(case, PLAN if until == "planned" else SUBMISSION)
    ranks = case.ranks_now()
    return bool(ranks) if until == "started" else case.committed() > 0


def _is_there(case: Case, key: str) -> bool:
    return any(entry.key == key for entry in case.folder.store.list(key))
