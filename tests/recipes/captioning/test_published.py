"""Encoders with published weights: frozen with cached features, or learning from an epoch on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.artifacts.checkpoint_model import open_trained
from headway.artifacts.evaluate import predict
from headway.backbones.weights import fingerprint
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import PretrainedEncoder
from tests.recipes.folders import captioning_job, run_folder

RESNET = {
    "encoder": "resnet18",
    "image_size": 64,
    "decoder": "transformer",
    "epochs": 3,
    "train_samples": 32,
    "val_samples": 4,
    "ema_decay": 0.9,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file as torchvision publishes them, with its classifier."""
    torch.manual_seed(0)
    net = PretrainedEncoder(Config(encoder="resnet18", weights="none")).net
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save({**net.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, path)
    return str(path)


def trained(folder: Path, **settings: object) -> Path:
    run = run_folder(folder / "run", captioning_job(**{**RESNET, **settings}))
    env = {"HEADWAY_RUN_URL": str(run), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "headway.recipes.__main__"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, weights: str) -> Path:
    return trained(tmp_path_factory.mktemp("frozen"), weights=weights, mirror=True)


def encoder_of(run: Path, checkpoint: str = "best") -> PretrainedEncoder:
    encoder = open_trained(str(run), checkpoint).model.encoder
    assert isinstance(encoder, PretrainedEncoder)
    return encoder


@pytest.mark.slow
def test_a_frozen_encoder_is_exported_as_it_came_and_its_features_are_kept(
    frozen: Path, weights: str, tmp_path: Path
) -> None:
    kept = sorted(path.stat().st_size for path in (frozen.parent / "cache" / "headway" / "features").glob("*.f16"))
    grid = 4 * 512 * 2  # bytes: 2 by 2 cells
    assert kept == [4 * grid, 2 * 32 * grid]  # val, and train with its mirrors
    published = PretrainedEncoder(Config(encoder="resnet18", weights=weights))
    assert fingerprint(encoder_of(frozen).net) == fingerprint(published.net)
    Path(weights).rename(Path(weights).with_suffix(".gone"))  # a bundle needs nothing but itself
    try:
        from headway.data.synthetic import scenes

        paths = [str(path) for path in scenes.write_examples(tmp_path / "pictures", 2)]
        assert [answer["input"] for answer in predict(str(frozen / "export"), paths)] == paths
    finally:
        Path(weights).with_suffix(".gone").rename(weights)


@pytest.mark.slow
def test_what_is_exported_is_what_was_scored_also_with_averaged_weights(frozen: Path) -> None:
    from safetensors.torch import load_file

    exported = load_file(frozen / "export" / "model.safetensors")
    model = open_trained(str(frozen)).model.state_dict()
    assert all(torch.equal(exported[name], model[name]) for name in exported)
    assert json.loads((frozen / "export" / "bundle.json").read_text())["metrics"]


@pytest.mark.slow
def test_an_encoder_learns_from_the_epoch_it_is_told_to_and_keeps_its_statistics(tmp_path: Path, weights: str) -> None:
    run = trained(tmp_path, weights=weights, finetune_from=1, ema_decay=0.0)
    published, learnt = PretrainedEncoder(Config(encoder="resnet18", weights=weights)).net, encoder_of(run, "last").net
    before, after = published.state_dict(), learnt.state_dict()
    assert not torch.equal(before["layer4.1.conv2.weight"], after["layer4.1.conv2.weight"])
    assert torch.equal(before["layer4.1.bn2.running_mean"], after["layer4.1.bn2.running_mean"])
    assert not (tmp_path / "cache" / "headway" / "features").exists()
