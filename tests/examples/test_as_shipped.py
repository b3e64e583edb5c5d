"""The flagship examples, run from their shipped files to the served model. Only endpoints and weights are set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.launcher import lifecycle
from tests.data import layouts
from tests.servers.gcs import GcsServer

pytestmark = [pytest.mark.slow, pytest.mark.torch]
EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 280.0
Type = Callable[..., str]


@pytest.fixture
def bucket() -> Iterator[GcsServer]:
    with GcsServer("my-bucket") as server:
        server.tokens.add("emulator")
        yield server


@pytest.fixture
def headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: GcsServer) -> Iterator[Type]:
    """`headway("run", …)` as a process of its own, whose gs:// is the bucket's server. Returns its standard output."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def type_(*words: object) -> str:
        command = [sys.executable, "-m", "headway", *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path)
        assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    yield type_
    for row in json.loads(type_("ps", "--json")):
        lifecycle.down(row["url"])


def test_captions_on_gke_trains_resnet_features_and_an_lstm_on_flickr8k(
    headway: Type, bucket: GcsServer, tmp_path: Path
) -> None:
    """The ImageNet weights cannot be downloaded in tests: a file with torchvision's names takes their place."""
    import torch

    from headway import backbones

    weights = {**backbones.build("resnet18").state_dict(), "fc.weight": torch.zeros(1000, 512)}
    torch.save(weights, tmp_path / "resnet18.pth")
    layouts.flickr8k(tmp_path / "raw", train=12, val=4, test=4)
    headway("data", "prepare", tmp_path / "raw", "--to", "gs://my-bucket/flickr8k", "--size", 224, "--workers", 1)
    example = ("-f", EXAMPLES / "captions-gke.yaml")
    assert "data      gs://my-bucket/flickr8k" in headway("plan", *example, "--on", "gke")

    headway("run", *example, "--on", "local", "--name", "cap", "--set", f"config.weights={tmp_path / 'resnet18.pth'}")
    assert "bleu_4" in headway("eval", "cap")
    headway("pull", "cap", "--to", "pulled")
    config = json.loads((tmp_path / "pulled/export/config.json").read_bytes())
    assert [config[key] for key in ("encoder", "decoder", "hidden_size", "batch_size")] == [
        "resnet18",
        "lstm",
        512,
        128,
    ]
    words = json.loads((tmp_path / "pulled/export/word_to_id.json").read_bytes())
    assert bucket.objects.buckets["my-bucket"]["runs/cap/export/model.safetensors"]
    picture = next((tmp_path / "raw").rglob("*.jpg"))
    (caption,) = json.loads(headway("predict", tmp_path / "pulled/export", picture, "--json"))
    assert set(caption["text"].split()) <= set(words)
