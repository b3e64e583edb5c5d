"""The job files of the projects on Vertex AI and on a rented machine: planned without credentials, then run for real.

They are run as they are shipped, but for small data and small models.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headway import cli
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan, plan
from headway.spec import Job
from headway.targets.ssh.target import SshTarget
from tests.data import layouts
from tests.servers import vertex_messages, vertex_rules, wandb
from tests.servers.loopback import Answer, LoopbackServer
from tests.servers.vertex_machines import Image
from tests.targets.vertex.cloud import Cloud
from tests.targets.vertex.lab import Lab
from tests.testbed.sshd import Server, lacking

EXAMPLES = Path(__file__).parents[3] / "examples"
GPU = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("name", "strategy", "program"),
    [("leaves-vertex-package", "STANDARD", "pythonPackageSpec"), ("cards-vertex", "SPOT", "containerSpec")],
)
@pytest.mark.usefixtures("no_credentials")
def test_it_plans_and_renders_without_credentials(name: str, strategy: str, program: str, tmp_path: Path) -> None:
    words = ["plan", "-f", str(EXAMPLES / f"{name}.yaml"), "--on", "vertex", "--render", str(tmp_path / "out")]
    assert cli.main([*words, "--out", str(tmp_path / "plan.json")]) == 0
    made = Plan.from_json((tmp_path / "plan.json").read_text())
    assert made.price["ceiling_usd"] <= 5
    assert made.limits.budget_s is not None
    for path in (tmp_path / "out").glob("custom-job*.json"):
        body = json.dumps(json.loads(path.read_text())["body"]).replace("{RUN}", "r")
        for mark in ("{EXPIRES}", "{START}", "{OWNER}", "{OWNER_NAME}"):
            body = body.replace(mark, "1")
        job = vertex_messages.parsed(json.loads(body))
        assert not list(vertex_rules.faults(job)), path.name
        assert job["jobSpec"]["scheduling"]["strategy"] == strategy
        (pool,) = job["jobSpec"]["workerPoolSpecs"]
        assert program in pool


@pytest.mark.usefixtures("no_credentials")
def test_the_rented_machine_plans_and_renders_without_credentials(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    if not shutil.which("ssh"):
        pytest.skip("ssh is not installed: apt-get install openssh-client")
    job = Job.load(attend(tmp_path))
    made = plan(job, on="v100")
    assert made.price["ceiling_usd"] == 60
    assert {request.name for request in made.requests}
    said = json.dumps([request.body for request in made.requests]) + json.dumps(made.options)
    for words in ("AC2_8X60X100", "sl vs cancel", "sl vs list", "shutdown -h now"):
        assert words in said


def attend(folder: Path) -> Path:
    """The job file with a share that this machine has, and small data on it."""
    share = folder / "share"
    for kind, made in (("coco", layouts.coco), ("vizwiz", layouts.vizwiz)):
        made(folder / f"raw-{kind}")
        prepare(folder / f"raw-{kind}", str(share / kind))
    text = (EXAMPLES / "attend-vizwiz-ssh.yaml").read_text().replace("/data/", f"{share}/")
    text = text.replace("share: /data ", f"share: {share} ").replace("/data1/headway", str(folder / "cache"))
    (folder / "attend.yaml").write_text(text)
    return folder / "attend.yaml"


def prepare(source: Path, to: str) -> None:
    words = ["data", "prepare", str(source), "--to", to, "--size", "64", "--workers", "1", "--max-bad", "50%"]
    assert cli.main(words) == 0


# ── run for real, with small data ────────────────────────────────────────────


@pytest.fixture
def zipped(tmp_path: Path) -> Iterator[str]:
    """The address of an archive of pictures, a folder for each class."""
    layouts.class_folders(tmp_path / "leaves", classes=3, each=10)
    with zipfile.ZipFile(tmp_path / "leaves.zip", "w") as archive:
        for path in sorted((tmp_path / "leaves").rglob("*.jpg")):
            archive.write(path, path.relative_to(tmp_path))
    body = (tmp_path / "leaves.zip").read_bytes()
    with LoopbackServer(lambda request: Answer(body=body, headers={"Content-Type": "application/zip"})) as server:
        yield f"{server.url}/leaves.zip"


def launched(lab: Lab, name: str, *changes: str) -> RunHandle:
    sets = ["outputs=gs://bucket/runs", *changes]
    made = plan(Job.load(EXAMPLES / f"{name}.yaml", set=sets), on="vertex")
    hold = lifecycle.launch(made, detach=True, target=lab.target(made))
    lab.holds.append(hold)
    return hold


def finished(lab: Lab, hold: RunHandle) -> None:
    outcome = hold.wait()
    said = "\n".join(entry["jsonPayload"]["message"] for entry in lab.server.entries)
    assert outcome.status.state is State.FINISHED, said
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()


@pytest.mark.slow
@pytest.mark.torch
def test_leaves_train_in_googles_image_from_an_address_with_a_key_of_secret_manager(
    lab: Lab, cloud: Cloud, zipped: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("wandb")
    cloud.vertex.images[GPU] = Image(fresh=True)
    cloud.secrets.secrets["my-project", "wandb-key"] = [wandb.KEY.encode()]
    with wandb.wandb_server() as tracker:
        hold = launched(
            lab,
            "leaves-vertex-package",
            *(f"data.{part}=[{{source: {zipped}}}]" for part in ("train", "val", "test")),
            "config.epochs=2",
            "config.image_size=32",
            "config.batch_size=8",
            "export.to=gs://bucket/models/leaves",
            f"env={{WANDB_BASE_URL: {tracker.address}, OMP_NUM_THREADS: '1'}}",
        )
        finished(lab, hold)
        assert len(tracker.buckets) == 1
    assert any(name.startswith("models/leaves/") and name.endswith(".safetensors") for name in cloud.stored())
    assert [event["kind"] for event in hold.folder.events()].count("attempt") == 1
    assert wandb.KEY not in repr(cloud.vertex.jobs) + repr(cloud.vertex.entries)


@pytest.mark.slow
@pytest.mark.torch
def test_cards_train_in_two_phases_in_an_image_of_their_own_and_survive_a_preemption(
    lab: Lab, cloud: Cloud, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    layouts.graded_pairs(tmp_path / "cards", train=12, val=4)
    prepare(tmp_path / "cards" / "splits.json", "gs://bucket/cards")
    hold = launched(
        lab,
        "cards-vertex",
        "data.train=[{source: gs://bucket/cards}]",
        "data.val=[{source: gs://bucket/cards}]",
        "data.test=[{source: gs://bucket/cards, split: val}]",
        "config.model_size=small",
        "config.image_size=96",
        "config.batch_size=4",
        "config.phase1_epochs=1",
        "config.phase2_epochs=1",
        "export.to=gs://bucket/models/cards",
        "env={OMP_NUM_THREADS: '1'}",
    )
    lab.prints(hold)
    lab.machines(hold).preempt("workerpool0-0")
    finished(lab, hold)
    assert [event["kind"] for event in hold.folder.events()].count("attempt") == 2
    assert any(name.startswith("models/cards/") and name.endswith(".safetensors") for name in cloud.stored())
    kept = [name for name in cloud.stored() if f"/{hold.run}/checkpoints/phase" in name]
    assert any("phase1_best" in name for name in kept)
    assert any("phase2_best" in name for name in kept)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ssh
@pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}")
def test_show_attend_and_tell_trains_on_a_machine_rented_for_it_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    server = Server(tmp_path / "sshd")
    server.start()
    box = tmp_path / "machines"
    box.mkdir()
    small = ["config.epochs=1", "config.image_size=32", "config.batch_size=4", "config.min_count=1",
             "config.weights=none", "config.finetune_from=null", "config.best=bleu_4",
             "env={OMP_NUM_THREADS: '1'}"]  # fmt: skip
    there = {
        "up": f"touch {box}/vm-{{run}}; echo host=127.0.0.1 port={server.port} id=vm-{{run}}",
        "list": f"ls {box} | awk -v run={{run}} '$1 == \"vm-\" run'",
        "down": f"rm -f {box}/vm-{{run}}",
        "identity": str(server.folder / "user_key"),
        "dir": str(tmp_path / "there"),
        "python": sys.executable,
        "ready": 20.0,
        "share": str(tmp_path / "share"),
        "price": 2.5,
    }
    job = Job.load(attend(tmp_path), set=small)
    entry = type(job.targets["v100"])(kind="ssh", options=there)
    made = plan(replace(job, targets={"v100": entry}), on="v100")
    try:
        hold = lifecycle.launch(made, detach=True)
        assert isinstance(hold.target, SshTarget)
        outcome = hold.wait()
        assert outcome.status.state is State.FINISHED, [line.text for line in hold.logs()]
        assert outcome.receipt is not None
        assert outcome.receipt.left == ()
        assert list(box.iterdir()) == [], "the machine was given back"
        assert any((tmp_path / "share" / "runs" / hold.run / "export").iterdir())
    finally:
        server.stop()
