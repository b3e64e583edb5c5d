"""The dashboard as it is started, over runs that really run: stopped and resumed from the page, and in a bucket."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.dashboard.runs import FolderScanner, RunService, run_id
from headway.rundir.index import RunIndex
from headway.storage import open_store
from tests.servers.gcs import GcsServer

SCRIPT = """
import os, pickle, signal, sys, time

def save(*_):
    with open("state.pkl", "wb") as file:
        pickle.dump(1, file)
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
if os.path.exists("state.pkl"):
    with open("state.pkl", "rb") as file:
        pickle.load(file)
print("training has begun", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
"""


def headway(env: dict[str, str], *words: str) -> None:
    subprocess.run([sys.executable, "-m", "headway", *words], env=env, check=True, capture_output=True)


@contextmanager
def dashboard(env: dict[str, str], *outputs: str) -> Iterator[str]:
    """`headway ui` itself; its address."""
    command = [sys.executable, "-m", "headway", "ui", *outputs, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://localhost(:\d+/\?token=\S{20,})", process.stdout.readline())
        assert found
        try:
            yield f"http://127.0.0.1{found[1]}"
        finally:
            process.terminate()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "headway.yaml").write_text("name: job\nscript: train.py\n")
    return {**os.environ, "HEADWAY_HOME": str(tmp_path / "home"), "ENOUGH": str(tmp_path / "enough")}


@pytest.mark.slow
def test_a_run_is_stopped_and_resumed_from_its_page(page: Any, env: dict[str, str], tmp_path: Path) -> None:
    headway(env, "run", "--name", "night", "--detach")
    try:
        with dashboard(env) as address:
            page.goto(address)
            page.get_by_role("link", name="night").click()
            page.get_by_text("training has begun").wait_for()
            page.get_by_role("button", name="Stop").click()
            page.get_by_role("button", name="Yes").click()
            page.get_by_text("night is stopped").wait_for(timeout=60_000)
            page.get_by_role("button", name="Resume").click(timeout=60_000)
            page.get_by_role("button", name="Yes").click()
            page.get_by_role("button", name="Stop").wait_for(timeout=60_000)
            (tmp_path / "enough").touch()
            page.locator(".tile .finished").wait_for(timeout=60_000)
    finally:
        headway(env, "down", "night")


def test_runs_of_a_bucket_are_shown_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    with GcsServer("bucket") as server:
        server.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        there, url = open_store("gs://bucket/runs/far"), "gs://bucket/runs/far"
        for path in Path(runs[0]).rglob("*"):
            if path.is_file() and not path.name.startswith(".") and "local" not in path.relative_to(runs[0]).parts:
                there.write(path.relative_to(runs[0]).as_posix(), path.read_bytes())
        run_index = RunIndex(tmp_path / "ledger.sqlite")
        places = FolderScanner(run_index, ["gs://bucket/runs"])
        assert places.scan_now() == 1
        board = RunService(run_index, places)
        (listed,) = board.runs()["runs"]
        assert (listed["name"], listed["state"], listed["url"]) == ("far", "finished", url)
        details = board.details(run_id(url))
        assert details["metrics"] == ["loss"]
        assert board.metrics(run_id(url)).curve("loss", points=10)["total"] >= 200
        found = board.logs(run_id(url), rank=0, query="needle", last=5)
        assert [line["text"] for line in found["lines"]] == ["needle in the log"]
        read = [each.path for each in server.requests if "%2Flogs%2F" in each.path]
        assert read != []
        board.logs(run_id(url), rank=0, query="needle", last=5)
        assert [each.path for each in server.requests if "%2Flogs%2F" in each.path] == read, (
            "what it wrote is read once"
        )
