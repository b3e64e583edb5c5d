"""The exact calls, as people review them. Pure: no daemon, no container, no clock."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.plan import UPLOADED, Code, Limits, Plan
from headway.packaging import build
from headway.packaging.dockerfile import image_of_plan
from headway.spec import dump
from headway.spec.model import (
    Accelerator,
    Budget,
    Cache,
    Data,
    Export,
    Image,
    Job,
    Mount,
    Resources,
    Secret,
    Source,
)
from headway.targets.docker import render, secrets
from headway.targets.docker.options import Options
from headway.targets.docker.target import DockerTarget

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _somebody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same user and machine wherever the test runs."""
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 1000)
    monkeypatch.setenv("HEADWAY_HOME", "/home/me/.local/state/headway")
    monkeypatch.setenv("HOME", "/home/me")


def plan_of(budget_s: float | None = None, **changes: Any) -> Plan:
    job = Job(**{"name": "captions", "script": "train.py", "outputs": "/home/me/runs", **changes})
    sources = {source.source for source in (*job.data.train, *job.data.val)}
    return Plan(
        headway="0.1.0",
        job=dump(job),
        target="docker",
        kind="docker",
        options={},
        code=Code(
            sha256="2" * 64,
            files=1,
            bytes=1,
            biggest=(),
            wheel="headway-0.1.0-0abc-py3-none-any.whl",
            wheel_sha256="1" * 64,
        ),
        data=dict.fromkeys(sources, "unresolved"),
        nodes=job.resources.nodes,
        processes=1,
        limits=Limits(budget_s=budget_s, max_wait_s=None, grace_s=30.0, second=""),
        environment={"python": "3.12.1"},
        price={},
    )


def words(plan: Plan, node: int = 0, **options: Any) -> list[str]:
    (request,) = [each for each in render.requests(plan, Options(**options)) if each.name == f"node-{node}.json"]
    argv: list[str] = request.body["argv"]
    return argv


def after(argv: list[str], flag: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == flag]


def shown(plan: Plan, **options: Any) -> str:
    """Every call, one flag a line."""
    pages = []
    for request in DockerTarget(Options(**options)).render(plan):
        argv: list[str] | None = request.body.get("argv")
        if argv is not None:
            page = " ".join(
                f"\\\n    {shlex.quote(word)}" if word.startswith("-") else shlex.quote(word) for word in argv
            )
            pages.append(f"# {request.name}\n{page}\n")
    return "\n".join(pages)


EVERYTHING: Mapping[str, Any] = {
    "outputs": "gs://bucket/runs",
    "data": Data(
        train=(Source(source="s3://bucket/coco"), Source(source="/data/flickr, resized")),
        val=(Source(source="builtin:scenes"),),
    ),
    "export": Export(to="/models/captions_v1"),
    "init_from": "/models/earlier",
    "cache": Cache(dir="/scratch/cache"),
    "mounts": (
        Mount(nfs="server:/export", at="/data1"),
        Mount(nfs="server:/more", at="/data2", read_only=True),
        Mount(path="/srv", at="/srv", read_only=True),
    ),
    "secrets": {"TOKEN": Secret(ref="env:TOKEN_HERE"), "CLOUD": Secret(ref="gcp-sm://cloud")},
    "resources": Resources(nodes=2, memory=30_000_000_000, cpus=4, accelerator=Accelerator(kind="T4", count=2)),
    "budget": Budget(hours=8),
}


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_the_calls_are_the_reviewed_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "NVIDIA", Path("/dev/null"))
    plan = plan_of() if name == "plain" else plan_of(28_800, **EVERYTHING)
    golden = GOLDEN / f"docker-{name}.txt"
    text = shown(plan).replace(image_of_plan(plan).tag, "{TAG}")
    assert text == golden.read_text(), f"if this is meant: write it to {golden}"


def test_rendering_is_pure() -> None:
    plan = plan_of(28_800, **EVERYTHING)
    first, second = (json.dumps([each.body for each in DockerTarget().render(plan)]) for _ in range(2))
    assert first == second


def test_no_value_of_a_secret_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN_HERE", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, "canary")
    text = json.dumps([each.body for each in DockerTarget().render(plan_of(**EVERYTHING))])
    assert "canary" not in text
    assert "env:TOKEN_HERE" in text


def test_each_node_has_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "NVIDIA", Path("/dev/null"))
    plan = plan_of(resources=Resources(nodes=2, accelerator=Accelerator(kind="T4", count=2)))
    assert [after(words(plan, node), "--gpus") for node in (0, 1)] == [['"device=0,1"'], ['"device=2,3"']]
    assert after(words(plan, 1, command="podman"), "--device") == ["nvidia.com/gpu=2", "nvidia.com/gpu=3"]


def test_without_a_gpu_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "NVIDIA", Path("/nowhere"))
    assert after(words(plan_of(resources=Resources(accelerator=Accelerator(kind="T4")))), "--gpus") == []


def test_files_belong_to_the_user_under_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(words(plan_of()), "--user") == ["1000:1000"]
    assert after(words(plan_of(), command="/usr/bin/podman"), "--userns") == ["keep-id"]
    assert after(words(plan_of(), user="root"), "--user") == ["0:0"]
    assert after(words(plan_of()), "--cap-add") == []
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert after(words(plan_of()), "--cap-add") == ["DAC_OVERRIDE"]
    assert after(words(plan_of(), command="podman"), "--userns") == []


def test_a_chosen_network_and_more_words_stand_before_the_image() -> None:
    argv = words(plan_of(), network="host", args=("--ulimit", "nofile=65536"))
    assert after(argv, "--network") == ["host"]
    assert argv.index("nofile=65536") < argv.index(image_of_plan(plan_of()).name)


def test_a_project_s_data_is_mounted_where_it_was_uploaded() -> None:
    plan = replace(plan_of(), data={"/home/me/leaves/leaves.csv": f"{UPLOADED}abc", "/data/coco": "known"})
    words = [word for word in render.mounts(plan, 0) if "readonly" in word]
    uploaded = "/home/me/runs/data/abc/leaves.csv"
    assert f"type=bind,source={uploaded},target={uploaded},readonly" in words
    assert "type=bind,source=/data/coco,target=/data/coco,readonly" in words
    assert not any("/leaves/leaves.csv" in word for word in words)
    stored = replace(plan, job={**plan.job, "outputs": "gs://bucket/runs"})
    assert not any("leaves.csv" in word for word in render.mounts(stored, 0)), "the supervisor downloads it"


def test_a_ready_image_is_not_built_and_is_given_code_and_headway() -> None:
    plan = plan_of(image=Image(uri="ghcr.io/somebody/trainer:v1"))
    names = [request.name for request in DockerTarget().render(plan)]
    assert names == ["node-0.json", "start.json"]
    argv = words(plan)
    assert "ghcr.io/somebody/trainer:v1" in argv
    assert any(mount.endswith("target=/headway/code") for mount in after(argv, "--mount"))
    assert "PYTHONPATH=/headway/wheel" in after(argv, "--env")


def test_a_supervisor_is_brought_into_a_ready_image_with_an_interpreter_of_its_own() -> None:
    plan = plan_of(image=Image(uri="image:1"))
    brought = replace(plan, code=replace(plan.code, runtime="runtime-1.tar.gz"))
    argv = words(brought, python="python3.8")
    assert after(argv, "--entrypoint") == ["/headway/runtime/lib/ld.so"]
    assert argv[argv.index("image:1") + 1] == "--library-path"
    assert argv[-4:-2] == ["/headway/wheel/headway/supervisor/image_entry.py", "headway.runtime.worker"]
    runtime = "source=/home/me/.local/state/headway/runtimes/runtime-1,target=/headway/runtime,readonly"
    assert any(mount.endswith(runtime) for mount in after(argv, "--mount"))
    assert "HEADWAY_PYTHON=python3.8" in after(argv, "--env")
    assert not any(variable.startswith("PYTHONPATH") for variable in after(argv, "--env"))


def test_after_a_push_the_digest_is_what_is_rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    repository = "us-docker.pkg.dev/my-project/my-repo/captions"
    plan = plan_of(image=Image(repository=repository))
    image = image_of_plan(plan)
    assert build.reference(plan, image) == f"{repository}:{image.tag}"
    record, uri = tmp_path / "images" / f"{image.tag}.json", f"{repository}@sha256:{'0' * 64}"
    record.parent.mkdir()
    record.write_text(json.dumps({"uri": uri}))
    assert uri in words(plan)
    assert [request.name for request in DockerTarget().render(plan)] == ["node-0.json", "start.json"]
    changed = replace(plan, code=replace(plan.code, sha256="3" * 64))
    assert uri not in words(changed), "other code is another image"
    for damage in ("", "[]", '{"uri": "elsewhere@sha256:0"}'):
        record.write_text(damage)
        assert f"{repository}:{image.tag}" in words(plan)


def test_secrets_of_two_folders_do_not_meet() -> None:
    one, other = secrets.secrets_dir("/a/runs/r"), secrets.secrets_dir("/b/runs/r")
    assert one != other
    assert one.parent == other.parent == Path("/dev/shm/headway-1000")


def test_a_disk_is_no_place_for_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.core.errors import BadInput

    monkeypatch.setattr(secrets, "MEMORY_DIR", tmp_path)
    with pytest.raises(BadInput, match="not in memory"):
        secrets.write_secrets(plan_of(secrets={"TOKEN": Secret(ref="env:X")}), "/a/runs/r", lambda reference: "value")


def test_a_verb_has_the_place_of_the_run_and_the_jobs_own_variables_and_goes_when_it_is_done() -> None:
    ready = plan_of(image=Image(uri="image:1"), env={"PYTHONPATH": "/mnt/site", "LEVEL": "3"})
    run, verb = words(ready), render.cli_command(ready, Options(), ["eval", "{RUN}"])
    assert verb[:3] == ["docker", "run", "--rm"]
    inside = verb[3 : verb.index("image:1") + 1]
    added = ["--env", "LEVEL=3", "--env", "PYTHONPATH=/headway/wheel:/mnt/site"]
    assert [word for word in inside if word not in added] == [
        word for word in run[4 : run.index("image:1") + 1] if word not in added
    ]
    assert set(added) <= set(inside)
    assert verb[-2:] == ["eval", "{RUN}"]
