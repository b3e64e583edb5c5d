"""The Dockerfile as people read it, and names by content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli import main
from headway.packaging.dockerfile import ImageSpec, image_of_job

GOLDEN = Path(__file__).parent / "golden"
PLAIN = ImageSpec(
    job="captions",
    headway="0.1.0",
    base="python:3.12-slim",
    platform="linux/amd64",
    setup=(),
    requirements=None,
    extras=("train",),
    wheel="headway-0.1.0-0abc-py3-none-any.whl",
    wheel_sha256="1" * 64,
    code_sha256="2" * 64,
    repository=None,
)
FULL = replace(
    PLAIN,
    base="nvcr.io/nvidia/pytorch:24.08-py3",
    platform="linux/arm64",
    setup=("apt-get update && apt-get install -y libgl1", "set -u\necho 'two lines'\n"),
    requirements="deps/my requirements.txt",
    repository="us-docker.pkg.dev/my-project/my-repo/captions",
)


@pytest.mark.parametrize(("name", "image"), [("plain", PLAIN), ("full", FULL)])
def test_the_dockerfile_is_the_reviewed_one(name: str, image: ImageSpec) -> None:
    golden = GOLDEN / f"{name}.Dockerfile"
    assert image.dockerfile() == golden.read_text(), f"if this is meant: write it to {golden}"


def test_headway_is_never_installed_by_name() -> None:
    for image in (PLAIN, FULL):
        installs = [line for line in image.dockerfile().splitlines() if "pip install" in line]
        assert [line for line in installs if "headway-" in line] == [line for line in installs if "--no-index" in line]
        assert not any(line.endswith("install headway") for line in installs)


def test_any_change_of_content_is_another_name_and_nothing_else_is() -> None:
    assert PLAIN.name == replace(PLAIN).name
    assert PLAIN.name.startswith("headway/captions:")
    changes = {
        "base": "python:3.11-slim",
        "platform": "linux/arm64",
        "setup": ("true",),
        "requirements": "r.txt",
        "extras": (),
        "wheel_sha256": "3" * 64,
        "code_sha256": "4" * 64,
    }
    names = {replace(PLAIN, **{key: value}).name for key, value in changes.items()}  # type: ignore[arg-type]
    assert len(names | {PLAIN.name}) == len(changes) + 1


def test_by_default_the_base_is_the_python_that_planned() -> None:
    image = image_of_job(
        {"name": "j", "outputs": "runs", "script": "t.py"}, "2" * 64, ("w.whl", "1" * 64),
        headway="0.1.0", python="3.13.1", platform="linux/amd64",
    )  # fmt: skip
    assert image.base == "python:3.13-slim"


def test_the_image_of_a_project_without_a_dockerfile_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "headway.yaml").write_text("name: small\nscript: train.py\n")
    assert main(["image"]) == 0
    assert "FROM --platform=" in capsys.readouterr().out
