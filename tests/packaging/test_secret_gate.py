"""No credential leaves this machine with the code, unless its file is allowed by its full name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.errors import BadInput, BadJob
from headway.packaging import code
from headway.packaging.code import Package, build_wheel, package
from headway.planning.build import plan
from headway.spec import Job
from headway.spec.loading import load
from headway.spec.model import Secret

TOKEN = "h" + "f_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"
KEY_FILE = "configuration/gcp-access-key.json"
KEY = '{\n  "type": "service_account",\n  "private_key_id": "%s"\n}\n' % ("0a1b2c3d4e5f6a7b8c9d" * 2)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def project(folder: Path, files: dict[str, str], **fields: object) -> Job:
    for name, text in {"train.py": "print()\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Job(**{"name": "job", "script": "train.py", "root": str(folder), **fields})  # type: ignore[arg-type]


def names(packed: Package) -> list[str]:
    return [name for name, _ in packed.files]


def test_a_file_with_a_credential_is_refused_with_file_line_and_both_ways_out(tmp_path: Path) -> None:
    job = project(tmp_path, {"conf/deploy.json": KEY, "lib/hub.py": f"import x\nTOKEN = '{TOKEN}'\n"})
    with pytest.raises(BadJob) as refusal:
        package(job)
    one, two = refusal.value.problems
    assert one.where == "conf/deploy.json:3"
    assert "at: conf/deploy.json" in one.fix
    assert two.where == "lib/hub.py:2"
    assert "secrets: {NAME: env:NAME}" in two.fix
    assert TOKEN not in str(refusal.value)


def test_the_fix_that_is_printed_works(tmp_path: Path) -> None:
    job = project(tmp_path / "p", {"conf/my deploy.json": KEY})
    with pytest.raises(BadJob) as refusal:
        package(job)
    line = re.search(r"secrets: \{.*\}\}", str(refusal.value))
    assert line
    (tmp_path / "p" / "headway.yaml").write_text(f"name: job\nscript: train.py\n{line[0]}\n")
    fixed = load(tmp_path / "p" / "headway.yaml")
    assert names(package(fixed)) == ["headway.yaml", "train.py"]
    assert fixed.secrets["MY_DEPLOY"].at == "conf/my deploy.json"


def test_a_full_name_in_headwayignore_allows_a_file_and_no_pattern_does(tmp_path: Path) -> None:
    files = {"conf/deploy.json": KEY, "prod.env": "A=1", ".docker/config.json": "{}", ".docker/other": ""}
    job = project(tmp_path, {**files, ".headwayignore": "!conf/\n!*.json\n!*.env\n!conf/*\n"})
    with pytest.raises(BadJob, match=r"conf/deploy\.json:3"):
        package(job)
    (tmp_path / ".headwayignore").write_text("!conf/deploy.json\n!/prod.env\n!.docker/config.json\n")
    packed = package(job)
    assert names(packed) == [".docker/config.json", ".headwayignore", "conf/deploy.json", "prod.env", "train.py"]
    assert packed.secrets == (".docker/other",)


def test_names_of_secrets_stay_out_in_any_case(tmp_path: Path) -> None:
    hidden = [".ENV", ".envrc", "prod.env", "kubeconfig", "infra/terraform.tfstate", "secrets.yaml", ".git-credentials",
              KEY_FILE]  # fmt: skip
    packed = package(project(tmp_path, {**dict.fromkeys(hidden, "x"), ".docker/config.json": "{}"}))
    assert names(packed) == ["train.py"]
    assert set(packed.secrets) == {*hidden, ".docker"}


def test_a_file_that_the_job_gives_by_reference_is_not_part_of_its_code(tmp_path: Path) -> None:
    secret = Secret(ref=f"file:{tmp_path / 'conf/a.json'}", as_="file", at="conf/b.json")
    job = project(tmp_path, {"conf/a.json": KEY, "conf/b.json": KEY}, secrets={"KEY": secret})
    packed = package(job)
    assert names(packed) == ["train.py"]
    assert packed.secrets == ()


def test_requirements_with_a_password_are_refused_for_a_recipe_too(tmp_path: Path) -> None:
    job = project(tmp_path, {"requirements.txt": "--extra-index-url https://me:a1b2c3d4e5f6g7h8i9@pypi.corp/simple\n"})
    with pytest.raises(BadJob, match=r"requirements\.txt:1"):
        package(replace(job, script=None, recipe="captioning", requirements="requirements.txt"))


def test_a_run_in_place_reads_the_file_and_does_not_record_it(tmp_path: Path) -> None:
    job = project(tmp_path / "p", {"conf/deploy.json": KEY})
    made = plan(job)
    assert any("not recorded with the code" in note and "conf/deploy.json:3" in note for note in made.notes)
    assert made.code.files == 1
    with pytest.raises(BadJob, match=r"conf/deploy\.json:3"):
        package(job)


def test_a_program_with_a_credential_is_refused_in_place_too(tmp_path: Path) -> None:
    job = project(tmp_path / "p", {"train.py": f"login('{TOKEN}')\n"})
    with pytest.raises(BadJob, match=r"train\.py:1"):
        plan(job)


def test_a_reference_to_a_file_is_relative_to_the_job_file(tmp_path: Path) -> None:
    job = project(
        tmp_path / "p", {KEY_FILE: KEY}, secrets={"K": Secret(ref=f"file:{KEY_FILE}", as_="file", at=KEY_FILE)}
    )
    assert plan(job).job["secrets"]["K"]["ref"] == f"file:{tmp_path / 'p' / KEY_FILE}"


def test_headways_own_wheel_passes_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_wheel()
    (tmp_path / "headway" / "packaging").mkdir(parents=True)
    (tmp_path / "headway" / "notes.txt").write_text(f"token {TOKEN}")
    monkeypatch.setattr(code, "__file__", str(tmp_path / "headway" / "packaging" / "code.py"))
    with pytest.raises(BadInput, match=r"a Hugging Face token lies in Headway's own package"):
        build_wheel()


def test_a_credential_among_the_jobs_own_values_is_refused_without_being_repeated(tmp_path: Path) -> None:
    job = project(tmp_path / "p", {}, env={"HF_TOKEN": TOKEN}, args=("--token", TOKEN))
    with pytest.raises(BadJob) as refusal:
        plan(job)
    assert {problem.where for problem in refusal.value.problems} >= {"env.HF_TOKEN", "args"}
    assert "secrets: {HF_TOKEN: env:HF_TOKEN}" in str(refusal.value)
    assert TOKEN not in str(refusal.value)
