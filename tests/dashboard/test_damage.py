"""A damaged run folder is shown as damaged, with its reason; every other run is shown as ever."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.dashboard.runs import run_id
from headway.rundir.index import RunIndex
from headway.rundir.layout import RunFolder
from headway.rundir.status import row_of
from headway.storage import open_store

Served = Callable[..., Any]
KEPT = {"epoch": 1, "score": 0.5, "forever": False}
EVENTS, METRICS = "events/a0001-n9-0000009.jsonl", "metrics/a0001-0000009.jsonl"


def last(**changes: Any) -> bytes:
    entry = {"step": 4, "names": ["best"], **KEPT, **changes}
    return json.dumps({"step": 4, "steps": [4], "kept": [entry]}).encode()


def line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def intent(attempts: Any) -> bytes:
    return line({"target": "local", "kind": "local", "options": {}, "attempts": attempts})


DAMAGES: dict[str, tuple[str, bytes]] = {
    "names that are numbers": ("checkpoints/last.json", last(names=[5])),
    "names that are a number": ("checkpoints/last.json", last(names=5)),
    "a step that is a list": ("checkpoints/last.json", last(step=[4])),
    "a score that is a text": ("checkpoints/last.json", last(score="high")),
    "a score that is NaN": ("checkpoints/last.json", last(score=float("nan"))),
    "kept that is a number": ("checkpoints/last.json", b'{"kept": 5}'),
    "kept that holds numbers": ("checkpoints/last.json", b'{"kept": [5]}'),
    "kept without steps": ("checkpoints/last.json", b'{"kept": [{}]}'),
    "last.json a list": ("checkpoints/last.json", b"[1]"),
    "last.json empty": ("checkpoints/last.json", b""),
    "last.json not UTF-8": ("checkpoints/last.json", b"\xff\xfe\x00"),
    "garbage metrics": (METRICS, b"\x00\xff not json\n"),
    "metrics that are numbers": (METRICS, b"5\n[1]\nnull\n"),
    "metrics with odd steps": (METRICS, line({"step": "x", "loss": 1}) + line({"step": [1], "loss": 1})),
    "metrics with odd resumes": (METRICS, line({"resume_step": "x", "resume_attempt": [1]})),
    "metrics with huge steps": (METRICS, b'{"step": ' + b"9" * 400 + b', "loss": 1}\n'),
    "metrics with huge values": (METRICS, b'{"step": 300, "loss": ' + b"9" * 400 + b"}\n"),
    "metrics without an end": (METRICS, b"[" * 100_000 + b"\n"),
    "garbage events": (EVENTS, b"\x00\xff not json\n"),
    "events that are no objects": (EVENTS, b'5\n[1]\nnull\n"ended"\n'),
    "events without a kind": (EVENTS, line({"time": 1})),
    "events with an odd kind": (EVENTS, line({"kind": [1]}) + line({"kind": None})),
    "an attempt that is a text": (EVENTS, line({"kind": "attempt", "attempt": "x", "held_from_s": "x", "spent_s": []})),
    "a checkpoint event without a step": (EVENTS, line({"kind": "checkpoint"})),
    "a checkpoint event with an odd step": (EVENTS, line({"kind": "checkpoint", "step": [1]})),
    "an event with NaN": (EVENTS, b'{"kind": "restart", "pause_s": NaN}\n'),
    "an ending without a state": (EVENTS, line({"kind": "ended"})),
    "an ending with an odd state": (EVENTS, line({"kind": "ended", "state": [1]})),
    "an ending that nobody knows": (EVENTS, line({"kind": "ended", "state": "exploded"})),
    "attempts that are a number": ("intent.json", intent(5)),
    "attempts that hold numbers": ("intent.json", intent([5])),
    "an attempt without after": ("intent.json", intent([{}])),
    "an attempt after a text": (
        "intent.json", intent([{"after": "x"}]),
    ),
    "options that are a list": ("intent.json", line({"target": 5, "kind": [1], "options": [], "attempts": []})),
    "a kind that nobody knows": ("intent.json", line({"target": "x", "kind": "moon", "options": {}, "attempts": []})),
    "intent.json a list": ("intent.json", b"[]"),
    "intent.json no JSON": ("intent.json", b"{"),
    "plan.json no JSON": ("plan.json", b"not json"),
    "plan.json a list": ("plan.json", b"[]"),
    "plan.json empty": ("plan.json", b"{}"),
    "plan.json without an end": ("plan.json", b'{"a":' * 100_000),
    "lease.json a list": ("lease.json", b"[]"),
    "lease.json no JSON": ("lease.json", b"{"),
    "lease.json a text": ("lease.json", b'"lease"'),
    "lease.json with odd values": ("lease.json", line({"attempt": "x", "holder": 5, "host": [], "pid": None})),
    "lease.json with an odd holder": ("lease.json", line({"attempt": 1, "holder": [5], "pid": 10**30, "boot": ""})),
    "progress.json a list": ("progress.json", b"[]"),
    "progress.json no JSON": ("progress.json", b"{"),
    "progress.json with NaN": ("progress.json", b'{"step": 1, "loss": NaN, "eta_s": Infinity}'),
    "progress.json with odd values": ("progress.json", line({"step": [1], "steps": "x", "loss": {}, "eta_s": "y"})),
    "stop.json a list": ("stop.json", b"[]"),
    "teardown.json a list": ("teardown.json", b"[]"),
    "report.json no JSON": ("report.json", b"{"),
    "moved.json a list": ("moved.json", b"[]"),
    "moved.json to a number": ("moved.json", b'{"to": 5}'),
}  # fmt: skip


@pytest.fixture
def damaged(runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, str]]:
    """`damaged(case)` gives a good run's URL and that of its damaged copy, which the index takes for running."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))

    def make(case: str) -> tuple[str, str]:
        url = str(tmp_path / "runs" / "damaged")
        shutil.copytree(runs[0], url)
        row = row_of(RunFolder(open_store(url)))
        assert row is not None
        key, body = DAMAGES[case]
        path = Path(url) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        good = row_of(RunFolder(open_store(runs[1])))
        assert good is not None
        RunIndex().record(good, replace(row, state="running"))
        return runs[1], url

    return make


@pytest.mark.parametrize("case", DAMAGES)
def test_the_dashboard_shows_every_other_run(
    case: str, damaged: Callable[[str], tuple[str, str]], served: Served
) -> None:
    good, bad = damaged(case)
    with served() as client:
        answer = client.get("/api/runs")
        assert answer.status_code == 200, answer.text
        listed = {run["url"]: run for run in answer.json()["runs"]}
        assert listed[good]["state"] == "finished"
        told = listed[bad]
        assert told["state"] != "damaged" or told["trouble"], told
        for page in ("", "/metrics", "/logs", "/samples"):
            answer = client.get(f"/api/runs/{run_id(bad)}{page}")
            assert answer.status_code in (200, 502), f"{page}: {answer.status_code} {answer.text[:300]}"
            assert client.get(f"/api/runs/{run_id(good)}{page}").status_code == 200
        answer = client.get("/api/compare", params={"run": [run_id(good), run_id(bad)]})
        assert answer.status_code in (200, 502), answer.text[:300]


@pytest.mark.parametrize("case", DAMAGES)
def test_ps_and_status_tell_what_is_damaged(
    case: str, damaged: Callable[[str], tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = damaged(case)
    capsys.readouterr()
    assert main(["ps", "--json"]) == 0
    rows = {row["url"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[good]["state"] == "finished"
    assert bad in rows
    assert main(["ps"]) == 0
    said = capsys.readouterr()
    assert "bug in Headway" not in said.err
    if rows[bad]["state"] == "damaged":
        assert "damaged: " in said.err
    code = main(["status", bad])
    said = capsys.readouterr()
    assert "bug in Headway" not in said.err, said.err
    assert code == 0 or "headway: " in said.err
    assert main(["status", bad, "--json"]) == code
    assert "bug in Headway" not in capsys.readouterr().err
    assert main(["ps", "--rebuild", str(Path(bad).parent)]) == 0
    assert "bug in Headway" not in capsys.readouterr().err


def test_a_damaged_record_of_checkpoints_is_named(damaged: Callable[[str], tuple[str, str]], served: Served) -> None:
    _, bad = damaged("names that are numbers")
    with served() as client:
        told = next(run for run in client.get("/api/runs").json()["runs"] if run["url"] == bad)
        assert told["state"] == "damaged"
        assert "checkpoints/last.json" in told["trouble"]
        assert "names" in told["trouble"]
        assert "checkpoints/last.json" in client.get(f"/api/runs/{run_id(bad)}").text
