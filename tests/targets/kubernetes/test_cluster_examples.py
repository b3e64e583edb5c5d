"""The job files for a cluster, run as they are shipped on a real one, but for small data and small models."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import cli
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import plan
from headway.spec import Job
from tests.data import layouts
from tests.servers.gcs import GcsServer
from tests.testbed.kubernetes import operators
from tests.testbed.kubernetes.bucket import google_bucket
from tests.testbed.kubernetes.cluster import NODE, Cluster, cluster
from tests.testbed.kubernetes.images import SITE, TRAINS_INSIDE

__all__ = ["cluster"]
pytestmark = [pytest.mark.kubernetes, *TRAINS_INSIDE]
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def bucket(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GcsServer]:
    """With the account that both examples run as, and a node of the machine that one of them asks for."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    cluster.kubectl("create", "serviceaccount", "gcs-access", check=False)
    cluster.kubectl("label", "node", NODE, "node.kubernetes.io/instance-type=n1-standard-4", "--overwrite")
    with google_bucket(cluster, monkeypatch) as server:
        yield server


def ran(cluster: Cluster, example: str, on: str, *changes: str) -> RunHandle:
    """Planned from its file, launched, and followed to its end."""
    mounts = f"mounts=[{{path: {cluster.site}, at: {SITE}, read_only: true}}]" if cluster.site else "mounts=[]"
    env = f"env={{STORAGE_EMULATOR_HOST: '{os.environ['STORAGE_EMULATOR_HOST']}', OMP_NUM_THREADS: '1'}}"
    sets = ["outputs=gs://bucket/runs", f"image={{uri: '{cluster.image}'}}", mounts, env, *changes]
    hold = lifecycle.launch(plan(Job.load(EXAMPLES / f"{example}.yaml", set=sets), on=on), name="example", detach=True)
    outcome = hold.wait()
    assert outcome.status.state is State.FINISHED, [line.text for line in hold.logs()][-20:]
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    assert hold.target.list_runs() == []
    return hold


def test_captions_train_in_a_pod_of_a_pytorchjob_and_the_bundle_captions_a_picture(
    cluster: Cluster, bucket: GcsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layouts.coco(tmp_path / "raw", train=8, val=4)
    words = ["data", "prepare", str(tmp_path / "raw"), "--to", "gs://bucket/coco", "--size", "64", "--workers", "1"]
    assert cli.main([*words, "--max-bad", "50%"]) == 0
    with operators.operator(cluster, "pytorchjobs-v1.9.0"):
        hold = ran(
            cluster,
            "captions-gke",
            "gke",
            "data.train=[{source: gs://bucket/coco}]",
            "data.val=[{source: gs://bucket/coco}]",
            "config.weights=none",  # the published ones cannot be downloaded in tests
            "config.epochs=2",
            "resources.cpus=1",
            "resources.memory=2GB",
        )
    capsys.readouterr()
    picture = tmp_path / "picture.jpg"
    picture.write_bytes(layouts.picture(1))
    assert cli.main(["predict", hold.url, str(picture), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert "text" in answer


def test_a_translator_trains_on_three_workers_of_a_statefulset_and_translates(
    cluster: Cluster, bucket: GcsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = ran(
        cluster,
        "translation-statefulset",
        "cluster",
        "config={model_size: tiny, epochs: 2, beam: 1, subwords: 270, train_samples: 60, val_samples: 10, "
        "test_samples: 10}",
        "resources={nodes: 3, memory: 2GB}",  # of which one node of two CPUs has room for three
    )
    (attempt,) = [event for event in hold.folder.events() if event["kind"] == "attempt"]
    assert attempt["world"]["size"] == 3
    capsys.readouterr()
    assert cli.main(["predict", hold.url, "a sentence", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert "text" in answer
