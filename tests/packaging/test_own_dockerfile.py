"""An image from the project's own Dockerfile: named by its content, built from the files that are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway import cli
from headway.core.errors import BadJob
from headway.core.plan import Plan
from headway.packaging.build import build_command
from headway.packaging.context import write_context
from headway.packaging.dockerfile import AnyImage, image_of_plan
from headway.packaging.own_dockerfile import copied_sources
from headway.planning import plan
from headway.spec import Job, loads

DOCKERFILE = "FROM python:3.11-slim\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\nCOPY src/ /app/\n"
JOB = """name: own
script: src/train.py
outputs: {outputs}
image: {{dockerfile: training/Dockerfile{image}}}
targets:
  gke: {{kind: kubernetes, namespace: ml}}
  vertex: {{kind: vertex, project: my-project}}
"""


def project(root: Path, image: str = "", outputs: str = "runs") -> Job:
    for name, text in {
        "training/Dockerfile": DOCKERFILE,
        "requirements.txt": "six\n",
        "src/train.py": "pass\n",
    }.items():
        if not (root / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (root / "headway.yaml").write_text(JOB.format(outputs=outputs, image=image))
    return Job.load(root / "headway.yaml")


def image_of(root: Path, **changes: Any) -> AnyImage:
    return image_of_plan(plan(project(root, **changes), on="docker"))


def test_the_plan_builds_the_projects_own_dockerfile_and_brings_headway_into_it(tmp_path: Path) -> None:
    made = plan(project(tmp_path, ", platform: linux/arm64"), on="docker")
    requests = {request.name: request.body for request in made.requests}
    assert requests["Dockerfile"]["text"] == DOCKERFILE
    argv = requests["image.json"]["argv"]
    assert argv[argv.index("--platform") + 1] == "linux/arm64"
    assert argv[argv.index("--file") + 1] == "{CONTEXT}/training/Dockerfile"
    assert argv[-1] == "{CONTEXT}"
    assert any("target=/headway/wheel" in word for word in requests["node-0.json"]["argv"])
    assert Plan.from_json(made.to_json()).requests == made.requests


def test_a_changed_dockerfile_or_context_is_another_image_and_code_outside_of_it_is_not(tmp_path: Path) -> None:
    first = image_of(tmp_path).name
    assert image_of(tmp_path).name == first
    (tmp_path / "training" / "Dockerfile").write_text(DOCKERFILE + "ENV A=1\n")
    second = image_of(tmp_path).name
    (tmp_path / "src" / "train.py").write_text("print()\n")
    assert len({first, second, image_of(tmp_path).name}) == 3
    (tmp_path / "training" / "Dockerfile").write_text("FROM scratch\n")
    before = image_of(tmp_path, image=", context: training").name
    (tmp_path / "src" / "train.py").write_text("print(2)\n")
    assert image_of(tmp_path, image=", context: training").name == before


def test_the_context_holds_the_files_that_are_sent(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("notes.txt\nkept.txt\n")
    (tmp_path / ".headwayignore").write_text("!kept.txt\n")
    for name in ("notes.txt", "kept.txt", "weights.pth"):
        (tmp_path / name).write_text("x")
    image = image_of(tmp_path)
    write_context(image, str(tmp_path / "runs"), tmp_path / "context")
    names = {path.relative_to(tmp_path / "context").as_posix() for path in (tmp_path / "context").rglob("*.*")}
    assert {"requirements.txt", "src/train.py", "kept.txt"} <= names
    assert not names & {"notes.txt", "weights.pth", ".dockerignore"}  # Docker must not drop kept.txt again
    assert build_command("docker", image)[-1] == "{CONTEXT}"


def problem(text: str, folder: Path) -> str:
    (folder / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(BadJob) as caught:
        loads(f"name: own\ncommand: train\nimage: {text}\n", root=folder)
    return str(caught.value)


def test_a_dockerfile_beside_another_image_or_missing_is_refused_with_its_place(tmp_path: Path) -> None:
    beside = problem("{base: python:3.12, dockerfile: Dockerfile}", tmp_path)
    assert "job:3:28: image: dockerfile cannot be used together with base" in beside
    assert "dockerfile cannot be used together with uri" in problem("{uri: a/b, dockerfile: Dockerfile}", tmp_path)
    assert "job:3:21: image.dockerfile: there is no file" in problem("{dockerfile: Dockerfil}", tmp_path)
    assert "context has no meaning without dockerfile" in problem("{context: training}", tmp_path)
    assert "linux/amd64" in problem("{dockerfile: Dockerfile, platform: amd64}", tmp_path)


def test_a_missing_file_or_context_is_refused_at_plan_time(tmp_path: Path) -> None:
    job = project(tmp_path, ", context: nowhere")
    with pytest.raises(BadJob, match=r"image.context: there is no folder .*nowhere"):
        plan(job, on="docker")
    job = project(tmp_path)
    (tmp_path / "training" / "Dockerfile").unlink()
    with pytest.raises(BadJob, match=r"image.dockerfile: there is no file .*training/Dockerfile"):
        plan(job, on="docker")


def test_a_file_that_the_dockerfile_copies_and_that_is_not_sent_is_refused_with_the_line_that_sends_it(
    tmp_path: Path,
) -> None:
    job = project(tmp_path)
    (tmp_path / "training" / "Dockerfile").write_text("FROM scratch\nCOPY weights.pth absent.txt /w/\n")
    (tmp_path / "weights.pth").write_text("x")
    with pytest.raises(BadJob) as caught:
        plan(job, on="docker")
    text = str(caught.value)
    assert "training/Dockerfile:2: weights.pth is not sent" in text
    assert "echo '!weights.pth' >> .headwayignore" in text
    assert "there is no absent.txt in the job file's folder" in text
    (tmp_path / ".headwayignore").write_text("!weights.pth\n")
    (tmp_path / "training" / "Dockerfile").write_text("FROM scratch\nCOPY weights.pth /w/\n")
    assert plan(job, on="docker").requests


def test_sources_of_copies_are_read_from_a_dockerfile() -> None:
    text = """FROM a AS b
# COPY comment .
COPY --chown=1:1 one.txt \\
     two/ /to/
copy ["three four", "/to"]
COPY --from=b /x /y
ADD https://example.com/x.tar $HERE/a ./five /to
COPY <<EOF /to
EOF
"""
    assert list(copied_sources(text)) == [(3, "one.txt"), (3, "two/"), (5, "three four"), (7, "./five")]


@pytest.mark.parametrize("on", ["gke", "vertex"])
def test_a_cluster_needs_a_repository_and_gets_the_image_by_its_content(tmp_path: Path, on: str) -> None:
    with pytest.raises(BadJob, match=r"image"):
        plan(project(tmp_path, outputs="gs://bucket/runs"), on=on)
    repository = "us-docker.pkg.dev/my-project/repo/own"
    made = plan(project(tmp_path, f", repository: {repository}", "gs://bucket/runs"), on=on)
    assert image_of_plan(made).name.startswith(f"{repository}:")
    assert image_of_plan(made).name in made.to_json()


def test_the_plan_names_the_image_and_its_dockerfile_where_it_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, file = image_of(tmp_path).name, str(tmp_path / "headway.yaml")
    assert cli.main(["plan", "-f", file, "--on", "docker"]) == 0
    assert f"  image     {name}, built from training/Dockerfile\n" in capsys.readouterr().out
    assert cli.main(["plan", "-f", file]) == 0
    said = capsys.readouterr().out
    assert name not in said
    assert "ignored on this target: image" in said


def test_the_image_verb_prints_names_and_writes_the_projects_own_dockerfile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)
    file = str(tmp_path / "headway.yaml")
    assert cli.main(["image", "-f", file]) == 0
    assert capsys.readouterr().out == DOCKERFILE
    assert cli.main(["image", "-f", file, "--out", str(tmp_path / "folder")]) == 0
    said = capsys.readouterr().out
    assert f"--file {tmp_path}/folder/training/Dockerfile {tmp_path}/folder" in said
    assert (tmp_path / "folder" / "src" / "train.py").exists()
