"""What must be true of a run after any number of kills, checked against one that was never killed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from safetensors import numpy as safetensors

from headway.rundir import lease
from headway.rundir.layout import checkpoint_folder
from tests.chaos.case import Case
from tests.chaos.workload_facts import FILES


@dataclass(frozen=True)
class Result:
    """All that training made, free of times and attempts."""

    weights: dict[str, str]  # every tensor of the last checkpoint, as a hash of its bytes
    state: Any  # everything else of it
    metrics: list[dict[str, Any]]
    export: dict[str, str]
    pointers: dict[str, int]


def result_of(case: Case) -> Result:
    store, newest = case.folder.store, checkpoint_folder(case.steps)
    manifest = json.loads(store.read(f"{newest}/manifest.json"))
    weights: dict[str, str] = {}
    for name in manifest["files"]:
        for tensor, value in safetensors.load(store.read(f"{newest}/{name}")).items():
            assert tensor not in weights, f"{tensor} is in two parts"
            weights[tensor] = f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return Result(
        weights=weights,
        state=json.loads(store.read(f"{newest}/{manifest['state']['name']}")),
        metrics=[{name: value for name, value in record.items() if name != "time"} for record in case.folder.metrics()],
        export={name: hashlib.sha256(store.read(f"export/{name}")).hexdigest() for name in FILES},
        pointers=_pointers(case),
    )


def check(case: Case, straight: Result | None, commits: list[tuple[int, int]], *, hurt: bool = False) -> Result:
    """Every invariant; an AssertionError names the one that does not hold.

    `commits` are pairs of an attempt and the newest step that was committed while it was the newest attempt.
    """
    check_nothing_is_left(case)
    check_end(case)
    check_history(case)
    check_commits(case, commits, hurt=hurt)
    check_secret(case)
    result = result_of(case)
    if straight is not None:
        check_same(result, straight)
    return result


def check_nothing_is_left(case: Case) -> None:
    case.until(lambda: not case.left_behind(), f"something of {case.url} still runs")
    left = [path.name for path in case.tmp.glob("headway-worker-*")]
    assert not left, f"temporary folders are left: {left}"


def check_end(case: Case) -> None:
    ended = case.folder.ended()
    assert ended is not None, "the last attempt has no last word"
    assert (ended["state"], ended["exit_code"]) == ("finished", 0), ended
    record, _ = lease.read(case.folder.store)
    assert record is not None
    assert record.holder is None, "the lease was not given back"


def check_history(case: Case) -> None:
    """One record a step, in order, none missing: read as everybody reads it."""
    steps = [record["step"] for record in case.folder.metrics()]
    assert steps == sorted(steps), "the metrics are out of order"
    twice = sorted({step for step in steps if steps.count(step) > 1})
    assert not twice, f"steps {twice} have two records"
    missing = sorted(set(range(1, case.steps + 1)) - set(steps))
    assert not missing, f"steps {missing} have no record"
    assert steps == list(range(1, case.steps + 1)), f"there are records after the end: {steps[case.steps :]}"


def check_commits(case: Case, commits: list[tuple[int, int]], *, hurt: bool = False) -> None:
    """Whoever restored went on from the newest commit there was; what the record keeps is there and whole.

    Where a checkpoint was `hurt` on purpose, the one before it is the right one.
    """
    for event in case.events("restored"):
        known = [step for attempt, step in commits if attempt < event["attempt"]]
        newest = max(known, default=0)
        assert event["step"] >= newest, f"attempt {event['attempt']} restored {event['step']}, {newest} was committed"
        assert hurt or not event["fallback"], f"attempt {event['attempt']} found damage"
    seen = [step for _, step in commits]
    assert seen == sorted(seen), f"a commit was lost: {seen}"
    store = case.folder.store
    last = json.loads(store.read("checkpoints/last.json"))
    assert last["step"] == case.steps
    for step in last["steps"]:
        folder = checkpoint_folder(step)
        manifest = json.loads(store.read(f"{folder}/manifest.json"))
        for name, file in {**manifest["files"], manifest["state"]["name"]: manifest["state"]}.items():
            assert hashlib.sha256(store.read(f"{folder}/{name}")).hexdigest() == file["sha256"], f"{folder}/{name}"


def check_secret(case: Case) -> None:
    """The canary is in no file of the run, wherever that is, nor in anything its supervisors printed."""
    canary = case.canary.encode()
    holders = [str(path) for path in case.tmp.rglob("*") if path.is_file() and canary in path.read_bytes()]
    holders += [entry.key for entry in case.folder.store.list() if canary in case.folder.store.read(entry.key)]
    assert not holders, f"the secret was written to {holders}"
    assert "the secret is" in case.log(), "the canary was never sung"


def check_same(result: Result, straight: Result) -> None:
    differing = [name for name, value in straight.weights.items() if result.weights.get(name) != value]
    assert result.weights.keys() == straight.weights.keys()
    assert not differing, f"the weights differ: {differing}"
    for ours, theirs in zip(result.metrics, straight.metrics, strict=True):
        assert ours == theirs, f"the metrics differ: {ours} instead of {theirs}"
    assert result.state == straight.state
    assert result.export == straight.export, "the export differs"
    assert result.pointers == straight.pointers


def orphans(case: Case) -> tuple[int, int]:
    """Files and bytes in checkpoint folders without a manifest: what kills have left."""
    entries = [entry for entry in case.folder.store.list("checkpoints/") if entry.key.count("/") == 2]
    whole = {entry.key.rpartition("/")[0] for entry in entries if entry.key.endswith("/manifest.json")}
    left = [entry for entry in entries if entry.key.rpartition("/")[0] not in whole]
    return len(left), sum(entry.size for entry in left)


def _pointers(case: Case) -> dict[str, int]:
    store = case.folder.store
    keys = [entry.key for entry in store.list("checkpoints/") if entry.key.count("/") == 1]
    return {key.rpartition("/")[2]: json.loads(store.read(key))["step"] for key in keys}
