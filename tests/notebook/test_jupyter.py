"""Jupyter beside a run: on this machine and behind a real sshd, with a real kernel, and nothing left of it after."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

for needed in ("jupyter_server", "ipykernel", "websocket", "httpx"):
    pytest.importorskip(needed)

import httpx  # noqa: E402
import websocket  # noqa: E402

from tests.testbed.sshd import Server, lacking  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = """
import os, time
print("training has begun", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
"""


class Notebook:
    """`headway notebook` as a person runs it."""

    def __init__(self, env: dict[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "headway", "notebook", "job", "--no-browser", *words]
        self._file = Path(env["ENOUGH"]).parent / "said"
        with open(self._file, "wb") as out:
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)

    @property
    def said(self) -> str:
        return self._file.read_text()

    def address(self) -> tuple[str, str]:
        """Where it is, and the token."""
        wait_until(lambda: "?token=" in self.said or self.process.poll() is not None, lambda: self.said)
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\S*\?token=(\S+)", self.said)
        assert found, self.said
        return found[1], found[2]

    def leave(self, number: int = signal.SIGINT) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(60)


def servers(folder: Path) -> list[str]:
    """Jupyter processes that serve something below this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "ServerApp.root_dir" in words and str(folder) in words:
            found.append(words)
    return found


def headway(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if lacking():
        pytest.skip(f"no sshd here: {lacking()}")
    server = Server(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    return {**kept, "HEADWAY_HOME": str(tmp_path / "home"), "ENOUGH": str(tmp_path / "enough")}


SSH = pytest.param("ssh", marks=[pytest.mark.ssh, pytest.mark.slow])


@pytest.fixture(params=["local", SSH])
def run(request: pytest.FixtureRequest, env: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    job: dict[str, Any] = {"name": "job", "script": "train.py", "env": {"ENOUGH": env["ENOUGH"]}}
    if request.param == "ssh":
        box: Server = request.getfixturevalue("server")
        entry = {"kind": "ssh", "host": "box", "config": str(box.config), "dir": str(tmp_path / "there"),
                 "python": sys.executable}  # fmt: skip
        job["targets"] = {"box": entry}
    (tmp_path / "headway.yaml").write_text(json.dumps(job))
    on = ["--on", "box"] if request.param == "ssh" else []
    started = headway(env, "run", "--name", "job", "--detach", *on)
    assert started.returncode == 0, started.stderr
    yield env
    headway(env, "down", "job")


def execute(address: str, token: str, code: str) -> str:
    """What a cell with this code prints, in a real kernel."""
    headers = {"Authorization": f"token {token}"}
    kernel = httpx.post(f"{address}/api/kernels", headers=headers, json={}, timeout=60).json()["id"]
    place = address.replace("http://", "ws://")
    line = websocket.create_connection(f"{place}/api/kernels/{kernel}/channels?token={token}", timeout=60)
    head = {"msg_id": uuid.uuid4().hex, "username": "", "session": "s", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    line.send(json.dumps({"header": head, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
    said = ""
    while True:
        told = json.loads(line.recv())
        if told["parent_header"].get("msg_id") != head["msg_id"]:
            continue
        said += told["content"].get("text", "") + "\n".join(told["content"].get("traceback", []))
        if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            line.close()
            return said


def large(address: str, token: str) -> None:
    """Many and large answers at once come through whole."""
    headers = {"Authorization": f"token {token}"}
    body = os.urandom(1_500_000)
    sent = {"type": "file", "format": "base64", "content": base64.b64encode(body).decode()}
    httpx.put(f"{address}/api/contents/large.bin", headers=headers, json=sent, timeout=60).raise_for_status()

    def fetched(_: int) -> bytes:
        return httpx.get(f"{address}/files/large.bin", headers=headers, timeout=60).content

    with ThreadPoolExecutor(6) as pool:
        assert all(answer == body for answer in pool.map(fetched, range(12)))


def test_a_cell_runs_beside_the_run_and_ctrl_c_leaves_nothing_but_the_run(run: dict[str, str], tmp_path: Path) -> None:
    notebook = Notebook(run)
    address, token = notebook.address()
    assert httpx.get(f"{address}/api/contents", timeout=30).status_code == 403, "nothing is told without the token"
    listed = httpx.get(f"{address}/api/contents", headers={"Authorization": f"token {token}"}, timeout=30).json()
    assert "plan.json" in [entry["name"] for entry in listed["content"]]
    large(address, token)
    said = execute(address, token, "import headway; run = headway.open_run(); print(run.name, run.state)")
    assert said.strip() == "job running"
    assert servers(tmp_path) != []
    assert not [words for words in servers(tmp_path) if token in words], "a token is no argument: others can see those"
    assert notebook.leave() == 0
    assert "closed; the run keeps running" in notebook.said
    wait_until(lambda: servers(tmp_path) == [])
    assert json.loads(headway(run, "status", "job", "--json").stdout)["state"] == "running"


@pytest.mark.parametrize("run", ["local"], indirect=True)
def test_it_closes_with_the_run(run: dict[str, str], tmp_path: Path) -> None:
    notebook = Notebook(run)
    notebook.address()
    Path(run["ENOUGH"]).touch()
    assert notebook.process.wait(90) == 0, notebook.said
    assert "closed: job is finished" in notebook.said
    assert servers(tmp_path) == []


@pytest.mark.parametrize("run", [SSH], indirect=True)
def test_a_caller_that_is_killed_leaves_no_jupyter_behind(run: dict[str, str], tmp_path: Path) -> None:
    notebook = Notebook(run)
    notebook.address()
    notebook.leave(signal.SIGKILL)
    wait_until(lambda: servers(tmp_path) == [], lambda: str(servers(tmp_path)))


def test_without_jupyter_it_says_what_to_type(env: dict[str, str], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    from headway.core.errors import BadInput
    from headway.core.types import ExecCommand
    from headway.dashboard.notebook.jupyter import Session

    python = str(bare / "bin" / "python")
    with (
        pytest.raises(BadInput, match="JupyterLab is not installed") as refused,
        Session(ExecCommand(where="this machine", words=(python,), url=str(tmp_path), python=python, here=True)),
    ):
        pass
    assert refused.value.problem.fix == f"{python} -m pip install jupyterlab"
