"""What is installed: the user's word first, Headway from its own wheel, and nothing that would leak or be missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from headway.core.errors import BadPlan
from headway.packaging import requirements

METADATA = """\
Metadata-Version: 2.4
Name: headway
Requires-Dist: pyyaml>=6.0
Requires-Dist: tomli; python_version < "3.11"
Provides-Extra: train
Requires-Dist: torch<2.14,>=2.4; extra == "train"
Requires-Dist: numpy>=1.26; (python_version >= "3.10") and extra == 'train'
Requires-Dist: boto3>=1.35; extra == "aws"
Requires-Dist: headway[aws,train]; extra == "all"

Requires-Dist: not-a-requirement-but-the-description
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "headway-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("headway-1.dist-info/METADATA", METADATA)
    return path


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_headways_own_needs_are_read_from_its_wheel_for_the_extras_that_are_used(wheel: Path) -> None:
    bare = requirements.wheel_requirements(wheel, ()).splitlines()[1:]
    assert bare == ["pyyaml>=6.0", 'tomli; python_version < "3.11"']
    train = requirements.wheel_requirements(wheel, ("train",)).splitlines()[1:]
    assert train == [*bare, "torch<2.14,>=2.4", 'numpy>=1.26; (python_version >= "3.10")']
    assert "boto3>=1.35" in requirements.wheel_requirements(wheel, ("aws", "train"))
    assert "headway" not in "".join(requirements.wheel_requirements(wheel, ("all", "aws", "train")).splitlines()[1:])


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({"script": "t.py", "outputs": "runs"}, ("train",)),
        ({"script": "t.py", "outputs": "runs", "requirements": "r.txt"}, ()),
        ({"script": "t.py", "outputs": "gs://b/runs", "requirements": "r.txt"}, ("gcp",)),
        ({"recipe": "captioning", "outputs": "runs"}, ("train",)),
        ({"recipe": "captioning", "outputs": "runs", "data": {"train": [{"source": "builtin:scenes"}]}}, ("train",)),
        ({"recipe": "captioning", "outputs": "az://c/r", "data": {"train": [{"source": "s3://b/coco"}]}},
         ("aws", "azure", "data", "train")),
        ({"recipe": "captioning", "outputs": "runs", "secrets": {"T": {"ref": "gcp-sm://t"}}}, ("gcp", "train")),
        ({"recipe": "classification", "outputs": "runs"}, ("data", "train")),
        ({"recipe": "captioning", "outputs": "runs", "config": {"encoder": "efficientnet_lite0"}},
         ("efficientnet", "train")),
        ({"recipe": "translation", "outputs": "runs"}, ("train", "translation")),
    ],
)  # fmt: skip
def test_a_job_gets_the_parts_of_headway_that_it_uses(job: dict[str, object], wanted: tuple[str, ...]) -> None:
    assert requirements.extras(job) == wanted


def test_a_good_file_and_those_it_includes_are_found_in_order(tmp_path: Path) -> None:
    written(
        tmp_path,
        requirements_txt="-r more/base.txt\n-c constraints.txt  # held\ntorch==2.4.1 \\\n  --hash=sha256:0\npandas\n",
        more__base_txt="--requirement=../constraints.txt\nscipy\n--index-url https://example.com/simple\n",
        constraints_txt="numpy<2\n-r requirements.txt\n",
    )
    assert requirements.problems(tmp_path, "requirements.txt") == []
    assert list(map(str, requirements.files(tmp_path, "requirements.txt"))) == [
        "requirements.txt",
        "more/base.txt",
        "constraints.txt",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-e .", "not available when the image is built"),
        ("--editable=./lib", "not available when the image is built"),
        ("./wheels/x.whl", "not available when the image is built"),
        ("x @ file:///tmp/x.whl", "not available when the image is built"),
        ("--extra-index-url https://me:hunter2@example.com/simple", "a password"),
        ("headway[train]>=0.1", "its own wheel"),
        ("Headway", "its own wheel"),
        ("-r missing.txt", "missing.txt is not there"),
        ("-r ../outside.txt", "is outside"),
    ],
)
def test_what_cannot_work_in_an_image_is_said_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    written(tmp_path, requirements_txt=f"pandas\n{line}\n")
    (problem,) = requirements.problems(tmp_path, "requirements.txt")
    assert said in problem.what
    assert problem.fix
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize(
    "line", ["headway-extras==1", "--extra-index-url https://${USER}:${TOKEN}@example.com/simple", "# -e ."]
)
def test_what_only_looks_alike_is_let_through(tmp_path: Path, line: str) -> None:
    written(tmp_path, requirements_txt=line)
    assert requirements.problems(tmp_path, "requirements.txt") == []


def test_a_file_that_is_missing_from_the_sent_code_is_a_plan_that_does_not_hold(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"requirements\.txt is not there"):
        requirements.files(tmp_path, "requirements.txt")
