"""The container of a server: readable, without root, and holding exactly the bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.bundle.format import Bundle
from headway.packaging.engine import NotFound
from headway.serving.deploy.image import CPU_INDEX, ServingImage, build, push, serving_image, write
from tests.deploy.bundles import small_bundle

GOLDEN = Path(__file__).parent / "golden"
PLAIN = ServingImage(
    job="my-leaves",
    headway="0.1.0",
    base="python:3.12-slim",
    platform="linux/amd64",
    setup=(),
    requirements=None,
    extras=("serve",),
    wheel="headway-0.1.0-0abc-py3-none-any.whl",
    wheel_sha256="1" * 64,
    code_sha256="2" * 64,
    repository=None,
    recipe="classification",
    holds_bundle=True,
)
ANY = replace(PLAIN, job="server", recipe="any", holds_bundle=False, extras=("gcp", "serve"))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(str(small_bundle(tmp_path / "bundle")))


@pytest.mark.parametrize(("name", "image"), [("bundle", PLAIN), ("any", ANY)])
def test_the_dockerfile_is_the_reviewed_one(name: str, image: ServingImage) -> None:
    golden = GOLDEN / f"{name}.Dockerfile"
    assert image.dockerfile() == golden.read_text(), f"if this is meant: write it to {golden}"


def test_the_folder_holds_the_bundle_whole_and_nothing_of_cuda(bundle: Bundle, tmp_path: Path) -> None:
    image = serving_image(bundle.record)
    write(image, bundle, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"Dockerfile", "bundle", "requirements", image.wheel}
    copied = Bundle.open(str(tmp_path / "out" / "bundle"))
    assert copied.record.files == bundle.record.files
    needed = (tmp_path / "out" / "requirements" / "headway.txt").read_text()
    assert f"--extra-index-url {CPU_INDEX}\n" in needed
    assert "starlette" in needed
    write(serving_image(bundle.record, gpu=True), bundle, tmp_path / "gpu")
    assert CPU_INDEX not in (tmp_path / "gpu" / "requirements" / "headway.txt").read_text()


def test_another_model_is_another_name_and_a_server_of_any_is_one_for_all(bundle: Bundle, tmp_path: Path) -> None:
    other = Bundle.open(str(small_bundle(tmp_path / "other", name="Cards", recipe="grading"))).record
    assert serving_image(bundle.record).name == serving_image(bundle.record).name
    assert serving_image(bundle.record).name != serving_image(other).name
    assert serving_image(bundle.record).name.startswith("headway/my-leaves:")
    assert serving_image(bundle.record, bundled=False).name == serving_image(other, bundled=False).name


class Docker:
    """As far as an image is built and pushed."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.seen: list[str] = []

    def __call__(self, argv: Sequence[str], *, within_s: float | None = None) -> str:
        words = list(argv)
        self.calls.append(words[1:2])
        if words[1] == "build":
            self.seen = sorted(path.name for path in Path(words[-1], "bundle").iterdir())
        if words[1:3] == ["image", "inspect"]:
            if not self.seen:
                raise NotFound("no such image")
            return f'[{{"RepoDigests": ["{words[-1].rpartition(":")[0]}@sha256:{"a" * 64}"]}}]'
        return ""


def test_what_is_pushed_is_named_by_its_digest(bundle: Bundle) -> None:
    docker, image = Docker(), serving_image(bundle.record, repository="us-docker.pkg.dev/my-project/repo/leaves")
    assert push(docker, "docker", image, bundle) == f"us-docker.pkg.dev/my-project/repo/leaves@sha256:{'a' * 64}"
    assert docker.calls == [["image"], ["build"], ["push"], ["image"]]
    assert docker.seen == ["bundle.json", "config.json", "model.safetensors"]
    build(docker, "docker", image, bundle)
    assert docker.calls[4:] == [["image"]], "what is there is not built again"


def test_serve_image_prints_writes_and_refuses(headway: Callable[..., Any], tmp_path: Path) -> None:
    folder = small_bundle(tmp_path / "b")
    printed = headway("serve", folder, "--image")
    assert printed.code == 0
    assert 'CMD ["/headway/bundle"]' in printed.out
    assert "USER 1000:1000" in printed.out
    assert "AIP_STORAGE_URI" in headway("serve", folder, "--image", "--no-bundle").out
    written = headway("serve", folder, "--image", "--out", "there", "--base", "debian:12")
    assert "docker build" in written.out
    assert "debian:12" in Path("there/Dockerfile").read_text()
    assert "is not empty" in headway("serve", folder, "--image", "--out", "there").err
    alone = headway("serve", folder, "--build")
    assert (alone.code, "add --image" in alone.err) == (2, True)
    assert "--max-body" in headway("serve", folder, "--max-body", "much").err
