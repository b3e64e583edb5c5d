"""A run that really ran, with curves of its own, and the dashboard over it on a real socket."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

for needed in ("numpy", "starlette", "uvicorn", "httpx"):
    pytest.importorskip(needed)

import httpx  # noqa: E402
import uvicorn  # noqa: E402

from headway.cli import main  # noqa: E402
from headway.dashboard.app import DashboardApp  # noqa: E402
from headway.dashboard.runs import RunService  # noqa: E402
from headway.rundir.index import RunIndex  # noqa: E402
from headway.rundir.layout import SegmentWriter  # noqa: E402
from headway.storage import open_store  # noqa: E402
from tests.browsing import browser, page  # noqa: E402, F401

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("HEADWAY_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def runs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two finished runs of a script that prints; their curves are written as a rank writes them."""
    work = tmp_path_factory.mktemp("work")
    (work / "train.py").write_text("print('needle in the log')\nprint('<b>bold</b> words')\n")
    urls = []
    for name in ("first", "second"):
        job = {"name": "toy", "script": "train.py", "outputs": str(work / "runs"), "env": {"WHICH": name}}
        (work / "headway.yaml").write_text(json.dumps(job))
        assert main(["run", "-f", str(work / "headway.yaml"), "--name", name, "--json"]) == 0
        urls.append(str(work / "runs" / name))
        write_curve(urls[-1], [10.0 / (step + 1) for step in range(200)])
    return urls


def write_curve(url: str, losses: list[float], first: int = 1, attempt: int = 1, **more: int) -> None:
    writer = SegmentWriter(open_store(url), "metrics", attempt)
    writer.add(json.dumps({"resume_step": first - 1, **more}))
    for step, loss in enumerate(losses, first):
        writer.add(json.dumps({"step": step, "epoch": 0, "time": 0.0, "loss": loss}))
    writer.flush()


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def write_sample(url: str, step: int, name: str, body: bytes) -> None:
    """As `run.sample` writes it."""
    open_store(url).write(f"samples/{step:08d}-{name}", body)


def write_checkpoint(url: str, step: int) -> Path:
    """One as the runtime commits it, of one file, which is returned."""
    store, place = open_store(url), f"checkpoints/{step:08d}"
    parts = {"a0001-r0.safetensors": b"equal weights", "a0001-state.json": b"{}"}
    told = {name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in parts.items()}
    for name, body in parts.items():
        store.write(f"{place}/{name}", body)
    state = {"name": "a0001-state.json", **told.pop("a0001-state.json")}
    record = {"schema": 1, "step": step, "files": told, "state": state}
    checksum = hashlib.sha256(_compact(record)).hexdigest()
    store.write(f"{place}/manifest.json", _compact({**record, "checksum": checksum}))
    kept = [{"step": step, "names": ["phase1_best"], "score": 0.75}]
    store.write("checkpoints/last.json", _compact({"step": step, "steps": [step], "kept": kept}))
    writer = SegmentWriter(store, "events", 1, "n9")
    writer.add(json.dumps({"kind": "checkpoint", "step": step, "bytes": 15, "seconds": 0.1, "stall_ms": 1.0}))
    writer.flush()
    return Path(url) / place / "a0001-r0.safetensors"


def _compact(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n").encode()


@pytest.fixture
def acted() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def served(home: Path, acted: list[tuple[str, str]]) -> Callable[..., Any]:
    """`with served(token=…) as client`."""

    def act(name: str) -> Callable[[str], str]:
        return lambda url: acted.append((name, url)) or "stopped"  # type: ignore[func-returns-value]

    @contextmanager
    def start(token: str | None = None) -> Iterator[httpx.Client]:
        site = DashboardApp(RunService(RunIndex()), stop=act("stop"), resume=act("resume"), hosts=HOSTS, token=token)
        server = uvicorn.Server(
            uvicorn.Config(site.application(), port=0, log_config=None, timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(20)

    return start
