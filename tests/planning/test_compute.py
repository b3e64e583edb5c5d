"""How a job computes, as its plan says: defaults per accelerator, and keys without effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.planning import plan
from headway.planning.compute import best_precision, with_defaults
from headway.spec import Job, Resources, dump, undump
from headway.spec.model import Accelerator

ON_A_GPU = Resources(accelerator=Accelerator(kind="T4"))
SCRIPT = "import headway\nrun = headway.start()\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def job(folder: Path, source: str = SCRIPT, **keys: object) -> Job:
    (folder / "train.py").write_text(source)
    return Job(name="job", script="train.py", root=str(folder), outputs="out", **keys)  # type: ignore[arg-type]


def test_a_recipe_on_a_gpu_computes_in_what_the_gpu_is_good_at() -> None:
    recipe = Job(name="job", recipe="captioning", resources=ON_A_GPU)
    assert with_defaults(recipe, here=False).precision == "fp16"
    on_l4 = replace(recipe, resources=Resources(accelerator=Accelerator(kind="L4")))
    assert with_defaults(on_l4, here=False).precision == "bf16"
    assert with_defaults(replace(on_l4, precision="fp32"), here=False).precision == "fp32"
    assert with_defaults(replace(recipe, resources=Resources()), here=False).precision is None
    assert with_defaults(recipe, here=True).precision is None  # this machine may not have the GPU
    assert [best_precision(kind) for kind in ("P100", "H100", "unheard-of")] == ["fp32", "bf16", "fp32"]


def test_the_plan_says_in_which_precision(tmp_path: Path) -> None:
    assert any("`precision: fp16` is faster on T4" in note for note in plan(job(tmp_path, resources=ON_A_GPU)).notes)
    given = plan(job(tmp_path, resources=ON_A_GPU, precision="fp16"))
    assert "precision: fp16 (of fp32, tf32, bf16, fp16)" in given.notes
    assert given.job["precision"] == "fp16"
    assert not any("precision" in note for note in plan(job(tmp_path)).notes)


def test_keys_that_the_program_cannot_read_are_named(tmp_path: Path) -> None:
    notes = plan(job(tmp_path, "print('hello')\n", precision="bf16", compile=True)).notes
    for key in ("precision", "compile"):
        assert f"{key} has no effect: the program does not call headway.start()" in notes


def test_plans_without_these_keys_keep_their_bytes(tmp_path: Path) -> None:
    plain = dump(job(tmp_path))
    assert not {"precision", "compile", "accumulate", "clip", "channels_last"} & plain.keys()
    given = job(tmp_path, precision="tf32", accumulate="auto", clip=1.0, compile=False)
    assert undump(dump(given)) == replace(given, root=".")
