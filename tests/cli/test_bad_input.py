"""Bad input ends with what, where, what to type next and its exit code; and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.errors import BAD_INPUT, FAILED
from tests.cli.conftest import Headway

SCRIPT = "name: job\nscript: train.py\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)

BAD_JOBS = {
    "broken": ("name: [job\n", "headway.yaml:2"),
    "bomb": (BOMB, "headway.yaml"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, "headway.yaml"),
    "tag": ("name: !!python/object/apply:os.system ['true']\n", "headway.yaml:1"),
    "duplicate": (SCRIPT + "name: other\n", "headway.yaml:3"),
    "type": (SCRIPT + "seed: many\n", "headway.yaml:3:7"),
    "unknown": (SCRIPT + "sed: 1\n", "seed"),
    "both": (SCRIPT + "recipe: captioning\n", "recipe"),
    "no script": ("name: job\nscript: nowhere.py\n", "nowhere.py"),
    "empty": ("", "headway.yaml"),
    "unit": (SCRIPT + "max_wait: 10\n", "headway.yaml:3:11"),
    "not utf-8": (b"name: \xff\xfe\n", "headway.yaml"),
}


@pytest.mark.parametrize("case", BAD_JOBS)
def test_a_bad_job_file_is_explained(case: str, headway: Headway) -> None:
    text, expected = BAD_JOBS[case]
    Path("train.py").write_text("")
    Path("headway.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = headway("plan")
    assert said.code == BAD_INPUT
    assert expected in said.err
    assert said.out == ""


def test_all_problems_of_a_file_are_reported_at_once(headway: Headway) -> None:
    Path("headway.yaml").write_text("nam: job\nscript: no.py\nseed: x\nretries: -1\n")
    said = headway("plan")
    for hint in ("nam", "no.py", ":3:7", ":4:10"):
        assert hint in said.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu"], "headway run"),
        (["plan"], "headway init"),
        (["plan", "-f", "nowhere.yaml"], "nowhere.yaml"),
        (["plan", "--jsn"], "headway plan --help"),
        (["status", "nobody"], "headway ps"),
        (["logs", "last"], "headway run"),
        (["stop", "./no/such/folder"], "no/such/folder"),
        (["run", "--plan", "nowhere.json"], "headway plan --out"),
        (["init", "poetry"], "headway init --help"),
        (["completion", "tcsh"], "headway completion --help"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(words: list[str], hint: str, headway: Headway) -> None:
    said = headway(*words)
    assert said.code == BAD_INPUT
    assert hint in said.err


def test_a_wrong_set_is_answered_with_its_type(headway: Headway) -> None:
    headway("init", "captioning")
    for change in ("config.epochs=many", "config.epoks=3", "nonsense", "resources.spot=maybe", "data.train.7.weight=1"):
        said = headway("plan", "--set", change)
        assert said.code == BAD_INPUT, change
        assert change.partition("=")[0] in said.err


def test_an_unknown_target_names_the_known_ones(headway: Headway) -> None:
    headway("init", "captioning")
    said = headway("plan", "--on", "loca")
    assert said.code == BAD_INPUT
    assert "local" in said.err


def test_a_missing_variable_is_named(headway: Headway) -> None:
    headway("init", "captioning")
    for option in ("--env", "--secret"):
        said = headway("plan", option, "NO_SUCH_VARIABLE")
        assert said.code == BAD_INPUT
        assert "export NO_SUCH_VARIABLE=" in said.err


def test_a_corrupt_plan_starts_nothing(headway: Headway) -> None:
    headway("init", "script")
    headway("plan", "--out", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    for text in ("{", json.dumps({**plan, "schema": 99}), json.dumps({**plan, "code": {}}), "\udcff"):
        Path("plan.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        said = headway("run", "--plan", "plan.json")
        assert said.code == BAD_INPUT
        assert "plan.json" in said.err
    assert not Path("runs").exists()


def test_a_saved_plan_is_not_changed_on_the_way(headway: Headway) -> None:
    headway("init", "script")
    headway("plan", "--out", "plan.json")
    said = headway("run", "--plan", "plan.json", "--set", "seed=2")
    assert said.code == BAD_INPUT
    assert "unchanged" in said.err


def test_init_never_replaces_a_file_by_itself(headway: Headway) -> None:
    Path("headway.yaml").write_text("mine")
    said = headway("init", "captioning")
    assert said.code == BAD_INPUT
    assert Path("headway.yaml").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_outputs_folder_that_cannot_be_written_is_named(headway: Headway, tmp_path: Path) -> None:
    headway("init", "script")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    said = headway("run", "--set", f"outputs={locked}")
    assert said.code in (BAD_INPUT, FAILED)
    assert str(locked) in said.err


def test_an_outputs_path_that_is_a_file_is_named(headway: Headway, tmp_path: Path) -> None:
    headway("init", "script")
    (tmp_path / "file").write_text("mine")
    said = headway("run", "--set", f"outputs={tmp_path / 'file'}")
    assert said.code != 0
    assert str(tmp_path / "file") in said.err
    assert (tmp_path / "file").read_text() == "mine"


FULL = """
set -e
mount -t tmpfs -o size=64k tmpfs "$1"
cd "$2"
exec "$3" -m headway run --set outputs="$1/runs" --name full
"""


def test_a_full_disk_is_said_and_leaves_nothing_half_written(headway: Headway, tmp_path: Path) -> None:
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("mount namespaces are not allowed here")
    headway("init", "script")
    full = tmp_path / "full"
    full.mkdir()
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", FULL, "sh", full, Path.cwd(), sys.executable],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    assert "full" in done.stderr or "No space" in done.stderr
    assert "Traceback" not in done.stderr
