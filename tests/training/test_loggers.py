"""Trackers besides the run folder: every step once, whatever is killed, and never a reason for training to stop."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headway import plugins
from headway.core.plan import Plan
from headway.spec import Job
from headway.storage import open_store
from headway.training.metrics.logger import MetricsBuffer
from headway.training.metrics.trackers.base import TrackerClient, TrackerRunInfo, provenance
from headway.training.metrics.trackers.worker import StepMerger, unsent_records
from tests.training import tracker_files
from tests.training.live import Case
from tests.training.tracker_files import Series
from tests.waiting import wait_until

PATIENCE_S = 60.0
TRACKERS = ("mlflow", "tensorboard", "wandb")


class TrackedCase(Case):
    """A real run whose job names all trackers."""

    def _plan(self) -> Plan:
        plan = super()._plan()
        return replace(plan, job={**plan.job, "log_to": list(TRACKERS)})


@dataclass
class Scene:
    """A run folder with metrics in it, and lines to trackers as rank 0 would have them."""

    tmp: Path
    attempt: int = 1
    resume_step: int = 0
    said: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return str(self.tmp / "run")

    @property
    def files(self) -> Path:
        return self.tmp / "files"

    def told(self) -> TrackerRunInfo:
        return TrackerRunInfo(
            run="spirals-1",
            id="spirals-1-abcdef12",
            project="spirals",
            url=self.url,
            folder=str(self.files),
            attempt=self.attempt,
            resume_step=self.resume_step,
            config={"lr": 0.1, "model": {"width": 8}},
            facts={"code_sha256": "c0de", "image_digest": "sha256:1ma9e", "command": "train.py --fast"},
            pid=os.getpid(),
        )

    def line(self, name: str, **options: Any) -> TrackerClient:
        return TrackerClient(name, self.told, log=self._say, event=self._event, **options)

    def metrics(self, line: TrackerClient) -> MetricsBuffer:
        return MetricsBuffer(open_store(self.url), self.attempt, self.resume_step, on_flushed=line.send)

    def next_attempt(self, resume_step: int) -> None:
        self.attempt, self.resume_step = self.attempt + 1, resume_step

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.heard:
            assert self.heard.wait_for(what, PATIENCE_S), self.said

    def _say(self, text: str) -> None:
        with self.heard:
            self.said.append(text)
            self.heard.notify_all()

    def _event(self, kind: str, **details: Any) -> None:
        self.events.append({"kind": kind, **details})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture(autouse=True)
def _nobodys_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may be logged in somewhere."""
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE",
                 "WANDB_PROJECT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def log(metrics: MetricsBuffer, steps: range, **more: float) -> None:
    for step in steps:
        metrics.log(step, 0, {"loss": 1 / step, **more})


def finish(line: TrackerClient) -> None:
    line.close(finished=True)
    line.join(PATIENCE_S)


def steps_of(series: Series, name: str = "loss") -> list[int]:
    return [step for step, _ in series[name]]


def history(case: Case) -> Series:
    """The run folder's word."""
    series: Series = {}
    for record in case.read.metrics():
        for name in record.keys() - {"step", "time"}:
            series.setdefault(name, []).append((record["step"], record[name]))
    return series


@pytest.mark.slow
def test_every_tracker_has_the_run_folders_history_after_stops_and_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mlflow", "tensorboard", "tensorboardX", "wandb"):
        pytest.importorskip(package)
    case = TrackedCase(tmp_path)
    env = {"HEADWAY_RUN_DIR": str(tmp_path / "files"), "NETRC": str(tmp_path / "netrc")}
    assert case.train(TEST_OPTIONS=json.dumps({"term_at": 7}), **env) == [143], case.log()
    assert case.train(TEST_OPTIONS=json.dumps({"die_in_evaluation": 12}), **env) == [-9], case.log()
    assert case.train(**env) == [0], case.log()
    for name in TRACKERS:
        assert f"also sending metrics to {name}" in case.log()

    truth = history(case)
    assert steps_of(truth) == list(range(1, 19))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    kept, run = tracker_files.mlflow((tmp_path / "files" / "mlruns").as_uri(), "t")
    assert kept == truth
    assert run.info.status == "FINISHED"
    kept, config, identity = tracker_files.wandb(tmp_path / "files")
    assert kept == truth
    assert identity.startswith("run-")
    assert config["headway"]["plan_sha256"] == case.read.plan().hash
    kept = tracker_files.tensorboard(tmp_path / "files" / "tensorboard")
    assert kept == {name: [(s, pytest.approx(v)) for s, v in values] for name, values in truth.items()}


def test_a_tracker_that_is_not_installed_is_said_once_and_changes_nothing(tmp_path: Path) -> None:
    case = TrackedCase(tmp_path)
    for package in ("mlflow", "tensorboardX", "wandb"):
        shadow(tmp_path / "shadows", package, f"raise ModuleNotFoundError('gone', name={package!r})")
    assert case.train(PYTHONPATH=str(tmp_path / "shadows"), HEADWAY_RUN_DIR=str(tmp_path / "files")) == [0], case.log()
    assert case.log().count("wandb failed, training continues") == 1
    assert "extra [loggers]: wandb is not installed" in case.log()
    assert steps_of(history(case)) == list(range(1, 19))


def shadow(folder: Path, package: str, code: str) -> None:
    """A package of that name which does this instead, for processes that have the folder on PYTHONPATH."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with code -11"),
        ("import time; time.sleep(1000)", "no response for"),
        ("raise SystemExit('I give up')", "I give up"),
        ("raise OSError('disk on fire')", "disk on fire"),
    ],
    ids=["crashes", "hangs", "exits", "raises"],
)
def test_a_tracker_that_fails_is_an_event_and_is_borne(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    shadow(scene.tmp / "shadows", "tensorboardX", code)
    monkeypatch.setenv("PYTHONPATH", str(scene.tmp / "shadows"))
    line = scene.line("tensorboard", silence_s=1.0, pauses_s=[0.0])
    scene.wait_for(lambda: bool(scene.said))
    metrics = scene.metrics(line)
    log(metrics, range(1, 4))
    metrics.finish()  # tried again and again, said once
    finish(line)
    assert [event["kind"] for event in scene.events] == ["logger_failed"]
    assert words in scene.events[0]["error"]
    assert len(scene.said) == 1
    assert words in scene.said[0]


@pytest.mark.slow
def test_a_tracker_that_comes_back_is_given_what_it_missed(scene: Scene) -> None:
    pytest.importorskip("tensorboardX")
    scene.files.parent.mkdir(exist_ok=True)
    scene.files.write_text("in the way")
    line = scene.line("tensorboard", pauses_s=[0.0])
    metrics = scene.metrics(line)
    log(metrics, range(1, 6))
    metrics.flush(through=5)
    scene.wait_for(lambda: any("failed" in text for text in scene.said))
    scene.files.unlink()
    log(metrics, range(6, 9))
    metrics.flush(through=8)
    scene.wait_for(lambda: any("works again and has received the missed metrics" in text for text in scene.said))
    log(metrics, range(9, 11))
    metrics.finish()
    finish(line)
    assert [event["kind"] for event in scene.events] == ["logger_failed", "logger_back"]
    assert steps_of(tracker_files.tensorboard(scene.files / "tensorboard")) == list(range(1, 11))


def test_a_tracker_that_is_not_done_in_time_is_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import os, time\nopen({str(scene.tmp / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    shadow(scene.tmp / "shadows", "wandb", code)
    monkeypatch.setenv("PYTHONPATH", str(scene.tmp / "shadows"))
    line = scene.line("wandb")
    wait_until(lambda: (scene.tmp / "pid").exists() and (scene.tmp / "pid").read_text(), "the tracker's process is up")
    line.close(finished=True)
    line.join(0.05)
    assert "wandb did not finish in time; the run folder has all metrics" in scene.said
    with pytest.raises(ProcessLookupError):
        os.kill(int((scene.tmp / "pid").read_text()), 0)


@pytest.mark.slow
def test_a_trackers_process_dies_with_its_rank(tmp_path: Path) -> None:
    """Or else two would write for one run after a restart."""
    pytest.importorskip("tensorboardX")
    import subprocess

    script = tmp_path / "rank.py"
    script.write_text(
        "import sys, threading\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.training.test_loggers import Scene\n"
        "scene = Scene(Path(sys.argv[2]))\n"
        "line = scene.line('tensorboard')\n"
        "scene.wait_for(lambda: bool(scene.said))\n"
        "print(line._process._child.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    root = str(Path(__file__).parents[2])
    rank = subprocess.Popen([sys.executable, script, root, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    rank.kill()
    rank.wait()
    wait_until(lambda: not _alive(child), "the tracker's process dies")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_steps_sent_by_a_killed_attempt_are_not_sent_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of the user's own: asked how far it is."""
    pytest.importorskip("mlflow")
    uri = (scene.tmp / "my-mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    line = scene.line("mlflow")
    metrics = scene.metrics(line)
    log(metrics, range(1, 8))
    metrics.flush(through=7)
    line.close(finished=False)  # step 7 may not be complete: it is kept back
    line.join(PATIENCE_S)
    assert steps_of(tracker_files.mlflow(uri, "spirals")[0]) == list(range(1, 7))

    scene.next_attempt(resume_step=4)  # the checkpoint was of step 4: 5 and 6 are done again
    line = scene.line("mlflow")
    metrics = scene.metrics(line)
    metrics.log(4, 0, {"accuracy": 0.5})  # an evaluation that the killed attempt did not come to
    log(metrics, range(5, 11))
    metrics.finish()
    finish(line)
    kept, run = tracker_files.mlflow(uri, "spirals")
    assert kept["loss"] == [(step, 1 / step) for step in range(1, 11)]
    assert kept["accuracy"] == [(4, 0.5)]
    assert run.data.params == {"lr": "0.1", "model.width": "8"}
    assert run.data.tags["headway.image_digest"] == "sha256:1ma9e"
    assert scene.events == []


@pytest.mark.slow
def test_wandb_goes_on_with_the_same_run_on_its_server(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from tests.servers.wandb import KEY, wandb_server

    with wandb_server() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        line = scene.line("wandb")
        metrics = scene.metrics(line)
        log(metrics, range(1, 8))
        metrics.flush(through=7)
        line.close(finished=False)
        line.join(PATIENCE_S)
        bucket = server.buckets["spirals-1-abcdef12"]
        assert [row["_step"] for row in bucket.history] == list(range(1, 7))
        assert (bucket.preempting, bucket.exit_code) == (True, 143)

        scene.next_attempt(resume_step=4)
        line = scene.line("wandb")
        metrics = scene.metrics(line)
        log(metrics, range(5, 11))
        metrics.finish()
        finish(line)
        assert server.refused == []
    assert [(row["_step"], row["loss"]) for row in bucket.history] == [(step, 1 / step) for step in range(1, 11)]
    assert bucket.exit_code == 0
    assert bucket.display_name == "spirals-1"
    config = json.loads(bucket.config)
    assert config["headway"]["value"]["code_sha256"] == "c0de"
    assert config["headway"]["value"]["command"] == "train.py --fast"
    assert config["lr"]["value"] == 0.1
    assert any(server.address in text for text in scene.said)
    assert list(scene.files.glob("**/*")) == []  # the server has it: nothing for the run folder


@pytest.mark.slow
def test_wandb_without_its_server_is_borne(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    line = scene.line("wandb")
    scene.wait_for(lambda: bool(scene.said))
    assert "wandb failed, training continues" in scene.said[0]
    line.close(finished=False)
    line.join(PATIENCE_S)


@pytest.mark.slow
def test_wandb_offline_is_one_run_to_sync_however_many_attempts(scene: Scene) -> None:
    pytest.importorskip("wandb")
    for resume_step, steps in ((0, range(1, 8)), (4, range(5, 11))):
        scene.resume_step = resume_step
        line = scene.line("wandb")
        metrics = scene.metrics(line)
        log(metrics, steps)
        metrics.finish()
        line.close(finished=resume_step > 0)
        line.join(PATIENCE_S)
        scene.attempt += 1
    kept, config, identity = tracker_files.wandb(scene.files)
    assert steps_of(kept) == list(range(1, 11))
    assert identity == "spirals-1-abcdef12"
    assert config["headway"]["run_folder"] == scene.url


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, False),
        ({"WANDB_API_KEY": "k"}, True),
        ({"NETRC": "netrc"}, True),
        ({"NETRC": "netrc", "WANDB_BASE_URL": "https://wandb.example.org"}, False),
        ({"NETRC": "damaged"}, False),
    ],
)
def test_wandb_goes_online_only_where_there_is_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], found: bool
) -> None:
    pytest.importorskip("wandb")
    from headway.training.metrics.trackers.wandb import has_key

    monkeypatch.chdir(tmp_path)
    Path("netrc").write_text("machine api.wandb.ai login user password secret")
    Path("damaged").write_text("machine \x00 nothing")
    assert has_key({"NETRC": "nowhere", **env}) is found


def test_nan_reaches_trackers_as_a_number(scene: Scene) -> None:
    pytest.importorskip("tensorboardX")
    line = scene.line("tensorboard")
    metrics = scene.metrics(line)
    metrics.log(1, 0, {"loss": math.nan})
    metrics.log(2, 0, {"loss": math.inf})
    metrics.finish()
    finish(line)
    (_, first), (_, second) = tracker_files.tensorboard(scene.files / "tensorboard")["loss"]
    assert math.isnan(first)
    assert second == math.inf


def test_a_step_is_passed_on_whole_and_once() -> None:
    sent: list[dict[str, Any]] = []
    steps = StepMerger(sent.append)
    for record in ({"step": 1, "loss": 3}, {"step": 2, "loss": 2}, {"step": 2, "accuracy": 1}, {"step": 1, "loss": 3}):
        steps.add(record)
    assert sent == [{"step": 1, "loss": 3}]
    steps.add({"step": 3, "loss": 1})
    assert sent[1:] == [{"step": 2, "loss": 2, "accuracy": 1}]
    steps.finish()
    steps.finish()
    assert sent[2:] == [{"step": 3, "loss": 1}]


def test_what_an_attempt_logged_beyond_the_checkpoint_is_void_for_the_next(scene: Scene) -> None:
    metrics = MetricsBuffer(open_store(scene.url), 1, 0)
    log(metrics, range(1, 8))
    metrics.finish()
    scene.next_attempt(resume_step=4)
    assert [record["step"] for record in unsent_records(scene.told())] == [1, 2, 3, 4]
    again = MetricsBuffer(open_store(scene.url), 2, 4)
    log(again, range(5, 7))
    again.finish()
    assert [record["step"] for record in unsent_records(scene.told())] == [1, 2, 3, 4, 5, 6]


def test_trackers_are_given_only_what_is_in_the_run_folder(tmp_path: Path) -> None:
    """So that one that starts late can take from there what it was not given."""
    store = open_store(str(tmp_path))
    given: list[dict[str, Any]] = []

    def check(records: Any) -> None:
        written = "".join(path.read_text() for path in tmp_path.glob("metrics/*"))
        assert all(json.dumps(record) in written for record in records)
        given.extend(records)

    metrics = MetricsBuffer(store, 1, 0, on_flushed=check)
    log(metrics, range(1, 4))
    metrics.flush()
    assert [record["step"] for record in given] == [1, 2]
    metrics.finish()
    assert [record["step"] for record in given] == [1, 2, 3]


def test_a_missing_package_is_a_problem_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins.tracker_problems(Job(name="t")) == []
    monkeypatch.setitem(plugins.TRACKERS, "wandb", plugins.TrackerPlugin("no_such_package", "x:X"))
    (problem,) = plugins.tracker_problems(Job(name="t", log_to=("wandb",)))
    assert "no_such_package is not installed" in problem.what
    assert problem.where == "log_to"
    assert problem.fix


def test_the_job_file_and_the_table_name_the_same_trackers() -> None:
    assert tuple(plugins.TRACKERS) == TRACKERS
    assert list(plugins.TRACKERS) == sorted(plugins.TRACKERS)


def test_facts_name_image_command_code_and_plan(tmp_path: Path) -> None:
    plan = Case(tmp_path).read.plan()
    job = {**plan.job, "args": ["--name", "a b"], "image": {"uri": "registry/me/x@sha256:1234"}}
    told = provenance(replace(plan, job=job))
    assert told["image_digest"] == "sha256:1234"
    assert told["command"] == "train.py --name 'a b'"
    assert told["plan_sha256"] == replace(plan, job=job).hash
    assert provenance(plan)["image_digest"] is None
