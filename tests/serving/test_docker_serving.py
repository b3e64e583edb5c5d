"""The image of a server, built and run for real: it answers as `headway predict` does, to a user without any power."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
httpx = pytest.importorskip("httpx")
pytest.importorskip("tokenizers")

from headway.artifacts.evaluate import predict  # noqa: E402
from headway.cli import main  # noqa: E402
from tests.serving.test_services import MADE, picture  # noqa: E402
from tests.testbed.docker import BASE, HOST, TORCH_IS_MOUNTED, docker, docker_host  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

__all__ = ["docker_host"]
pytestmark = [
    pytest.mark.docker,
    *TORCH_IS_MOUNTED,
    pytest.mark.timeout(900),  # all that a server needs is fetched and installed
]
SITE, THERE = Path(sysconfig.get_path("purelib")), "/usr/lib/python3/dist-packages"
WITH_TORCH = "headway-test-torch:bookworm"


@pytest.fixture(scope="module")
def base(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base that brings torch, as pip sees it. Its 750 MB are mounted when it runs: they need not be copied thrice."""
    folder = tmp_path_factory.mktemp("base")
    (known,) = SITE.glob("torch-*.dist-info")
    shutil.copytree(known, folder / known.name)
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY {known.name} {THERE}/{known.name}\n")
    docker("build", "--tag", WITH_TORCH, str(folder))
    return WITH_TORCH


@pytest.fixture
def container() -> Iterator[Callable[..., str]]:
    """Start one as its users do, on a port of this machine; the address at which it answers."""
    started: list[str] = []

    def begin(image: str, *words: str) -> str:
        folders = [f"type=bind,source={SITE / name},target={THERE}/{name},readonly" for name in ("torch", "torchgen")]
        torch_there = [word for folder in folders for word in ("--mount", folder)]
        asked = ("--detach", "--publish", "127.0.0.1::8080", "--cap-drop", "ALL", *torch_there)
        started.append(docker("run", *asked, *words, image).strip())
        address = f"http://{docker('port', started[-1], '8080').strip()}"
        wait_until(lambda: _ready(address, started[-1]), f"{image} answers")
        return address

    yield begin
    for each in started:
        docker("rm", "--force", each)


def words_of(container: str) -> str:
    logs = ["docker", "--host", HOST, "logs", container]
    return subprocess.run(logs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


def _ready(address: str, container: str) -> bool:
    state = docker("inspect", "--format", "{{.State.Status}}", container).strip()
    assert state == "running", words_of(container)
    try:
        return bool(httpx.get(f"{address}/health", timeout=10).status_code == 200)
    except httpx.TransportError:  # it does not listen yet
        return False


def asked(address: str, path: str) -> Any:
    body = {"instances": [{"image": base64.b64encode(Path(path).read_bytes()).decode()}]}
    (answer,) = httpx.post(f"{address}/predict", json=body, timeout=60).raise_for_status().json()["predictions"]
    return answer


def test_a_server_in_its_image_answers_as_predict_does_and_ends_when_it_is_told(
    base: str,
    docker_host: str,
    container: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    bundle = str(MADE["classification"](tmp_path / "bundle"))
    # --gpu: torch is not looked for in the index of CPU builds, which cannot be reached where these tests run.
    assert main(["serve", bundle, "--image", "--build", "--base", base, "--gpu"]) == 0
    image, run = capsys.readouterr().out.splitlines()
    assert run == f"next: docker run --rm -p 8080:8080 {image}"
    assert re.fullmatch(r"headway/[a-z0-9-]+:[0-9a-f]{12}", image)

    address = container(image)
    given = picture(tmp_path / "leaf.png", 7)
    (here,) = predict(bundle, [given])
    assert asked(address, given)["text"] == here["text"]
    (running,) = docker("ps", "--quiet", "--filter", f"ancestor={image}").split()
    assert docker("exec", running, "id", "-u").strip() == "1000"
    docker("stop", running)
    assert docker("inspect", "--format", "{{.State.ExitCode}}", running).strip() == "0", words_of(running)
