"""The supervisor's own interpreter: what goes in, that it starts with nothing around it, what it keeps apart."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.core import platform
from headway.core.errors import BadInput, BadPlan
from headway.core.plan import Code
from headway.packaging import image_contents, supervisor_image
from headway.packaging import supervisor_runtime as runtime
from headway.packaging.engine import EngineError, NotFound
from headway.supervisor import image_entry, project_python

JOB: dict[str, Any] = {"script": "train.py", "image": {"uri": "somebody/trainer:1"}, "outputs": "/runs"}


def archive(name: str, body: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(body)
        tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def named(tar: bytes) -> str:
    import hashlib

    return f"runtime-{hashlib.sha256(tar).hexdigest()}.tar.gz"


def test_only_a_project_in_a_ready_image_needs_one() -> None:
    assert runtime.is_ready_image(JOB)
    assert not runtime.is_ready_image({**JOB, "recipe": "captioning"})
    assert not runtime.is_ready_image({**JOB, "image": {"base": "python:3.12"}})
    assert runtime.runtime_name({**JOB, "image": {}}) == ""


def test_another_system_or_processor_is_a_reason_and_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "linux/arm64, and the image is for linux/amd64" in runtime.unavailable_reason("linux/amd64")
    assert runtime.runtime_name(JOB) == ""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "for Linux" in runtime.unavailable_reason("linux/arm64")


def test_the_command_needs_no_shell_and_no_variable() -> None:
    words = runtime.start_words("headway.runtime.worker", "--run", "URL")
    assert words[:3] == ["/headway/runtime/lib/ld.so", "--library-path", "/headway/runtime/lib"]
    assert words[3:6] == ["/headway/runtime/bin/python3", "-I", "-S"]
    assert words[6:] == ["/headway/wheel/headway/supervisor/image_entry.py", "headway.runtime.worker", "--run", "URL"]


def test_a_damaged_archive_and_a_path_outside_are_refused(tmp_path: Path) -> None:
    tar = archive("bin/python3")
    body = gzip.compress(tar)
    runtime.unpack(body, named(tar), tmp_path / "good")
    assert (tmp_path / "good/bin/python3").read_bytes() == b"x"
    with pytest.raises(BadPlan, match="differs"):
        runtime.unpack(body, "runtime-0.tar.gz", tmp_path / "other")
    with pytest.raises(BadPlan, match="damaged"):
        runtime.unpack(body[:20], named(tar), tmp_path / "half")
    outside = archive("../bin/python3")
    with pytest.raises(BadPlan, match="unsafe"):
        runtime.unpack(gzip.compress(outside), named(outside), tmp_path / "bad")


@pytest.mark.slow
@pytest.mark.skipif(bool(runtime.unavailable_reason()), reason="no runtime can be made here")
def test_a_real_one_starts_in_an_empty_environment_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    name = runtime.runtime_name({**JOB, "outputs": "gs://bucket/runs"})
    made = runtime.archive_path(name).stat().st_mtime_ns
    assert runtime.runtime_name({**JOB, "outputs": "gs://bucket/runs"}) == name
    assert runtime.archive_path(name).stat().st_mtime_ns == made
    root = runtime.unpack_here(name, "")
    code = (
        "import sys, json, ssl, sqlite3, ctypes; sys.path.append(sys.prefix + '/packages'); import obstore, yaml;"
        "libraries = {line.split()[-1] for line in open('/proc/self/maps') if '.so' in line};"
        "print(json.dumps([sys.prefix, sys.path, sorted(libraries)]))"
    )
    done = subprocess.run([*runtime.python_words(str(root)), "-c", code], env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    prefix, path, libraries = json.loads(done.stdout)
    assert prefix == str(root)
    assert all(each.startswith(str(root)) for each in (*path, *libraries)), "nothing of the machine is used"


@pytest.mark.parametrize(
    ("job", "names"),
    [
        ({"script": "train.py"}, ("python3", "python3", "python")),
        ({"module": "pkg.train"}, ("python3", "python3", "python")),
        ({"notebook": "train.ipynb", "python": "/opt/python"}, ("/opt/python",)),
        ({"command": ["make", "train"]}, ("make",)),
        ({"command": ["./run.sh"]}, None),
        ({"command": ["{run_dir}/x"]}, None),
        ({"script": "run.sh"}, None),
    ],
)
def test_what_an_image_must_have_is_known_from_the_job(job: dict[str, Any], names: tuple[str, ...] | None) -> None:
    program = image_contents.program_of(job)
    assert (program.names if program else None) == names


def test_an_image_is_looked_into_where_it_is_and_not_pulled_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_contents, "unpack_here", lambda name, url: Path("/state/runtime"))
    asked: list[list[str]] = []

    def engine(argv: Any, *, within_s: float | None = None) -> str:
        asked.append(list(argv))
        return "[null, null, null]" if "run" in argv else "sha256:1"

    (problem,) = image_contents.problems(JOB, engine, "docker", "runtime-1.tar.gz")
    assert "somebody/trainer:1 has no python3 nor python in its PATH" in problem.what
    assert [words[1] for words in asked] == ["image", "run"]

    def absent(argv: Any, *, within_s: float | None = None) -> str:
        raise NotFound("no such image")

    assert image_contents.problems(JOB, absent, "docker", "runtime-1.tar.gz") == []

    def broken(argv: Any, *, within_s: float | None = None) -> str:
        if "run" in argv:
            raise EngineError("exec format error")
        return "sha256:1"

    (problem,) = image_contents.problems(JOB, broken, "docker", "runtime-1.tar.gz")
    assert "exec format error" in problem.what


# The project's side


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that runs on an interpreter that was brought along, in an image with the pythons of `bin`."""
    monkeypatch.setattr(platform, "brought_runtime", lambda: Path("/headway/runtime"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def fake_python(folder: Path, name: str, version: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf {version}\n")
    path.chmod(0o755)
    return str(path)


def test_the_images_python_is_found_by_name_and_its_absence_is_said(brought: Path) -> None:
    env = {"PATH": str(brought)}
    with pytest.raises(BadInput, match="neither python3 nor python"):
        project_python.require_python({}, env)
    only = fake_python(brought, "python", "3.9")
    assert project_python.require_python({}, env) == only
    newer = fake_python(brought, "python3", "3.12")
    assert project_python.require_python({}, env) == newer
    chosen = fake_python(brought, "python3.8", "3.8")
    assert project_python.require_python({}, {**env, "HEADWAY_PYTHON": "python3.8"}) == chosen
    assert project_python.require_python({"python": "/opt/p"}, env) == "/opt/p"


@pytest.mark.parametrize(
    ("version", "headway", "hook"),
    [("3.12", True, True), ("3.9", False, True), ("3.6", False, True), ("2.7", False, False)],
)
def test_an_interpreter_gets_of_headway_what_it_can_import(
    brought: Path, version: str, headway: bool, hook: bool
) -> None:
    fake_python(brought, "python3", version)
    root = str(Path(project_python.__file__).parents[2])
    folders, variables = project_python.python_path({}, {"PATH": str(brought), "PYTHONPATH": "/own"}, Path("/code"))
    assert (root in folders, any("rank_path" in folder for folder in folders)) == (headway, hook)
    assert folders[-2:] == ["/own", "/code"]
    assert variables == ({"HEADWAY_PACKAGES": "/headway/runtime/packages"} if headway else {})


def test_a_project_of_an_old_python_on_this_machine_does_not_get_our_packages_either(tmp_path: Path) -> None:
    old = fake_python(tmp_path, "python3", "3.6")
    root = str(Path(project_python.__file__).parents[2])
    env = {"PATH": os.defpath, "PYTHONPATH": f"{root}:/own"}
    assert root not in project_python.python_path({"python": old}, env, Path("/code"))[0]
    assert root in project_python.python_path({}, env, Path("/code"))[0]


def test_certificates_are_the_images_or_ours_and_stay_with_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = tmp_path / "ours.crt"
    brought.write_text("")
    monkeypatch.setattr(image_entry, "_SYSTEM_CERTIFICATES", (str(tmp_path / "none"),))
    env: dict[str, str] = {}
    image_entry.use_certificates(env, str(brought))
    assert env == {"SSL_CERT_FILE": str(brought), "HEADWAY_ADDED": "SSL_CERT_FILE"}
    chosen = {"SSL_CERT_FILE": "/company.crt"}
    image_entry.use_certificates(chosen, str(brought))
    assert chosen == {"SSL_CERT_FILE": "/company.crt"}


def test_what_the_projects_interpreter_reads_has_no_newer_syntax() -> None:
    import ast

    package = Path(project_python.__file__).parents[1]
    files = [package / "integrations/rank_path/sitecustomize.py", package / "supervisor/notebook_entry.py"]
    for path in files:
        ast.parse(path.read_text(), feature_version=(3, 6))
        assert "from __future__ import annotations" not in path.read_text(), "Python 3.6 does not know it"
    hook = files[0].read_text()
    assert "->" not in hook.replace("# type: () -> None", ""), "Python 2 reads it too"


def test_the_supervisors_image_is_pushed_for_a_cluster_whose_entry_names_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("headway.packaging.supervisor_runtime.runtime_name", lambda job, platform: "runtime-1.tar.gz")
    pushed: list[tuple[str, str]] = []

    def push(engine: object, command: str, repository: str, code: Code) -> str:
        pushed.append((repository, code.runtime))
        return supervisor_image.image_name(repository, code)

    monkeypatch.setattr(supervisor_image, "push", push)
    (tmp_path / "headway.yaml").write_text(
        "name: any\ncommand: make train\nimage: {uri: 'team/trainer:1'}\noutputs: gs://bucket/runs\n"
        "targets: {gke: {kind: kubernetes, supervisor: registry.example.com/supervisor}}\n"
    )
    assert main(["image", "--push", "--on", "gke", "--json"]) == 0
    assert pushed == [("registry.example.com/supervisor", "runtime-1.tar.gz")]
    assert json.loads(capsys.readouterr().out)["uri"].startswith("registry.example.com/supervisor:")
