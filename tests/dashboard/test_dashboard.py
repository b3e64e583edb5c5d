"""What the dashboard answers, to whom, and that nobody else's page can act through it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.testclient import TestClient

from headway.cli import main
from headway.core.errors import NotThere
from headway.dashboard.runs import FolderScanner, RecordCache, RunService, run_id
from headway.dashboard.views import Metrics, downsample, last_lines
from headway.rundir.index import RunIndex, RunRow
from headway.rundir.layout import RunFolder, SegmentWriter
from headway.storage import open_store
from tests.dashboard.conftest import write_curve

Served = Callable[..., Any]


def test_runs_are_listed_searched_and_opened(served: Served, runs: list[str]) -> None:
    with served() as client:
        found = client.get("/api/runs").json()
        assert {run["name"]: run["state"] for run in found["runs"]} == {"first": "finished", "second": "finished"}
        assert [run["name"] for run in client.get("/api/runs?q=fir+finished").json()["runs"]] == ["first"]
        details = client.get(f"/api/runs/{run_id(runs[0])}").json()
        assert (details["name"], details["state"], details["metrics"]) == ("first", "finished", ["loss"])
        assert details["receipt"]["left"] == []
        assert client.get("/api/runs/0000000000000000").status_code == 404


def test_curves_logs_and_differences_are_answered(served: Served, runs: list[str]) -> None:
    first, second = map(run_id, runs)
    with served() as client:
        curve = client.get(f"/api/runs/{first}/metrics?name=loss&points=50&high=200").json()["loss"]
        assert curve["total"] == 200
        assert len(curve["steps"]) <= 50
        assert (curve["steps"][0], curve["values"][0], curve["steps"][-1]) == (1, 10.0, 200)
        near = client.get(f"/api/runs/{first}/metrics?name=loss&low=10&high=20").json()["loss"]
        assert near["steps"] == list(range(10, 21))
        assert [line["text"] for line in client.get(f"/api/runs/{first}/logs?q=NEEDLE").json()["lines"]] == [
            "needle in the log"
        ]
        assert client.get(f"/api/runs/{first}/logs?rank=7").json()["lines"] == []
        assert {"key": "env.WHICH", "values": ["***", "***"]} in client.get(
            "/api/compare", params=[("run", first), ("run", second)]
        ).json()


def test_what_happens_is_told_as_it_happens(served: Served, runs: list[str]) -> None:
    with served() as client, client.stream("GET", f"/api/runs/{run_id(runs[1])}/live") as stream:
        told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert next(told)["last"]["loss"] == pytest.approx(10 / 200)
        write_curve(runs[1], [0.5, 0.25], first=201, attempt=2)
        assert next(told)["last"]["loss"] == 0.25


def test_only_a_page_of_this_server_can_act(served: Served, runs: list[str], acted: list[tuple[str, str]]) -> None:
    path = f"/api/runs/{run_id(runs[0])}/stop"
    with served() as client:
        assert client.post(path).status_code == 403, "a form of another site sends no such header"
        assert client.post(path, headers={"X-Headway-Ui": "1", "Origin": "http://evil.example"}).status_code == 403
        assert client.post(path, headers={"X-Headway-Ui": "1", "Host": "evil.example:80"}).status_code == 421
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
        assert acted == []
        own = str(client.base_url).rstrip("/")
        assert client.post(path, headers={"X-Headway-Ui": "1", "Origin": own}).json() == {"state": "stopped"}
        assert client.post(f"/api/runs/{run_id(runs[0])}/delete", headers={"X-Headway-Ui": "1"}).status_code == 404
    assert acted == [("stop", runs[0])]


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1", "[::1]", "[::1]:8765"])
def test_a_host_header_is_accepted_with_and_without_a_port(served: Served, host: str) -> None:
    with served() as client:
        assert client.get("/", headers={"Host": host}).status_code == 200


def test_with_a_token_nothing_is_shown_without_it(served: Served, runs: list[str]) -> None:
    with served(token="canary") as client:
        assert client.get("/api/runs").status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        answer = client.get("/?token=canary")
        assert answer.status_code == 303
        assert "canary" not in answer.headers["location"]
        assert client.get("/api/runs").status_code == 200


def test_the_printed_address_has_a_token_on_this_machine_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    answers: list[int] = []

    def run(server: uvicorn.Server, sockets: Any) -> None:
        with TestClient(server.config.app, base_url="http://localhost") as client:
            answers.append(client.get("/api/runs").status_code)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    assert main(["ui", "--port", "0", "--no-browser"]) == 0
    assert re.search(r"http://localhost:\d+/\?token=\S{20,}", capsys.readouterr().out)
    assert answers == [401]


def test_values_of_variables_are_not_shown(served: Served, runs: list[str]) -> None:
    with served() as client:
        assert client.get(f"/api/runs/{run_id(runs[0])}").json()["job"]["env"]["WHICH"] == "***"


def test_no_file_outside_of_a_run_can_be_read(served: Served, runs: list[str]) -> None:
    with served() as client:
        for name in ("../plan.json", "..%2fplan.json", "%2e%2e/plan.png", "/etc/passwd", "plan.json"):
            assert client.get(f"/api/runs/{run_id(runs[0])}/samples/{name}").status_code in (404, 405, 502)


def test_a_spike_is_seen_however_far_one_zooms_out() -> None:
    values = np.zeros(100_000)
    values[12_345], values[77_777], values[5] = 9.0, -9.0, np.nan
    kept = downsample(values, 200)
    assert len(kept) <= 202
    assert {0, 12_345, 77_777, 99_999} <= set(kept.tolist())


def test_what_an_attempt_wrote_past_the_resume_is_not_drawn(tmp_path: Path) -> None:
    write_curve(str(tmp_path), [5.0, 4.0, 3.0, 2.0])
    metrics = Metrics(RunFolder(open_store(str(tmp_path))))
    assert metrics.refresh()
    write_curve(str(tmp_path), [3.5], first=3, attempt=2)
    assert metrics.refresh()
    assert not metrics.refresh()
    assert metrics.curve("loss", points=10) == {"steps": [1, 2, 3], "values": [5.0, 4.0, 3.5], "total": 3}


def test_a_resume_from_an_attempt_before_the_last_is_drawn_as_the_folder_tells_it(tmp_path: Path) -> None:
    folder = RunFolder(open_store(str(tmp_path)))
    metrics = Metrics(folder)
    write_curve(str(tmp_path), [5.0, 4.0, 3.0])
    write_curve(str(tmp_path), [9.0], first=3, attempt=2)
    metrics.refresh()
    write_curve(str(tmp_path), [2.0], first=4, attempt=3, resume_attempt=1)
    metrics.refresh()
    told = {record["step"]: record["loss"] for record in folder.metrics()}
    assert metrics.curve("loss", points=10)["values"] == list(told.values()) == [5.0, 4.0, 3.0, 2.0]


def test_ten_thousand_runs_are_answered_by_looking_at_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_index = RunIndex(tmp_path / "ledger.sqlite")
    run_index.record(*(
        RunRow(name=f"run-{n}", url=f"{tmp_path}/{n}", target="local", job="j", created=float(n), state="finished")
        for n in range(10_000)
    ))  # fmt: skip
    looked: list[str] = []
    seen = {"ended": True, "state": "finished"}
    monkeypatch.setattr(RunService, "_read_summary", lambda self, row: looked.append(row.name) or seen)
    board = RunService(run_index)
    found = board.runs(offset=100, limit=50)
    assert (found["total"], found["runs"][0]["name"], len(looked)) == (10_000, "run-9899", 50)
    board.runs(offset=100, limit=50)
    assert len(looked) == 50, "an ended run is not looked at twice"


def test_the_last_lines_are_read_from_the_end_and_a_word_is_found_anywhere(tmp_path: Path) -> None:
    read: list[str] = []
    store = open_store(str(tmp_path))
    for writer, first in (("r0", 0), ("r1", 5000)):
        segment = SegmentWriter(store, "logs", 1, writer, "log")
        for number in range(first, first + 300):
            segment.add(f"2026-01-01T00:00:00.{number:04d}Z line {number} of {writer}")
            if number % 10 == 9:
                segment.flush()
    memory = RecordCache()
    folder = RunFolder(memory.store(str(tmp_path)))
    asked = folder.store.read
    folder.store.read = lambda key, span=None: read.append(key) or asked(key, span)  # type: ignore
    lines = last_lines(folder, rank=None, query="", last=15)
    assert [line["text"] for line in lines] == [f"line {number} of r1" for number in range(5285, 5300)]
    assert len(read) == 4, "two segments a rank are enough"
    assert [line["text"] for line in last_lines(folder, rank=0, query="LINE 7 ", last=9)] == ["line 7 of r0"]


def test_what_never_changes_is_read_once(tmp_path: Path) -> None:
    memory = RecordCache(most_bytes=25)
    plain = open_store(str(tmp_path))
    for name in ("one", "two", "three"):
        plain.write(f"logs/a0001-r0-{name}.log", b"0123456789")
    plain.write("progress.json", b"1")
    store = memory.store(str(tmp_path))
    assert store.read("logs/a0001-r0-one.log") == b"0123456789"
    (tmp_path / "logs/a0001-r0-one.log").unlink()
    assert store.read("logs/a0001-r0-one.log") == b"0123456789"
    for name in ("two", "three"):
        store.read(f"logs/a0001-r0-{name}.log")
    with pytest.raises(NotThere):
        store.read("logs/a0001-r0-one.log")  # forgotten: there is room for two
    plain.write("progress.json", b"2")
    assert store.read("progress.json") == b"2"


def test_runs_of_a_place_are_listed_with_those_that_come_later(runs: list[str], tmp_path: Path) -> None:
    import shutil

    place = tmp_path / "elsewhere"
    (place / "not-a-run").mkdir(parents=True)
    shutil.copytree(runs[0], place / "early")
    run_index = RunIndex(tmp_path / "ledger.sqlite")
    places = FolderScanner(run_index, [str(place)])
    assert RunService(run_index, places).runs()["looking"] == [str(place)]
    assert places.scan_now() == 1
    shutil.copytree(runs[1], place / "late")
    assert places.scan_now() == 1
    found = RunService(run_index, places).runs()
    assert found["looking"] == []
    assert {run["name"] for run in found["runs"]} == {"early", "late"}


def test_a_run_that_was_resumed_is_looked_at_again(runs: list[str], tmp_path: Path) -> None:
    run_index = RunIndex(tmp_path / "ledger.sqlite")
    row = RunRow(name="first", url=runs[0], target="local", job="toy", created=1.0, state="stopped")
    run_index.record(row)
    board = RunService(run_index)
    assert board.runs()["runs"][0]["state"] == "stopped"
    run_index.update_state(row.url, "pending")
    assert board.runs()["runs"][0]["state"] == "finished", "as its folder says"


def test_words_may_be_anywhere_and_all_must_be_there(tmp_path: Path) -> None:
    run_index = RunIndex(tmp_path / "ledger.sqlite")
    assert run_index.page(["any"], offset=0, limit=5) == (0, [])
    run_index.record(*(
        RunRow(name=f"Run-{n}", url=f"/{n}", target="box", job="j%", created=float(n), state="failed") for n in range(9)
    ))  # fmt: skip
    total, rows = run_index.page(["RUN-", "fail", "j%"], offset=2, limit=3)
    assert (total, [row.name for row in rows]) == (9, ["Run-6", "Run-5", "Run-4"])
    assert run_index.page(["run_"], offset=0, limit=3) == (0, [])
