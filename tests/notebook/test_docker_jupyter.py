"""Jupyter beside a run in a real container: in the image's own interpreter, through `docker exec`, and gone with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

for needed in ("websocket", "httpx"):
    pytest.importorskip(needed)

import httpx  # noqa: E402

from tests.notebook.test_jupyter import SCRIPT, Notebook, env, execute, headway, large, servers  # noqa: E402
from tests.testbed.docker import BASE, docker_host  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

__all__ = ["docker_host", "env"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def run(env: dict[str, str], docker_host: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A live one, whose requirements bring Jupyter."""
    gate = tmp_path / "gate"
    gate.mkdir()
    env = {**env, "DOCKER_HOST": docker_host, "ENOUGH": str(gate / "enough")}
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "requirements.txt").write_text("ipykernel\njupyter-server\n")
    job = {
        "name": "job",
        "script": "train.py",
        "requirements": "requirements.txt",
        "image": {"base": BASE},
        "env": {"ENOUGH": env["ENOUGH"]},
        "mounts": [{"path": str(gate), "at": str(gate)}],
    }
    (tmp_path / "headway.yaml").write_text(json.dumps(job))
    started = headway(env, "run", "--name", "job", "--detach", "--on", "docker")
    assert started.returncode == 0, started.stderr
    yield env
    headway(env, "down", "job")


def test_a_cell_runs_in_the_container_and_jupyter_closes_with_its_caller_or_the_run(
    run: dict[str, str], tmp_path: Path
) -> None:
    notebook = Notebook(run)
    address, token = notebook.address()
    assert httpx.get(f"{address}/api/contents", timeout=30).status_code == 403, "nothing is told without the token"
    large(address, token)
    said = execute(
        address, token, "import headway, sys; run = headway.open_run(); print(run.name, run.state, sys.prefix)"
    )
    assert said.split() == ["job", "running", "/opt/headway"]
    assert notebook.leave() == 0
    assert "closed; the run keeps running" in notebook.said
    wait_until(lambda: servers(tmp_path) == [], within_s=120)
    assert json.loads(headway(run, "status", "job", "--json").stdout)["state"] == "running"

    again = Notebook(run)
    again.address()
    assert servers(tmp_path) != [], "its processes are seen from here"
    Path(run["ENOUGH"]).touch()
    assert again.process.wait(120) == 0, again.said
    assert "closed: job is finished" in again.said
    wait_until(lambda: servers(tmp_path) == [], within_s=120)
