"""Files of a run folder, a bundle and a data set, changed one at a time, with checksums that match the change.

A stranger's checksums vouch for nothing. Each file is a subject of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headway.core.errors import HeadwayError
from headway.storage import open_store
from tests.fuzz.subjects import Subject

# Run folders


def _plan() -> bytes:
    import headway

    with tempfile.TemporaryDirectory(prefix="headway-fuzz-") as folder:
        (Path(folder) / "train.py").write_text("print(1)\n")
        (Path(folder) / "headway.yaml").write_text(f"name: r\nscript: train.py\noutputs: {folder}/runs\n")
        return headway.plan(headway.Job.load(f"{folder}/headway.yaml")).to_json().encode()


def _run_files() -> dict[str, bytes]:
    lease = {"attempt": 1, "holder": "h", "host": "x", "boot": "b", "pid": 7, "started": "1", "beat": 4}
    checkpoint = {"step": 4, "names": ["best"], "epoch": 1, "score": 0.5, "forever": False}
    start = {"at": "2026-01-01T00:00:00.000Z", "by": "u@h", "after": 0}
    intent = {
        "target": "local",
        "kind": "local",
        "options": {},
        "run": "r",
        "url": "u",
        "attempts": [start],
        "details": {},
    }
    progress = {"step": 3, "steps": 9, "epoch": 1, "epochs": 2, "eta_s": 1.0, "rate": 2.0, "spent_s": 3.0, "loss": 0.5}
    receipt = {"created": [], "removed": [], "left": [], "starts": 1, "at": "2026-01-01T00:00:00.000Z"}
    events = [
        {"kind": "attempt", "host": "h", "time": "2026-01-01T00:00:00.000Z"},
        {
            "kind": "checkpoint",
            "step": 4,
            "names": ["best"],
            "seconds": 1.0,
            "bytes": 10,
            "time": "2026-01-01T00:00:01.000Z",
        },
        {"kind": "score", "step": 4, "accuracy": 0.5},
        {"kind": "ended", "state": "finished", "exit_code": 0, "spent_s": 4.0},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in events)
    plain: dict[str, Any] = {
        "lease.json": lease, "intent.json": intent, "progress.json": progress, "teardown.json": receipt,
        "checkpoints/last.json": {"step": 4, "steps": [4], "kept": [checkpoint]},
        "stop.json": {"by": "u", "at": "2026-01-01T00:00:00.000Z"}, "moved.json": {"to": "/elsewhere"},
        "report.json": {"run": "r", "state": "finished", "metrics": {"accuracy": 0.5}},
    }  # fmt: skip
    return {
        "plan.json": _plan(),
        **{key: json.dumps(value).encode() for key, value in plain.items()},
        "events/a0001-n0-0000001.jsonl": lines.encode(),
        "metrics/a0001-0000001.jsonl": b'{"resume_step": 0, "resume_attempt": -1}\n{"step": 1, "loss": 2.5}\n',
        "logs/a0001-r0-0000001.log": b"2026-01-01T00:00:00.000Z hello\n",
    }


def run_file(key: str) -> Subject:
    """One file of a run folder, read by the dashboard, `ps` and `status`."""
    from headway.cli import main
    from headway.dashboard.runs import FolderScanner, RunService, run_id
    from headway.rundir.index import RunIndex

    files = _run_files()
    root = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    store = open_store(f"{root.name}/runs/r")
    for name, body in files.items():
        if name not in ("moved.json", "stop.json") or name == key:
            store.write(name, body)

    def read(body: bytes) -> None:
        store.write(key, body)
        index = RunIndex(Path(root.name) / "index.sqlite", log=lambda _: None)
        FolderScanner(index, [f"{root.name}/runs"]).scan_now()
        service = RunService(index)
        assert all(each["state"] for each in service.runs()["runs"])
        id_ = run_id(store.url)
        for look in (
            service.details,
            lambda each: service.metrics(each).last(),
            partial(service.logs, rank=None, query="", last=9),
        ):
            try:
                look(id_)
            except HeadwayError:
                pass
        for words in (["status", store.url], ["status", store.url, "--json"]):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                main(words)
            assert "bug in Headway" not in said.getvalue(), said.getvalue()

    return Subject([files[key]], read)


RUN_FILES = (
    *("plan.json", "lease.json", "intent.json", "progress.json", "teardown.json", "stop.json", "moved.json"),
    *("report.json", "checkpoints/last.json", "events/a0001-n0-0000001.jsonl", "metrics/a0001-0000001.jsonl"),
    "logs/a0001-r0-0000001.log",
)

# Bundles


def bundle_file(recipe: str, name: str) -> Subject:
    """One file of a recipe's bundle, loaded as `serve` loads it."""
    from headway.artifacts.predictor import open_service
    from headway.bundle.format import RECORD, Bundle
    from tests.serving.test_services import MADE

    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    path = Path(MADE[recipe](Path(folder.name) / "bundle"))

    def read(body: bytes) -> None:
        assert folder
        (path / name).write_bytes(body)
        record = json.loads((path / RECORD).read_bytes())
        record["files"][name] = {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
        (path / RECORD).write_text(json.dumps(record))
        open_service(Bundle.open(str(path)))

    return Subject([(path / name).read_bytes()], read)


# Data sets


def data_set_shard() -> Subject:
    """A shard of a data set whose manifest has its checksum, read by `data inspect` and by training."""
    from headway.data.dataset.inspect import inspect
    from headway.data.dataset.manifest import NAME, Column, Manifest, ShardFile
    from headway.data.dataset.shards import shard_bytes

    columns = (
        Column(name="picture", kind="picture", encoding="raw", height=2, width=2),
        Column(name="captions", kind="texts"),
    )
    made = shard_bytes(columns, {"picture": bytes(24), "captions": [["a b", "c"], ["d"]]} | _pixels())
    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    root = Path(folder.name)

    def read(body: bytes) -> None:
        shard = ShardFile(key="train/0.arrow", rows=2, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
        (root / "train").mkdir(exist_ok=True)
        (root / shard.key).unlink(missing_ok=True)
        (root / shard.key).write_bytes(body)
        manifest = Manifest(name="d", task="captions", columns=columns, splits={"train": (shard,)})
        (root / NAME).write_text(manifest.to_json())
        inspect(folder.name)

    return Subject([bytes(made.body)], read)


def _pixels() -> dict[str, Any]:
    import numpy as np

    return {"picture": np.zeros((2, 12), np.uint8)}


_BUNDLES = {
    "captioning": ("config.json", "vocabulary.json", "model.safetensors"),
    "classification": ("config.json", "classes.json", "model.safetensors"),
    "grading": ("config.json", "model.safetensors"),
    "translation": ("config.json", "tokenizer.json", "model.safetensors"),
}


def subjects() -> Iterator[tuple[str, Callable[[], Subject]]]:
    logging.getLogger("headway.ui").setLevel(logging.CRITICAL)  # it logs each damaged run with its traceback
    for key in RUN_FILES:
        yield (
            f"run-{key.partition('/')[0]}" if key.count("-") else f"run-{key.replace('/', '-')}",
            partial(run_file, key),
        )
    for recipe, names in _BUNDLES.items():
        for name in names:
            yield f"bundle-{recipe}-{name}", partial(bundle_file, recipe, name)
    yield "data-set-shard", data_set_shard


SEALED = dict(subjects())
