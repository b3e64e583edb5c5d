"""A rehearsal finds what would have failed after it was paid for, in the packaged code, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

from headway.core.errors import BadInput, HeadwayError, RunFailed
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.rehearse import environment, rehearse
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir.index import RunIndex
from headway.spec import Image, Job, Secret
from headway.targets.fake import FakeBehaviour, FakeTarget
from headway.targets.local.target import LocalTarget
from tests.contract.plays import FAKE, plan_play, play_of, write_project
from tests.packaging.installable import FILES


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def job_of(project: Path, script: str, **more: object) -> Job:
    (project / "train.py").write_text(script)
    return Job(name="j", script="train.py", root=str(project), outputs="runs", **more)  # type: ignore[arg-type]


def running_below(folder: Path) -> list[str]:
    """Of this test: others may be rehearsing on this machine too."""
    return [handle.url for handle in LocalTarget().list_runs() if handle.url.startswith(str(folder))]


def test_a_script_that_runs_passes_and_nothing_is_left(project: Path, tmp_path: Path) -> None:
    found = rehearse(job_of(project, "print('hello')"))
    assert [act.name for act in found.acts] == ["train"]
    assert list((tmp_path / "scratch").iterdir()) == []
    assert RunIndex().rows() == []
    assert running_below(tmp_path) == []
    assert not (project / "runs").exists()


def test_a_file_that_is_not_sent_is_missed_here_already(project: Path) -> None:
    (project / ".gitignore").write_text("settings.json\n")
    (project / "settings.json").write_text("{}")
    job = job_of(project, "print(open('settings.json').read())", retries=0)
    with pytest.raises(RunFailed, match=r"settings\.json"):
        rehearse(job)


def test_an_import_error_is_explained(project: Path) -> None:
    with pytest.raises(RunFailed, match=r"no_such_module_here is not installed") as caught:
        rehearse(job_of(project, "import no_such_module_here"))
    assert "pip install no_such_module_here" in caught.value.problem.fix


def test_what_only_the_runs_own_image_or_cluster_has_is_skipped_and_named(project: Path) -> None:
    script = "import no_such_module_here"
    found = rehearse(job_of(project, script, image=Image(uri="registry.example/project:1")))
    assert "no_such_module_here" in found.skipped
    found = rehearse(job_of(project, script, env={"ADDRESS": "{pod.ip}"}))
    assert "pod.ip" in found.skipped


def test_a_secret_that_does_not_resolve_stops_it_before_anything_starts(project: Path) -> None:
    job = job_of(project, "print('never')", secrets={"TOKEN": Secret(ref="env:NOT_SET_ANYWHERE")})
    with pytest.raises(BadInput, match="export NOT_SET_ANYWHERE"):
        rehearse(job)


def test_remote_outputs_that_do_not_exist_are_found(project: Path) -> None:
    from dataclasses import replace

    job = replace(job_of(project, "print('never')"), outputs="s3://no-such-bucket-anywhere/runs")
    with pytest.raises(HeadwayError):
        rehearse(job)


def test_a_script_that_goes_on_and_on_is_ended_in_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.launcher import rehearse as module

    monkeypatch.setattr(module, "SCRIPT_LIMIT_S", 1.0)
    found = rehearse(job_of(project, "import time\nprint('up')\ntime.sleep(600)"))
    assert "without an error" in found.acts[-1].words
    assert running_below(project.parent) == []


def test_without_torch_or_an_image_a_recipe_is_skipped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.launcher import rehearse as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    found = rehearse(Job(name="j", recipe="captioning"))
    assert "torch is not installed here" in found.skipped
    assert found.acts == ()


def test_without_torch_it_runs_in_the_image_and_nothing_here_needs_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from headway.launcher import rehearse as module

    target, planned = FakeTarget(behaviour=play_of), []
    monkeypatch.setitem(TARGETS, "fake", FAKE)
    made = plan_play(
        write_project(tmp_path / "p"), FakeBehaviour(until_stopped=True), on="fake", outputs=str(tmp_path / "runs")
    )
    hold = lifecycle.launch(made, target=target, detach=True)
    target.end(hold.url, State.FINISHED, exit_code=0)

    def plan(job: Job, on: str) -> Plan:
        planned.append(on)
        return made

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr("headway.planning.build.plan", plan)
    monkeypatch.setattr(module, "_train", lambda plan, ends: (hold, []))
    job = Job(name="j", recipe="captioning", image=Image(uri="registry.example.com/trainer:v1"))
    monkeypatch.setattr(module, "_docker_is_available", lambda: False)
    assert "no running Docker daemon" in rehearse(job).skipped
    monkeypatch.setattr(module, "_docker_is_available", lambda: True)
    typed: list[str] = []
    monkeypatch.setattr(module, "_verbs_in_image", lambda hold, made: lambda words, within_s: typed.append(words[0]))
    found = rehearse(job)
    assert planned == ["docker"]
    assert typed == ["eval", "export", "predict"]
    assert [act.name for act in found.acts] == ["evaluate", "export", "predict"]
    monkeypatch.setattr(module, "_verbs_in_image", lambda hold, made: lambda words, within_s: "no such font")
    with pytest.raises(RunFailed, match="the rehearsal's evaluate failed: no such font"):
        rehearse(job)


def tiny_wheel(folder: Path) -> Path:
    """A package of one line, without anything that would have to be built or fetched."""
    path, info = folder / "tiny_thing-1-py3-none-any.whl", "tiny_thing-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_thing.py", "VALUE = 7\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_requirements_are_installed_once_into_an_environment_of_their_own(project: Path, tmp_path: Path) -> None:
    (project / "requirements.txt").write_text(f"{tiny_wheel(project)}\n")
    job = job_of(project, "import tiny_thing; print(tiny_thing.VALUE)", requirements="requirements.txt")
    said: list[str] = []
    rehearse(job, log=said.append)
    assert any("once" in text for text in said)
    said.clear()
    rehearse(job, log=said.append)
    assert not any("once" in text for text in said)


@pytest.mark.slow
@pytest.mark.torch
def test_a_recipe_trains_dies_restores_evaluates_exports_and_predicts(project: Path) -> None:
    pytest.importorskip("torch")
    from headway.pricing.estimate import past_runs
    from headway.spec.loading import loads

    found = rehearse(loads("name: j\nrecipe: captioning\nenv: {OMP_NUM_THREADS: '1'}\n", root=project))
    names = [act.name for act in found.acts]
    assert names == ["train", "checkpoint", "restore", "evaluate", "export", "predict"]
    assert "resumed from step" in found.acts[2].words
    assert found.examples_per_s
    (learnt,) = past_runs()
    assert learnt.basis == "rehearsal"


@pytest.mark.slow
def test_a_project_with_a_build_system_is_installed_for_the_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    for name, text in {**FILES, "train.py": ""}.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    job = Job(name="own", script="train.py", outputs=str(tmp_path / "runs"), root=str(tmp_path / "project"))
    python = environment(job, print)
    assert python is not None
    said = subprocess.run([python, "-c", "import greeting; print(greeting.WORDS)"], capture_output=True, text=True)
    assert said.stdout == "hello\n", said.stderr
    assert not (tmp_path / "project" / "build").exists()
    assert environment(job, pytest.fail) == python
