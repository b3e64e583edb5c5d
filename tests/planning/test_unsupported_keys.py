"""Every key that a target cannot honour is refused or noted when the plan is made: one table, all targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob
from headway.planning import plan
from headway.plugins import TARGETS
from headway.spec import Accelerator, Job, Mount, Resources, Secret, TargetEntry
from headway.spec.model import EndsWhen, Image, Resume

ENTRIES = {
    "local": {},
    "docker": {},
    "kubernetes": {"namespace": "ml"},
    "slurm": {},
    "ssh": {"host": "me@box"},
    "vertex": {"project": "my-project", "mode": "package"},
}
ON = sorted(ENTRIES)
URI = "registry.example.com/team/trainer:v1"
GOOGLE = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
REPOSITORY = "us-docker.pkg.dev/my-project/repo/own"
REFUSED, NOTED, WORKS = "refused", "noted", "works"


def keys(**outcomes: str) -> dict[str, str]:
    """The outcome on each target; `rest` for those that are not named."""
    rest = outcomes.pop("rest", WORKS)
    return {on: outcomes.get(on, rest) for on in ON}


# What the job says -> the key that a refusal or a note names, and the outcome on each target.
TABLE: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "setup": ({"setup": ("echo",)}, "setup", keys(local=REFUSED)),
    "setup, ready image": (
        {"setup": ("echo",), "image": Image(uri=URI)},
        "setup",
        keys(local=REFUSED, docker=REFUSED, kubernetes=REFUSED, vertex="image"),
    ),
    "mount, volume claim": (
        {"mounts": (Mount(pvc="scratch", at="/no/where"),)},
        "mounts",
        keys(rest=REFUSED, kubernetes=WORKS),
    ),
    "mount, nfs": (
        {"mounts": (Mount(nfs="server:/export", at="/no/where"),)},
        "mounts",
        keys(rest=REFUSED, docker=WORKS, kubernetes=WORKS),
    ),
    "mount, folder elsewhere": (
        {"mounts": (Mount(path="/usr", at="/no/where"),)},
        "mounts",
        keys(rest=REFUSED, docker=WORKS, kubernetes=NOTED),
    ),
    "mount, read-only": (
        {"mounts": (Mount(path="/usr", at="/usr", read_only=True),)},
        "read_only",
        keys(local=NOTED, slurm=NOTED, ssh=NOTED, vertex="mounts"),
    ),
    "python in the project": ({"python": ".venv/bin/python"}, "python", keys(rest=REFUSED)),
    "python elsewhere": ({"python": "/opt/own/bin/python"}, "python", keys(local=REFUSED)),
    "image": ({"image": Image(uri=URI)}, "image", keys(local=NOTED, slurm=NOTED, ssh=NOTED, vertex=REFUSED)),
    "dockerfile": (
        {"image": Image(dockerfile="Dockerfile", repository=REPOSITORY)},
        "image",
        keys(local=NOTED, slurm=NOTED, ssh=NOTED, vertex=REFUSED),
    ),
    "requirements": ({"requirements": "requirements.txt"}, "dependencies", keys(rest=NOTED)),
    "requirements, ready image": (
        {"requirements": "requirements.txt", "image": Image(uri=URI)},
        "dependencies",
        keys(rest=NOTED, vertex="image"),
    ),
    "ends_when": ({"ends_when": EndsWhen(idle=60.0)}, "ends_when", keys()),
    "notebook": ({"notebook": "a.ipynb", "script": None}, "notebook", keys()),
    "secret in a file": (
        {"secrets": {"KEY": Secret(ref="gcp-sm://key", as_="file", at="conf/key.json")}},
        "secrets",
        keys(),
    ),
    "secret of this shell": ({"secrets": {"KEY": Secret(ref="env:KEY")}}, "secrets.KEY", keys(vertex=REFUSED)),
    "secret of a cluster": (
        {"secrets": {"KEY": Secret(ref="k8s://hub/key")}},
        "secrets.KEY",
        keys(rest=REFUSED, kubernetes=WORKS, local=WORKS),  # here by the kubeconfig
    ),
    "pod placeholder": ({"args": ("{pod.name}",)}, "args", keys(rest=REFUSED, kubernetes=WORKS)),
    "pod placeholder in resume": (
        {"resume": Resume(args=("--go",), if_exists="{pod.ip}")},
        "resume.if_exists",
        keys(rest=REFUSED, kubernetes=WORKS),
    ),
    "pod placeholder in env": ({"env": {"IP": "{pod.ip}"}}, "env", keys(rest=REFUSED, kubernetes=WORKS)),
    "cloud's choices": (
        {"resources": Resources(machine="n1-standard-8", spot=True)},
        "resources.machine",
        keys(rest=NOTED, kubernetes=WORKS, vertex=WORKS),
    ),
    "memory": (
        {"resources": Resources(memory=1_000_000_000, cpus=1)},
        "resources.memory",
        keys(local=NOTED, ssh=NOTED),
    ),
    "nodes": ({"resources": Resources(nodes=2)}, "resources.nodes", keys(local=REFUSED, ssh=REFUSED)),
    "accelerator": (
        {"resources": Resources(accelerator=Accelerator(kind="T4"))},
        "T4",
        keys(local=NOTED, docker=NOTED),
    ),
}
CASES = [(case, on) for case in TABLE for on in ON]


def job(root: Path, on: str, changes: dict[str, Any]) -> Job:
    for name, text in {"train.py": "", "requirements.txt": "six\n", "a.ipynb": "{}", "Dockerfile": "FROM a\n"}.items():
        (root / name).write_text(text)
    fields: dict[str, Any] = {"name": "own", "script": "train.py", "outputs": "gs://bucket/runs", "root": str(root)}
    if on in ("local", "docker", "slurm"):
        fields["outputs"] = str(root / "runs")
    if on == "kubernetes":
        fields["image"] = Image(repository=REPOSITORY)
    entry = TargetEntry(kind=on, options=ENTRIES[on])
    return Job(**{**fields, **changes, "targets": {"here": entry}})


def test_the_table_has_every_target() -> None:
    assert set(ENTRIES) == set(TARGETS)


@pytest.mark.parametrize(("case", "on"), CASES, ids=[f"{case} on {on}" for case, on in CASES])
def test_what_a_target_cannot_do_is_said_when_the_plan_is_made(case: str, on: str, tmp_path: Path) -> None:
    changes, key, outcomes = TABLE[case]
    outcome = outcomes[on]
    if outcome not in (NOTED, WORKS):
        with pytest.raises(BadJob) as caught:
            plan(job(tmp_path, on, changes), on="here")
        named = key if outcome == REFUSED else outcome
        (found, *_) = [problem for problem in caught.value.problems if problem.where.startswith(named)]
        assert found.fix, "what to do instead"
        return
    made = plan(job(tmp_path, on, changes), on="here")
    if outcome == NOTED:
        assert any(key in note for note in made.notes), made.notes
    else:
        assert not [note for note in made.notes if note.startswith("ignored") and key in note.partition("(")[0]]


def test_a_notebook_needs_its_packages_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.targets.local.target.find_spec", lambda name: None)
    with pytest.raises(BadJob, match=r"-m pip install nbclient ipykernel"):
        plan(job(tmp_path, "local", {"notebook": "a.ipynb", "script": None}), on="here")


def test_a_folder_of_the_host_is_mounted_into_a_container_there(tmp_path: Path) -> None:
    mounts = (Mount(path="/data", at="/data", read_only=True),)
    made = job(tmp_path, "ssh", {"mounts": mounts})
    box = TargetEntry(kind="ssh", options={"host": "me@box", "engine": "docker"})
    text = str(plan(Job(**{**_fields(made), "targets": {"here": box}}), on="here").requests[0].body["text"])
    assert "--volume /data:/data:ro" in text


def _fields(made: Job) -> dict[str, Any]:
    return {name: getattr(made, name) for name in ("name", "script", "outputs", "root", "mounts")}
