"""The files of a project that are sent, and those that are left out and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.packaging.code import Package, package
from headway.packaging.selection import MAX_FILE_BYTES, MAX_OTHER_FILES, MAX_PACKAGE_DATA_BYTES
from headway.planning.build import file_notes, plan
from headway.spec import Job


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def project(folder: Path, *names: str, **fields: object) -> Job:
    for name in ("train.py", *names):
        write(folder / name, "x")
    return Job(**{"name": "job", "script": "train.py", "root": str(folder), **fields})  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def sent(packed: Package) -> list[str]:
    return [name for name, _ in packed.files]


def left_out(packed: Package) -> list[str]:
    return [str(one) for one in packed.left_out]


def test_data_pictures_archives_weights_and_outputs_stay_out_and_are_named(tmp_path: Path) -> None:
    job = project(
        tmp_path / "p", "data/train.csv", "data/raw/a.txt", "docs/plot.png", "docs/plan.md", "all.zip", "model.pt",
        "outputs/2024/.hydra/config.yaml", "wandb/run-1/files/code/train.py", "mlruns/0/meta.yaml",
        "lightning_logs/version_0/hparams.yaml", "checkpoints/last.bin", "checkpoint-500/trainer_state.json",
    )  # fmt: skip
    packed = package(job)
    assert sent(packed) == ["docs/plan.md", "train.py"]
    named = " ".join(left_out(packed))
    for name in ("data/ (2 files", "docs/plot.png (1 B)", "all.zip", "model.pt", "outputs/ (1 file", "wandb/",
                 "mlruns/", "lightning_logs/", "checkpoints/", "checkpoint-500/"):  # fmt: skip
        assert name in named


@pytest.mark.parametrize(
    ("included", "names"), [("", ["data/train.txt"]), ("!data/\n", ["data/a.txt", "data/train.txt"])]
)
def test_a_data_file_among_the_arguments_is_sent(tmp_path: Path, included: str, names: list[str]) -> None:
    job = project(tmp_path / "p", "data/train.txt", "data/a.txt", args=("--train_file", "data/train.txt"))
    write(tmp_path / "p" / ".headwayignore", included)
    assert [name for name in sent(package(job)) if name.startswith("data")] == names


def test_run_folders_of_other_outputs_are_not_sent_and_not_named(tmp_path: Path) -> None:
    runs = ("runs/a-1/plan.json", "runs/a-1/intent.json", "runs/a-1/logs/1.txt", "runs/code/1.tar.gz", "runs/notes.md")
    packed = package(project(tmp_path / "p", *runs, outputs="gs://bucket/runs"))
    assert sent(packed) == ["runs/notes.md", "train.py"]
    assert left_out(packed) == []


def test_a_package_named_data_or_outputs_keeps_its_sources(tmp_path: Path) -> None:
    job = project(
        tmp_path / "p", "pkg/data/__init__.py", "pkg/data/loader.py", "pkg/data/info/words.csv",
        "pkg/outputs/__init__.py", "pkg/outputs/heads.py", "data/download.sh",
    )  # fmt: skip
    write(tmp_path / "p" / "pkg/data/rows.csv", "x" * (MAX_PACKAGE_DATA_BYTES + 1))
    packed = package(job)
    wanted = [
        "pkg/data/__init__.py",
        "pkg/data/info/words.csv",
        "pkg/data/loader.py",
        "pkg/outputs/__init__.py",
        "pkg/outputs/heads.py",
    ]
    assert sent(packed) == ["data/download.sh", *wanted, "train.py"]
    assert left_out(packed) == ["pkg/data/rows.csv (2.0 MB)"]


def test_a_file_or_a_folder_over_the_limit_stays_out_and_is_named(tmp_path: Path) -> None:
    job = project(tmp_path / "p", *(f"labels/{n % 7}/{n}.txt" for n in range(MAX_OTHER_FILES + 1)), "labels/read.py")
    with (tmp_path / "p" / "table.csv").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    packed = package(job)
    assert sent(packed) == ["labels/read.py", "train.py"]
    assert "table.csv (25.0 MB)" in left_out(packed)
    assert sum(one.files for one in packed.left_out if one.name.startswith("labels/")) == MAX_OTHER_FILES + 1


def test_many_small_sources_are_code(tmp_path: Path) -> None:
    job = project(tmp_path / "p", *(f"pkg/m{n}.py" for n in range(MAX_OTHER_FILES + 1)))
    assert len(package(job).files) == MAX_OTHER_FILES + 2


def test_a_checkpoint_written_into_the_folder_is_no_change_of_code(tmp_path: Path) -> None:
    job = project(tmp_path / "p", args=("--out", "model.pt"))
    before = package(job).sha256
    for name in ("checkpoints/epoch1.json", "model.pt", "train.log", "outputs/metrics.json", "events.out.tfevents.1.h"):
        write(tmp_path / "p" / name, "x")
    assert package(job).sha256 == before


@pytest.mark.parametrize("ignore_file", [".gitignore", ".dockerignore", ".headwayignore"])
def test_every_ignore_file_excludes_and_includes(tmp_path: Path, ignore_file: str) -> None:
    job = project(tmp_path / "p", "notes.txt", "data/small.csv", "data/big.csv", "model.pt")
    write(tmp_path / "p" / ignore_file, "# mine\nnotes.txt\n!data/small.csv\n!model.pt\n")
    assert sent(package(job)) == [ignore_file, "data/small.csv", "model.pt", "train.py"]


@pytest.mark.parametrize("pattern", ["data/", "/data", "data/*", "*.csv", "data/**"])
def test_a_folder_is_included_as_the_plan_says(tmp_path: Path, pattern: str) -> None:
    job = project(tmp_path / "p", "data/a/1.csv", "data/b.png", "data/old/x.csv")
    write(tmp_path / "p" / ".gitignore", f"{pattern}\n")
    assert left_out(package(job)) == ["data/ (3 files, 3 B)"]
    write(tmp_path / "p" / ".headwayignore", "!data/\ndata/old/\n")
    packed = package(job)
    assert sent(packed) == [".gitignore", ".headwayignore", "data/a/1.csv", "data/b.png", "train.py"]
    assert left_out(packed) == []


def test_a_docker_pattern_holds_from_the_root_and_may_list_what_is_wanted(tmp_path: Path) -> None:
    job = project(tmp_path / "p", "a.txt", "sub/a.txt", "src/x.py", "deep/b/c.tmp", ".dockerignore")
    write(tmp_path / "p" / ".dockerignore", "a.txt\n**/*.tmp\n")
    assert sent(package(job)) == [".dockerignore", "src/x.py", "sub/a.txt", "train.py"]
    write(tmp_path / "p" / ".dockerignore", "**\n!src\n")
    assert sent(package(job)) == ["src/x.py", "train.py"]


def test_the_nearest_ignore_file_decides(tmp_path: Path) -> None:
    job = project(tmp_path / "p", "a.tmp", "sub/b.tmp")
    write(tmp_path / "p" / ".gitignore", "*.tmp\n")
    write(tmp_path / "p" / "sub" / ".gitignore", "!b.tmp\n")
    assert "sub/b.tmp" in sent(package(job))
    assert "a.tmp" not in sent(package(job))


def test_files_that_the_job_names_are_sent_although_they_are_ignored(tmp_path: Path) -> None:
    job = project(
        tmp_path / "p", "data/run.py", "deps/more.txt", "local.cfg", "outputs/start.py",
        script="outputs/start.py", requirements="deps/req.txt", args=("--config=local.cfg",),
    )  # fmt: skip
    write(tmp_path / "p" / "deps/req.txt", "-r more.txt\n")
    write(tmp_path / "p" / ".gitignore", "deps/\noutputs/\nlocal.cfg\n")
    assert sent(package(job)) == [
        ".gitignore", "data/run.py", "deps/more.txt", "deps/req.txt", "local.cfg", "outputs/start.py", "train.py",
    ]  # fmt: skip


def test_a_secret_is_not_sent_even_if_a_pattern_includes_it(tmp_path: Path) -> None:
    job = project(tmp_path / "p", ".env")
    write(tmp_path / "p" / ".headwayignore", "!.env*\n!*\n")
    packed = package(job)
    assert ".env" not in sent(packed)
    assert packed.secrets == (".env",)


def test_the_plan_names_what_is_not_sent_and_how_to_send_it(tmp_path: Path) -> None:
    job = project(tmp_path / "p", "data/a.csv", "data/b.csv", "model.pt")
    (here,) = (note for note in plan(job, on="local").notes if "data/" in note)
    assert here == "read in place, not recorded with the code: data/ (2 files, 2 B), model.pt (1 B)"
    (elsewhere,) = file_notes(package(job), in_place=False)
    assert elsewhere.startswith("not sent: data/ (2 files, 2 B), model.pt (1 B): `!data/` in .headwayignore sends it")
