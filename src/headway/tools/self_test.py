"""`headway doctor --deep`: train, checkpoint, kill, resume and measure on a target, with a program of Headway's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.core.errors import RunFailed
from headway.core.plan import DIE_AFTER_STEP
from headway.core.platform import TIMING, timing_with
from headway.core.types import Finding, State
from headway.launcher.rehearse import scratch_dir, without_effects
from headway.planning import plan
from headway.rundir.layout import RunFolder
from headway.spec import Cadence, Checkpoint, Data, Job
from headway.spec.model import EndsWhen, Resume
from headway.storage.base import Store

SCRIPT, NAME = "headway_self_test.py", "self-test"
_KILL_AFTER = 5  # of 12 steps


def self_test(job: Job, on: str, say: Callable[[str], None]) -> list[Finding]:
    """Run the self-test on a target. Raises RunFailed with the run's last lines if it does not finish."""
    with scratch_dir("headway-self-test-") as folder:
        (folder / SCRIPT).write_text(_program())
        outputs = str(folder / "runs") if on == "local" else job.outputs
        say(f"self-test on {on}: 12 steps, killed after step {_KILL_AFTER}")
        done = _train(_job(job, folder, outputs), on)
        return [*_training(done.events()), *_measured(_report(done.store))]


def _program() -> str:
    from importlib.util import find_spec

    spec = find_spec("headway.tools.self_test_script")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def _job(job: Job, folder: Path, outputs: str) -> Job:
    """Keep where and on what the job runs; replace what it runs."""
    if job.requirements:
        (folder / job.requirements).parent.mkdir(parents=True, exist_ok=True)
        (folder / job.requirements).write_bytes((Path(job.root) / job.requirements).read_bytes())
    env = {**job.env, DIE_AFTER_STEP: str(_KILL_AFTER)}
    env[TIMING] = timing_with(env, restart_pause=0)
    return replace(
        without_effects(job),
        recipe=None, module=None, notebook=None, precision=None, compile=None, accumulate=None, clip=None,
        resume=Resume(), ends_when=EndsWhen(), keep=(), metrics=None,
        name=NAME, script=SCRIPT, command=(), args=(), config={}, data=Data(), named_data={}, phases=(), init_from=None,
        exact=True, checkpoint=Checkpoint(every=Cadence(steps=2)), outputs=outputs, root=str(folder), seed=3, env=env,
    )  # fmt: skip


def _train(job: Job, on: str) -> RunFolder:
    from headway.launcher.lifecycle import launch

    run = launch(plan(job, on=on), detach=True)
    lines: list[str] = []
    try:
        status = run.wait(lambda line: lines.append(line.text)).status
    finally:
        run.down()
    if status.state is not State.FINISHED:
        words = "".join(f"\n    {line}" for line in lines[-8:])
        raise RunFailed(f"the self-test {status.state.value}: {status.reason}{words}", where=run.url)
    return run.folder


def _report(store: Store) -> dict[str, Any]:
    keys = [entry.key for entry in store.list("samples/") if entry.key.endswith("self-test.json")]
    if not keys:
        raise RunFailed("the self-test wrote no report", where=store.url)
    found: dict[str, Any] = json.loads(store.read(keys[-1]))
    return found


def _training(events: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    saved = [event for event in events if event["kind"] == "checkpoint"]
    restored = [event for event in events if event["kind"] == "restored"]
    if saved:
        slowest = max(float(event.get("seconds", 0)) for event in saved)
        yield Finding("ok", f"{len(saved)} checkpoints were written, the slowest in {slowest:.2f} s")
    if restored:
        yield Finding("ok", f"it was killed, and resumed from step {restored[-1]['step']}")
    else:
        yield Finding("bad", "it was not killed and resumed as planned", "headway verify-resume")


def _measured(report: dict[str, Any]) -> Iterator[Finding]:
    facts = report["environment"]
    count = f"{report['ranks']} rank" + ("s" if report["ranks"] > 1 else "")
    gpu = f", {facts['gpu']}" if "gpu" in facts else ""
    yield Finding("ok", f"{count} on {report['device']}{gpu}, torch {facts['torch']}")
    if not report["ranks alike"]:
        yield Finding("bad", "the ranks ended with different weights", "report this with the output of doctor --deep")
    same = report["same bits without Headway"]
    if same is not None:
        words = "the same bits as an uninterrupted loop without Headway"
        wrong = "report this with the output of doctor --deep --json"
        yield Finding("ok", words) if same else Finding("bad", f"not {words}", wrong)
    speeds = ", ".join(f"{name} {speed:g} GB/s" for name, speed in report["bandwidth"].items())
    yield Finding("ok", f"bandwidth: {speeds}")
    timed = ", ".join(f"{name} {one['ms']:g} ms (error {one['error']:g})" for name, one in report["precision"].items())
    yield Finding("ok", f"products of matrices: {timed}")
