"""Run a copy of a project with `headway` as its author would type it, kill it once, and pull its model."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import wait_until

HERE = Path(__file__).parent
SITE = "/mnt/site"
PAUSES = "env.EPOCH_S=200e-{attempt}"  # 20 s after an epoch of the first attempt, 2 s in the second
KEY = "0123456789012345678901234567890123456789"


@dataclass(frozen=True)
class Project:
    name: str
    model: str  # below files/ of the pulled run
    needs: tuple[str, ...] = ("torch",)  # packages that it imports
    plan_says: str = "by the project"
    continues: str = "continuing after epoch"  # in the log of the second attempt
    parent: Path = HERE


PROJECTS = [
    Project("captioner", "workdir/models/model.pt"),
    Project("translator", "workdir/model.npy", ("numpy",)),
    Project("notebook", "workdir/models/attend.pth", ("torch", "nbclient", "ipykernel", "dask")),
    Project("leaves", "best.pth"),
    Project("grader", "checkpoints/phase2_best.pth"),
    Project(
        "reviews",
        "workdir/out/final/model.safetensors",
        ("transformers", "accelerate"),
        "by Hugging Face Trainer",
        "Hugging Face Trainer: continues from out/checkpoint-",
    ),
    Project("digits", "workdir/digits.pt", ("lightning",), "by Lightning", "Lightning: continues from checkpoints/"),
    Project("spirals", "model.npz", ("jax",)),
    Project("translator_tf", "workdir/model.keras", ("tensorflow",)),
]


def each_project(ci: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Parametrize a test with every project; those named in `ci` run in the daemon's suite of `.ci/run` too."""
    marks = {name: [pytest.mark.ci] for name in ci}
    values = [pytest.param(each, id=each.name, marks=marks.get(each.name, [])) for each in PROJECTS]
    return pytest.mark.parametrize("project", values)


@dataclass
class Folder:
    """A copy of a project in which `headway` is typed."""

    path: Path
    on: tuple[str, ...] = ()  # --on TARGET
    project: Project = PROJECTS[0]
    run: str = ""

    @classmethod
    def copy(
        cls,
        project: Project,
        to: Path,
        entry: Mapping[str, Any] | None = None,
        *,
        mount_packages: bool = False,
        **keys: Any,
    ) -> Folder:
        """Copy a project.

        Args:
            project: it is skipped if no interpreter has the packages that it needs.
            to: the folder to copy it into.
            entry: options of the target `there`, added to the job file.
            mount_packages: mount the packages at SITE, for an image without them.
            keys: other keys that the target needs; those of the author's file stay beside them.
        """
        python = interpreter_with(project.needs)
        if mount_packages:
            keys["mounts"] = [{"path": _site_packages(python), "at": SITE, "read_only": True}]
        elif python != sys.executable:
            keys["python"] = python
        path = to / project.name
        shutil.copytree(project.parent / project.name, path, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        job = path / "headway.yaml"
        assert len(job.read_text().splitlines()) <= 15
        more = {**({"targets": {"there": entry}} if entry else {}), **keys}
        job.write_text(json.dumps(_merged(yaml.safe_load(job.read_text()), more)))
        run = f"own-{os.getpid()}-{project.name.replace('_', '-')}"  # others may test on this machine too
        return cls(path, ("--on", "there") if entry else (), project, run)

    def type(self, *words: str, check: bool = True) -> str:
        done = self._call(*words)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def output(self, *words: str) -> str:
        return self._call(*words).stdout  # notes go to stderr

    def log(self) -> str:
        return self.type("logs", self.run, check=False)

    def state(self) -> str:
        return str(json.loads(self.output("status", self.run, "--json"))["state"])

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headway", *words]
        return subprocess.run(command, cwd=self.path, capture_output=True, text=True, timeout=240)

    def start(self, *words: str) -> None:
        """Start the run, and wait until it has trained two epochs."""
        assert self.project.plan_says in self.type("plan", *self.on)
        self.type("run", *self.on, "--name", self.run, "--detach", "--set", PAUSES, *words)
        wait_until(self._has_trained, self.log)

    def _has_trained(self) -> bool:
        log = self.log()
        assert "headway: failed" not in log, log
        return "poch 2/4" in log

    def ends_with_its_model(self) -> None:
        """Wait for the end; the run has continued, and `pull` brings the model."""
        wait_until(lambda: self.state() not in ("running", "pending"), self.log)
        assert self.state() == "finished", self.log()
        assert self.project.continues in self.log(), self.log()
        self.type("pull", self.run, "--to", "pulled")
        assert (self.path / "pulled" / "files" / self.project.model).is_file(), self.log()


def _merged(job: dict[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with more keys; mappings such as `env` and `secrets` are merged."""
    merged = dict(job)
    for name, value in keys.items():
        merged[name] = {**job[name], **value} if isinstance(job.get(name), dict) else value
    return merged


def interpreter_with(packages: tuple[str, ...]) -> str:
    """Return this interpreter, or one of HEADWAY_TEST_PYTHONS, that has all packages; skip the test if none has."""
    others = os.environ.get("HEADWAY_TEST_PYTHONS", "").split(os.pathsep)
    found = next((python for python in [sys.executable, *filter(None, others)] if not _missing(python, packages)), None)
    if found is None:
        missing = ", ".join(_missing(sys.executable, packages))
        pytest.skip(f"{missing} is not installed; name an interpreter that has it in HEADWAY_TEST_PYTHONS")
    return found


def _site_packages(python: str) -> str:
    look = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def _missing(python: str, packages: tuple[str, ...]) -> list[str]:
    look = "import sys; from importlib.util import find_spec; print(*[n for n in sys.argv[1:] if not find_spec(n)])"
    return subprocess.run([python, "-c", look, *packages], capture_output=True, text=True, check=True).stdout.split()


def ranks_below(folder: Path) -> list[int]:
    """Return the processes with a rank of their own whose working folder is below a folder."""
    return _ranks(lambda entry: (entry / "cwd").resolve().is_relative_to(folder))


def ranks_of_run(name: str) -> list[int]:
    """Return the processes with a rank of their own in a run of that name, wherever they run on this machine."""
    return _ranks(lambda entry: f"\0HEADWAY_RUN={name}\0".encode() in _environment(entry))


def kill(pids: Sequence[int]) -> None:
    assert pids, "there is something to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _environment(entry: Path) -> bytes:
    return b"\0" + (entry / "environ").read_bytes() + b"\0"


def _ranks(chosen: Callable[[Path], bool]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"\0HEADWAY_ATTEMPT=" in _environment(entry) and chosen(entry):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
