"""Runs begun by the Headway of before its modules were moved, which today's must see, stop and resume to the bit.

The old version is taken from the git history. A run folder has its own wheel (in `code/`), so on every target but
`local` it is that wheel which goes on, by its own names; `local` runs the Headway that is installed. Names by which
processes of the old version are started, and who starts them when today's version resumes such a run:

| module of the old version | started by | today |
| --- | --- | --- |
| headway.runtime.worker | supervisor.json, job.sbatch, start.sh, ENTRYPOINT, pods, Vertex AI and boot.py | same name |
| headway.targets.kubernetes.entry | pods: the image's Headway, of any version, fetches the recorded wheel | same name |
| headway.targets.kubernetes.reaper | the reaper's Job, through `entry` | same name |
| headway.targets.ssh.guardian | a client that rents: it lives on with the old code | launcher.machine_watcher |
| headway.recipes.main | the recorded wheel's supervisor | headway.recipes, by today's supervisor |
| headway.runtime.loggers.child | the recorded wheel's rank 0 | training.metrics.trackers.worker, by today's rank 0 |
| headway.ci.trigger | workflow files in users' repositories | same name |
| headway | rehearsals, verbs run in containers | same name |

Recorded scripts import `headway` and `headway.runtime`: these names stay too. On `local` they meet today's package, in
which other modules that the old pages named (headway.score.captions, headway.data.loader, headway.data.opening) moved.
`plan.json`, `lease.json` and `intent.json` are read by the recorded wheel, which refuses a plan with keys it does not
know: a resume adds none.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.rundir.layout import RunFolder
from headway.storage import join, open_store
from tests.waiting import wait_until

COMMIT = "bb149c5"
ROOT = Path(__file__).resolve().parents[2]
TRAINS = [pytest.mark.slow, pytest.mark.torch]
PATIENCE_S = 240.0
RESULTS = ("r0.safetensors", "state.json")  # of a checkpoint: weights and optimizer, position and random numbers
OLD_WORDS = "; world: "  # in the supervisor's first line, and not in today's
JOB: dict[str, Any] = {
    "name": "phrases",
    "recipe": "translation",
    "config": {"size": "small", "epochs": 4, "tokens": 1024},
    "seed": 7,
    "data": {
        "train": [{"source": "builtin:phrases", "limit": 600}],
        "val": [{"source": "builtin:phrases", "limit": 10}],
        "test": [{"source": "builtin:phrases", "limit": 10}],
    },
    "env": {"OMP_NUM_THREADS": "1"},
    "checkpoint": {"every": "5 steps", "keep_last": 2, "keep_best": 1},
}

TODAY = {"size": "model_size", "tokens": "batch_tokens"}  # what the recipe's options are called today


def missing_history() -> str:
    """Return why the old version cannot be had here; empty where it can."""
    if shutil.which("git") is None:
        return "git is not installed"
    found = subprocess.run(["git", "-C", str(ROOT), "cat-file", "-e", f"{COMMIT}^{{commit}}"], capture_output=True)
    return "" if found.returncode == 0 else f"commit {COMMIT} is not in this clone: git fetch --unshallow"


def old_source(folder: Path) -> Path:
    """Return the old version's `src`, unpacked below `folder`."""
    if missing_history():
        pytest.skip(missing_history())
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as members:
        members.extractall(folder, filter="data")
    return folder / "src"


@dataclass(frozen=True, kw_only=True)
class Project:
    """A folder with a job file, and both versions of `headway` at work in it."""

    folder: Path
    old_src: Path
    job: Mapping[str, Any] = field(default_factory=dict)

    def write(self, renamed: Mapping[str, str] | None = None) -> Project:
        """Write the job file, with the old version's spellings of the recipe's options or with today's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        job = {**JOB, "outputs": str(self.folder / "runs"), **self.job}
        if job.get("config"):
            job["config"] = {(renamed or {}).get(name, name): value for name, value in job["config"].items()}
        (self.folder / "headway.yaml").write_text(yaml.safe_dump(_without_none(job)))
        return self

    @property
    def outputs(self) -> str:
        return str(self.job.get("outputs", self.folder / "runs"))

    def old(self, *words: str) -> str:
        self.write()
        return self._call(words, {"PYTHONPATH": str(self.old_src)})

    def new(self, *words: str, code: int = 0) -> str:
        self.write(TODAY)  # as the refusal of the old file says
        return self._call(words, {}, code)

    def _call(self, words: tuple[str, ...], env: Mapping[str, str], code: int = 0) -> str:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-m", "headway", *words]
        done = subprocess.run(command, cwd=self.folder, env={**inherited, **env}, capture_output=True, text=True)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(open_store(join(self.outputs, run)))

    def begin(self, run: str, *, on: str = "local", more: tuple[str, ...] = ()) -> None:
        """Start a run with the old version; return once it has saved a checkpoint and goes on."""
        self.old("run", "--name", run, "--on", on, "--detach", "--yes", "--no-rehearse", *more)
        folder = self.run_folder(run)
        wait_until(lambda: folder.read_json("checkpoints/last.json") is not None, f"{run} saves", PATIENCE_S)
        assert folder.ended() is None, f"{run} ended before it could be stopped"

    def status(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.new("status", run, "--json"))
        return found

    def digest(self, run: str) -> dict[str, str]:
        """Return the hashes of the last checkpoint's files and of the exported weights."""
        store = self.run_folder(run).store
        keys = [entry.key for entry in store.list("checkpoints/")]
        last = max(key.split("/")[1] for key in keys if key.endswith("/manifest.json"))
        saved = [key for key in keys if key.startswith(f"checkpoints/{last}/")]
        found = {name: key for name in RESULTS for key in saved if key.endswith(name)}
        assert found.keys() == set(RESULTS), keys
        exported = [entry.key for entry in store.list("export") if entry.key.endswith("model.safetensors")]
        (found["export"],) = exported  # in a bucket, in a folder below it
        return {"step": last, **{name: _hash(name, store.read(key)) for name, key in found.items()}}

    def attempts(self, run: str) -> list[dict[str, Any]]:
        return [event for event in self.run_folder(run).events() if event["kind"] == "attempt"]


def _without_none(job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if value is not None}


def _hash(name: str, body: bytes) -> str:
    """Hash a file; of the state, all but the versions of the interpreter that wrote it."""
    if name == "state.json":
        body = json.dumps({**json.loads(body), "environment": {}}, sort_keys=True).encode()
    return hashlib.sha256(body).hexdigest()


def stopped(project: Project, run: str, by: Callable[..., str]) -> None:
    """Stop a live run with either version; today's then shows it as resumable."""
    by("stop", run)
    found = project.status(run)
    assert found["state"] == "stopped", found
    assert found["checkpoint"] >= 5


def resumed(project: Project, run: str, straight: Mapping[str, str], *words: str) -> None:
    """Resume with today's version and compare the result with the run that was never interrupted."""
    said = project.new("resume", run, "--yes", *words)
    found = project.status(run)
    assert found["state"] == "finished", (found, said)
    restored = [event for event in project.run_folder(run).events() if event["kind"] == "restored"]
    assert restored[-1]["step"] >= 5, "it went on from a checkpoint"
    assert project.digest(run) == straight
    assert "resume" not in json.loads(project.run_folder(run).store.read("plan.json")), "its wheel would refuse the key"


def last_start(project: Project, run: str) -> str:
    """Return the supervisor's first line of the last attempt."""
    return [line for line in project.new("logs", run, "--rank", "-1").splitlines() if ": attempt " in line][-1]


class OldRuns:
    """What holds on every target that carries the recorded wheel. Subclasses provide `project` and `on`."""

    on: str

    def test_a_live_run_is_seen_stopped_and_resumed(self, project: Project, straight: dict[str, str]) -> None:
        project.begin("a", on=self.on)
        assert project.status("a")["state"] == "running"
        assert "running" in project.new("ps")
        stopped(project, "a", by=project.new)
        resumed(project, "a", straight)
        assert OLD_WORDS in last_start(project, "a"), "the recorded wheel went on"
        assert "going on from step" in project.new("logs", "a")
        project.new("down", "a")

    def test_a_run_that_the_old_version_stopped_goes_on_here(self, project: Project, straight: dict[str, str]) -> None:
        project.begin("b", on=self.on)
        stopped(project, "b", by=project.old)
        resumed(project, "b", straight, "--on", "local")
        assert OLD_WORDS not in last_start(project, "b"), "today's Headway went on"

    def test_a_run_begun_here_goes_on_there(self, project: Project, straight: dict[str, str]) -> None:
        project.begin("c")
        stopped(project, "c", by=project.old)
        resumed(project, "c", straight, "--on", self.on)
        assert OLD_WORDS in last_start(project, "c"), "the recorded wheel went on"

    def test_down_leaves_nothing_of_a_live_run(self, project: Project) -> None:
        project.begin("d", on=self.on)
        assert "nothing is left" in project.new("down", "d")
        assert project.status("d")["state"] == "stopped"
        assert "orphan" not in project.new("gc", "--dry-run")
