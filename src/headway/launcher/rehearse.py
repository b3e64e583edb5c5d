"""A rehearsal: a few real steps of the packaged code on this machine, before money is spent on the full run.

Two examples per batch, a sample of the data, at most two minutes: train, get killed, restore, checkpoint, evaluate,
export, predict. It runs in a temporary folder with a run index of its own; the job's `requirements` are installed into
a virtual environment that is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadJob, RunFailed
from headway.core.plan import DIE_AFTER_STEP, EXACT, STEP_LIMIT
from headway.core.platform import TIMING, state_dir, timing_with
from headway.core.program import is_foreign_image
from headway.core.retry import wait_until
from headway.packaging import dependencies
from headway.packaging.code import package, unpack
from headway.packaging.dependencies import Dependencies
from headway.pricing.estimate import (
    REHEARSAL,
    PastRun,
    device_of,
    examples_per_epoch,
    length_of,
    remember,
    task_of,
    work_of,
)
from headway.spec import Cadence, Checkpoint, dump
from headway.spec.model import Budget, Data, Export, Notify, Source, TargetEntry

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.launcher.lifecycle import RunHandle
    from headway.spec import Job


# Environment of a rehearsal


Say = Callable[[str], None]


def environment(job: Job, log: Say) -> str | None:
    """Return the interpreter with the job's requirements, made once per content of the file; None to use ours."""
    needed = dependencies.of_record(dump(replace(job, dependencies=dependencies.find(job))))
    if not needed:
        return None
    import hashlib

    content = _content(job, needed)
    name = hashlib.sha256(content + sys.version.encode() + sys.prefix.encode()).hexdigest()[:16]
    place = state_dir() / "rehearse" / name
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return str(python)
    log(f"installing {needed.source} for the rehearsal, once")
    shutil.rmtree(place, ignore_errors=True)
    try:
        _run_command([sys.executable, "-m", "venv", str(place)])
        (site,) = place.glob("lib/python*/site-packages")
        # Packages installed beside Headway are visible there too, so that torch is not downloaded again.
        own_venv = [
            path for path in sys.path if path.endswith(("site-packages", "dist-packages")) or _holds_headway(path)
        ]
        (site / "beside.pth").write_text("\n".join(own_venv) + "\n")
        with _project_copy(job, needed) as copy:
            words = (
                ["-r", str(Path(job.root) / needed.requirements)] if needed.requirements else [*needed.listed, *copy]
            )
            _run_command([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *words])
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        last = [line for line in (error.stderr or "").splitlines() if line.strip()][-3:]
        raise RunFailed(
            f"{needed.source} cannot be installed: " + "\n    ".join(last), fix=f"fix {needed.source}"
        ) from None
    (place / "ready").touch()
    return str(python)


def _content(job: Job, needed: Dependencies) -> bytes:
    """Return what an environment depends on: the requirements, and the code if it is installed."""
    if needed.requirements:
        return (Path(job.root) / needed.requirements).read_bytes()
    code = package(job).sha256 if needed.install else ""
    return "\n".join([*needed.listed, code]).encode()


@contextmanager
def _project_copy(job: Job, needed: Dependencies) -> Iterator[list[str]]:
    """Unpack the code that would be sent, to install it without leaving files in the project's folder."""
    with tempfile.TemporaryDirectory(prefix="headway-project-") as folder:
        if needed.install:
            packed = package(job)
            unpack(packed.path, packed.sha256, Path(folder))
        yield [folder] if needed.install else []


def _holds_headway(path: str) -> bool:
    return bool(path) and (Path(path) / "headway" / "_version.py").exists()


def _run_command(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)


@contextmanager
def scratch_dir(prefix: str = "headway-rehearsal-") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


def without_effects(job: Job) -> Job:
    """Return the job without what reaches beyond its run folder, and without limits."""
    unlimited = replace(job, budget=Budget(), max_wait=None, retries=1)
    return replace(unlimited, export=Export(), notify=Notify(), log_to=())


@contextmanager
def separate_index(folder: Path) -> Iterator[None]:
    """Use a state folder of its own, so that a rehearsal is in no list of runs and records only what it means to."""
    before = os.environ.get("HEADWAY_HOME")
    shared = state_dir()
    os.environ["HEADWAY_HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    for name in ("code", "wheels", "rehearse"):
        (shared / name).mkdir(parents=True, exist_ok=True)
        (folder / "home" / name).symlink_to(shared / name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HEADWAY_HOME", None)
        else:
            os.environ["HEADWAY_HOME"] = before


def sample_picture(folder: Path) -> str:
    """Make a small picture without any library."""
    import struct
    import zlib

    side = 64
    rows = b"".join(b"\0" + b"".join(bytes((x * 3, y * 3, 128)) for x in range(side)) for y in range(side))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    picture = folder / "rehearsal.png"
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    picture.write_bytes(png)
    return str(picture)


STEPS, KILL_AFTER_STEPS, BATCH, SAMPLE = 8, 3, 2, 16
TIME_LIMIT_S = 120.0
SCRIPT_LIMIT_S = 20.0  # a script that does not use Headway and runs this long has started well

# Runs a headway command with a time limit in seconds; returns its error output if it failed, else None.
RunVerb = Callable[[list[str], float], "str | None"]
# Settings for how much is read or done at once, under any name that a recipe uses.
_SMALL_SETTINGS = {
    "batch": BATCH,
    "batch_size": BATCH,
    "accumulate": 1,
    "workers": 0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """One step of the rehearsal and its result."""

    name: str
    words: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    acts: tuple[Act, ...] = ()
    skipped: str = ""  # why nothing was tried
    examples_per_s: float | None = None


class MissingModule(RunFailed):
    """The program imports a module that this machine does not have; the image of the run may have it."""


def rehearse(job: Job, *, log: Say = lambda text: None, time_limit_s: float = TIME_LIMIT_S) -> Rehearsal:
    """Rehearse the job. Raises RunFailed with the cause; what could not be tried here is in the result."""
    checks = [*_secrets(job), *_local_paths(job)]
    on, reason = _choose_target(job)
    if reason:
        return Rehearsal(acts=tuple(checks), skipped=reason)
    from headway.planning.build import plan

    deadline = time.monotonic() + time_limit_s
    with scratch_dir() as folder, separate_index(folder):
        python = environment(job, log) if on == "local" else None  # an image has the job's requirements
        try:
            trial = _with_kill(plan(_shrink_job(job, python), on=on), folder)
        except BadJob as error:  # a mount, a placeholder or a secret of a cluster
            return Rehearsal(acts=tuple(checks), skipped=f"not possible on this machine: {error.problem.what}")
        exact = trial.resume == EXACT
        what = f"{STEPS} steps of {BATCH} examples, killed and resumed halfway" if exact else "the program, as packaged"
        log(f"rehearsing: {what}, at most {time_limit_s if exact else SCRIPT_LIMIT_S:.0f} s")
        try:
            run, trained = _train(trial, deadline)
        except MissingModule as error:
            if not is_foreign_image(dump(job)):
                raise
            return Rehearsal(acts=tuple(checks), skipped=f"not possible on this machine: {error.problem.what}")
        checks += trained
        rate = _rate(run) if exact else None  # a program's own steps are of its own size
        if job.recipe and _require_finished(run):
            checks += _check_verbs(
                run, job, _verbs_here(python) if on == "local" else _verbs_in_image(run, trial), deadline
            )
    if rate is not None:
        _record_rate(job, rate, trial)
    return Rehearsal(acts=tuple(checks), examples_per_s=rate)


def _choose_target(job: Job) -> tuple[str, str]:
    """Choose the target to rehearse on: this machine if it can train, else the image; or return why neither."""
    if not job.recipe or find_spec("torch") is not None:
        return "local", ""
    missing = "no image" if not job.image.uri else "" if _docker_is_available() else "no running Docker daemon"
    if missing:
        return "", f"torch is not installed here, and there is {missing} (pip install 'headway[train]')"
    return "docker", ""


def _docker_is_available() -> bool:
    try:
        return subprocess.run(["docker", "version"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _secrets(job: Job) -> Iterator[Act]:
    """Check that every secret resolves from here, except those that only the cluster can read."""
    from headway.storage.secrets import resolve

    for name, secret in job.secrets.items():
        if secret.ref.startswith("k8s://"):
            continue
        resolve(secret.ref)
        yield Act(name="secret", words=f"{name} resolves")


def _local_paths(job: Job) -> Iterator[Act]:
    """Check that remote outputs are writable and that remote data exists."""
    from headway.storage import open_store, require_conditional_put

    if "://" in job.outputs:
        require_conditional_put(open_store(job.outputs))
        yield Act(name="outputs", words=f"{job.outputs} is writable")
    for source in {source.source for part in (job.data.train, job.data.val, job.data.test) for source in part}:
        if source.startswith(("gs://", "s3://", "az://")):
            if not any(True for _ in open_store(source).list()):
                raise RunFailed(
                    f"there is nothing at {source}",
                    where="data",
                    fix="fix the path or URL in the job file, or: headway data prepare",
                )
            yield Act(name="data", words=f"{source} exists")


def _shrink_job(job: Job, python: str | None) -> Job:
    """Shrink the job: nothing that reaches beyond the temporary folder, and as little of everything as will do."""
    config = {key: _shrink_value(key, value) for key, value in job.config.items()}
    from headway.data.dataset.manifest import sources_of

    data = job.data
    if job.recipe and data.train:  # named, so that it has a limit too
        data = replace(data, val=sources_of(data, "val", data.train[0].source))
    few = {
        name: tuple(replace(source, limit=min(source.limit or 10**9, 4 * SAMPLE)) for source in getattr(data, name))
        for name in ("train", "val", "test")
    }
    own = {"local": TargetEntry(kind="local", options={"python": python})} if python else {}
    return replace(
        without_effects(job),
        config=config,
        data=Data(**_absolute(few, Path(job.root))),
        checkpoint=Checkpoint(every=Cadence(steps=KILL_AFTER_STEPS)),
        accumulate=None,
        compile=None,
        resources=replace(job.resources, nodes=1, processes=1, spot=False, accelerator=None, machine=None),
        targets={**job.targets, **own},
    )


def _shrink_value(key: str, value: Any) -> Any:
    """Shrink one setting; generated data (train_samples, val_samples, …) is cut to a sample."""
    if type(value) is int and key.startswith(("train_", "val_", "test_")):
        return min(value, 4 * SAMPLE if key.startswith("train_") else SAMPLE)
    return _SMALL_SETTINGS.get(key, value)


def _absolute(parts: Mapping[str, tuple[Source, ...]], root: Path) -> dict[str, tuple[Source, ...]]:
    def place(path: str) -> str:
        return path if "://" in path or path.startswith("builtin:") else os.path.normpath(root / path)

    return {name: tuple(replace(one, source=place(one.source)) for one in part) for name, part in parts.items()}


def _with_kill(trial: Plan, folder: Path) -> Plan:
    from headway import targets

    env = {**trial.job["env"], STEP_LIMIT: str(STEPS), DIE_AFTER_STEP: str(KILL_AFTER_STEPS)}
    env[TIMING] = timing_with(env, restart_pause=0)
    # Without `project`, the code runs as packaged, not in place: a file that would not be sent is missing here too.
    amended = replace(trial, project="", job={**trial.job, "outputs": str(folder / "runs"), "env": env})
    return replace(amended, requests=tuple(targets.of_plan(amended).render(amended)))


def _train(trial: Plan, deadline: float) -> tuple[RunHandle, list[Act]]:
    """Run it to its end or to the time limit. Raises RunFailed with the cause of a failure."""
    from headway.launcher.lifecycle import launch

    began = time.monotonic()
    run = launch(trial, name="rehearsal", detach=True)
    try:
        wait_until(
            lambda: run.current_status().state.ended or _wait_for_steps(run, began),
            0.2,
            within_s=deadline - time.monotonic(),
        )
        status = run.current_status()
    finally:
        run.down()  # Ctrl-C too: the run would continue by itself
    seconds = round(time.monotonic() - began, 1)
    if status.state.value == "failed":
        raise _failure_text(run)
    if not status.state.ended:
        text = (
            "it started without an error" if not trial.job.get("recipe") else "no error, but too few steps in that time"
        )
        return run, [Act(name="train", words=f"{text}; ended after {seconds:.0f} s", seconds=seconds)]
    return run, [Act(name=name, words=text, seconds=seconds) for name, text in _training_checks(run)]


def _wait_for_steps(run: RunHandle, began: float) -> bool:
    """Return whether a script that uses none of Headway's steps has run long enough to count as started."""
    if run.folder.plan().job.get("recipe") or time.monotonic() - began < SCRIPT_LIMIT_S:
        return False
    return not any(event["kind"] in ("checkpoint", "restored") for event in run.folder.events())


def _training_checks(run: RunHandle) -> Iterator[tuple[str, str]]:
    events = run.folder.events()
    saved = [event for event in events if event["kind"] == "checkpoint"]
    restored = [event for event in events if event["kind"] == "restored"]
    yield "train", f"{max((int(event['step']) for event in saved), default=0) or 'some'} steps"
    if saved:
        megabytes = max(float(event.get("bytes", 0)) for event in saved) / 1e6
        yield "checkpoint", f"{megabytes:.1f} MB in {max(float(event.get('seconds', 0)) for event in saved):.2f} s"
    if restored:
        yield "restore", f"killed, and resumed from step {restored[-1]['step']}"


def _failure_text(run: RunHandle) -> RunFailed:
    from headway.diagnose.diagnosis import diagnose_run

    found = diagnose_run(run, run.current_status())
    if found.name == "missing-module":
        return MissingModule(f"the rehearsal failed: {found.cause}\n    {found.evidence}", fix=found.fix)
    if found.name:
        return RunFailed(f"the rehearsal failed: {found.cause}\n    {found.evidence}", fix=found.fix)
    lines = "".join(f"\n    {line}" for line in found.lines[-8:])
    return RunFailed(f"the rehearsal failed{lines}", fix="fix it, then try it on this machine: headway run --on local")


def _require_finished(run: RunHandle) -> bool:
    return run.current_status().state.value == "finished"


def _check_verbs(run: RunHandle, job: Job, verb: RunVerb, deadline: float) -> list[Act]:
    """Use the trained model through the same commands that people type: evaluate, export, predict."""
    from headway.plugins import RECIPES

    assert job.recipe is not None
    inputs = RECIPES[job.recipe].takes
    given = (
        [sample_picture(Path(run.url))] if inputs == "pictures" else ["a small test"]
    )  # in a folder that images see too
    steps = (
        ("evaluate", ["eval", run.url, "--split", "val", "--json"], "scored on a sample"),
        ("export", ["export", run.url, "--json"], "a bundle was exported and loaded"),
        ("predict", ["predict", run.url, *given, "--json"], "predicted one input"),
    )
    return [_run_verb(name, words, said, verb, deadline) for name, words, said in steps]


def _verbs_here(python: str | None) -> RunVerb:
    def verb(words: list[str], within_s: float) -> str | None:
        argv = [python or sys.executable, "-m", "headway", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=within_s, check=False)
        return done.stderr if done.returncode else None

    return verb


def _verbs_in_image(run: RunHandle, trial: Plan) -> RunVerb:
    from headway.packaging.engine import CommandTimeout, EngineError
    from headway.targets.docker.target import DockerTarget

    target = run.target
    assert isinstance(target, DockerTarget)

    def verb(words: list[str], within_s: float) -> str | None:
        try:
            target.verb(trial, run.run, words, within_s=within_s)
        except CommandTimeout:
            raise subprocess.TimeoutExpired(words, within_s) from None
        except EngineError as error:
            return error.output or str(error)
        return None

    return verb


def _run_verb(name: str, arguments: list[str], output: str, verb: RunVerb, deadline: float) -> Act:
    began = time.monotonic()
    left = deadline - began
    if left < 5:
        return Act(name=name, words="not tried: out of time")
    try:
        refused = verb(arguments, left)
    except subprocess.TimeoutExpired:
        return Act(name=name, words="no error, but not finished in time")
    if refused is not None:
        last = [line for line in refused.splitlines() if line.strip()][-4:]
        raise RunFailed(
            f"the rehearsal's {name} failed: " + "\n    ".join(last), fix="fix it before starting a paid run"
        )
    return Act(name=name, words=output, seconds=round(time.monotonic() - began, 1))


def _rate(run: RunHandle) -> float | None:
    """Return examples per second of the fastest step: the others include start-up, saving or the kill."""
    times = [(int(record["step"]), float(record["time"])) for record in run.folder.metrics() if "time" in record]
    steps = [later - before for (one, before), (two, later) in pairwise(times) if two == one + 1]
    quickest = min((seconds for seconds in steps if seconds > 0), default=None)
    return None if quickest is None else BATCH / quickest


def _record_rate(job: Job, rate: float, trial: Plan) -> None:
    """Record the rate as an estimate for the whole job, if the job's size is known."""
    dumped = dump(job)
    epoch = examples_per_epoch(dumped)
    if epoch is None:
        return
    device = device_of(dump(replace(job, resources=replace(job.resources, accelerator=None))), "local",
                       int(trial.environment["threads"]))  # fmt: skip
    total = epoch * length_of(dumped)
    remember(
        PastRun(url=f"rehearsal:{work_of(dumped)}", what=task_of(dumped), work=work_of(dumped), device=device.label,
                   nodes=1, length=length_of(dumped), seconds=round(total / rate, 3), examples=total, basis=REHEARSAL)
    )  # fmt: skip


def describe(rehearsal: Rehearsal) -> str:
    lines = [f"  {act.name:<10} {act.words}" for act in rehearsal.acts]
    if rehearsal.skipped:
        lines.append(f"  rehearsal skipped: {rehearsal.skipped}")
    if rehearsal.examples_per_s is not None:
        lines.append(f"  {'rate':<10} {rehearsal.examples_per_s:.3g} examples/s on this machine, with a batch of 2")
    return "\n".join(lines)


def as_dict(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        "acts": [{"name": act.name, "words": act.words, "seconds": act.seconds} for act in rehearsal.acts],
        "skipped": rehearsal.skipped,
        "examples_per_s": rehearsal.examples_per_s,
    }
