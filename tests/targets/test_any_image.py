"""Images that have nothing of Headway inside: other distributions, an old Python, another libc, no Python, no shell."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob
from headway.core.types import State
from headway.launcher.lifecycle import launch, resume
from headway.packaging import engine, supervisor_image
from headway.packaging.upload import list_code, send_code
from headway.planning import Plan, plan
from headway.rundir.layout import RunFolder
from headway.spec import Job
from headway.spec.model import Image, Mount, Resume, TargetEntry
from headway.storage import open_store
from tests.servers.gcs import GcsServer
from tests.testbed.docker import BASE, CACHE, docker, docker_host
from tests.testbed.images import image
from tests.waiting import wait_until

__all__ = ["docker_host"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]
SUPERVISOR = "registry.example.com/headway/supervisor"
HOME = CACHE / "home"  # kept, so that the runtime is made once

# Counts on from what it kept, slowly enough to be killed on the way. Runs on Python 3.6.
COUNTING = """\
import os, sys, time
print("python", ".".join(map(str, sys.version_info[:2])), sys.executable, flush=True)
print("of the supervisor:", os.environ.get("LD_LIBRARY_PATH"), os.environ.get("SSL_CERT_FILE"), flush=True)
print("imports headway:", any(os.path.isdir(os.path.join(folder, "headway")) for folder in sys.path), flush=True)
print("path:", sys.path, flush=True)
begin = int(open("count.txt").read()) if os.path.exists("count.txt") else 0
print("begins at", begin, flush=True)
for count in range(begin + 1, 11):
    with open("count.txt.part", "w") as file:
        file.write(str(count))
    os.replace("count.txt.part", "count.txt")
    time.sleep(1)
print("done", flush=True)
"""
# The same in a POSIX shell.
COUNTING_SH = """\
begin=$(cat count.txt 2> /dev/null || echo 0)
echo "begins at $begin"
while [ "$begin" -lt 10 ]; do
    begin=$((begin + 1))
    echo "$begin" > count.txt.part
    mv count.txt.part count.txt
    sleep 1
done
echo done
"""


@pytest.fixture
def project(tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setenv("HEADWAY_HOME", str(HOME))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "count.py").write_text(COUNTING)
    (folder / "count.sh").write_text(COUNTING_SH)
    return folder


def planned(project: Path, uri: str, **keys: Any) -> Plan:
    env = {"HEADWAY_TIMING": "mirror=0.2,renew=1"}
    where: Any = {"root": str(project), "outputs": str(project / "runs"), "image": Image(uri=uri)}
    return plan(Job(name="any", env=env, resume=Resume(args=("--again",)), **where, **keys), on="docker")


def run_kill_and_resume(made: Plan) -> str:
    """Return the output of a run that was killed with its container, and resumed."""
    run = launch(made, detach=True, name=f"any-{os.getpid()}-{time.time_ns() % 10**6}")
    kept = Path(str(made.job["outputs"]), run.run, "files/workdir/count.txt")
    wait_until(lambda: kept.exists() and int(kept.read_text() or 0) >= 2, "it writes files, which are kept")
    docker("kill", *run.target_handle.details["containers"])
    ended = wait_until(lambda: (status := run.status()).state.ended and status, "it is seen to be gone", within_s=30)
    assert ended.state is State.LOST, ended
    again = resume(run.url)
    wait_until(lambda: again.status().state.ended, "it ends")
    said = "\n".join(line.text for line in again.logs())
    assert again.status().state is State.FINISHED, said
    assert kept.read_text().strip() == "10"
    begins = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("begins at")]
    assert begins[0] == 0
    assert begins[1] >= 2, "its files were restored"
    return said


@pytest.mark.parametrize(
    ("name", "version", "imports"),
    [("bookworm", "3.11", True), ("bullseye", "3.9", False), ("bionic", "3.6", False)],
)
def test_a_script_runs_with_the_images_own_python_and_goes_on_after_a_kill(
    project: Path, name: str, version: str, imports: bool
) -> None:
    said = run_kill_and_resume(planned(project, BASE if name == "bookworm" else image(name), script="count.py"))
    assert f"python {version} /usr/bin/python3" in said
    assert "of the supervisor: None None" in said, "the supervisor's libraries and certificates are its own"
    assert f"imports headway: {imports}" in said, "an interpreter gets what it can import"
    assert "Error" not in said


def test_a_command_runs_where_musl_is_the_only_libc_and_no_python_is_there(project: Path) -> None:
    run_kill_and_resume(planned(project, image("musl"), command=("sh", "count.sh")))


def test_a_command_runs_where_there_is_nothing_but_one_program(project: Path) -> None:
    run_kill_and_resume(planned(project, image("scratch"), command=("/app/busybox", "sh", "count.sh")))


def test_an_image_of_another_user_is_none_of_ours_to_care_about(project: Path) -> None:
    (project / "Dockerfile").write_text(
        f"FROM {BASE}\nUSER nobody\nENV PYTHONPATH=/image/own\nLABEL headway.version=test\n"
    )
    docker("build", "--tag", "headway-test-nobody:1", str(project))
    said = run_kill_and_resume(planned(project, "headway-test-nobody:1", script="count.py"))
    assert "python 3.11" in said
    assert "/image/own" in said


@pytest.mark.parametrize(
    ("name", "keys", "what"),
    [
        ("musl", {"script": "count.py"}, "has no python3 nor python in its PATH"),
        ("scratch", {"module": "count"}, "has no python3 nor python in its PATH"),
        ("scratch", {"command": ("sh", "count.sh")}, "has no sh in its PATH"),
        ("bionic", {"script": "count.py", "python": "/opt/conda/bin/python"}, "has no /opt/conda/bin/python"),
    ],
)
def test_what_an_image_lacks_is_refused_by_the_plan(project: Path, name: str, keys: Any, what: str) -> None:
    with pytest.raises(BadJob, match=what):
        planned(project, image(name), **keys)


def test_a_pods_init_container_brings_the_supervisor_into_an_image_without_python(
    project: Path, tmp_path: Path
) -> None:
    """The containers of a rendered pod, started one after the other by Docker, with folders as its emptyDirs."""
    outputs = str(tmp_path / "outputs")
    options: dict[str, Any] = {"supervisor": SUPERVISOR, "user": 1234}
    job = Job(
        name="any",
        root=str(project),
        command=("sh", "count.sh"),
        image=Image(uri=image("musl")),
        outputs=outputs,
        mounts=(Mount(path=outputs, at=outputs),),
        targets={"pods": TargetEntry(kind="kubernetes", options=options)},
    )
    made = plan(job, on="pods")
    supervisor_image.build_image(engine.run, "docker", SUPERVISOR, made.code)
    folder = RunFolder(open_store(f"{outputs}/pod"))
    send_code(made)
    folder.store.write("plan.json", made.to_json().encode())
    list_code(made, folder)
    (spec,) = [each.body["spec"]["template"]["spec"] for each in made.requests if each.name == "statefulset.json"]
    for path in (tmp_path / "outputs").rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (tmp_path / "outputs").chmod(0o777)
    for container in (*spec["initContainers"], *spec["containers"]):
        docker(*container_words(container, tmp_path / "volumes", {"mount-0": outputs}))
    assert Path(outputs, "pod/files/workdir/count.txt").read_text() == "10\n"
    assert [event["state"] for event in folder.events() if event["kind"] == "ended"] == ["finished"]


def test_vertex_ais_boot_and_the_supervisor_start_from_python_3_6(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container of a rendered custom job, with a bucket in which the boot script finds everything."""
    vertex = TargetEntry(kind="vertex", options={"project": "my-project"})
    keys: dict[str, Any] = {"root": str(project), "script": "count.py", "setup": ("export LOADED=yes",)}
    job = Job(name="any", outputs="gs://bucket/runs", image=Image(uri=image("bionic")), targets={"v": vertex}, **keys)
    with GcsServer("bucket") as server:
        server.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        made = plan(job, on="v")
        folder = RunFolder(open_store("gs://bucket/runs/job"))
        send_code(made)
        folder.store.write("plan.json", made.to_json().encode())
        list_code(made, folder)
        (body,) = [each.body["body"] for each in made.requests if each.name == "custom-job.json"]
        container = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
        variables = [*container["env"], {"name": "STORAGE_EMULATOR_HOST", "value": server.url}]
        words = ["run", "--rm", "--network", "host"]
        for variable in variables:
            words += ["--env", f"{variable['name']}={variable['value']}".replace("{RUN}", "job")]
        first, *rest = container["command"]
        said = docker(*words, "--entrypoint", first, container["imageUri"], *rest)
        assert "python 3.6 /usr/bin/python3" in said
        assert "imports headway: False" in said
        assert [event["state"] for event in folder.events() if event["kind"] == "ended"] == ["finished"]
        assert folder.store.read("files/workdir/count.txt") == b"10"


def container_words(container: dict[str, Any], volumes: Path, mounted: dict[str, str]) -> list[str]:
    """Return the words of `docker run` for a pod's container: its user, read-only root, volumes and variables."""
    words = ["run", "--rm", "--hostname", "pod-0", "--user", "1234:1234", "--read-only", "--cap-drop", "ALL"]
    for mount in container["volumeMounts"]:
        source = Path(mounted.get(mount["name"]) or volumes / mount["name"])
        source.mkdir(parents=True, exist_ok=True)
        source.chmod(0o777)
        words += ["--volume", f"{source}:{mount['mountPath']}"]
    for variable in container["env"]:
        words += ["--env", f"{variable['name']}={variable['value']}".replace("{RUN}", "pod")]
    first, *rest = [word.replace("{RUN}", "pod") for word in container["command"]]
    return [*words, "--entrypoint", first, container["image"], *rest]
