"""Three models that are no recipes: trained, killed, resumed, scored, compared, exported, asked."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from headway.cli.dispatch import locate
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway
from tests.models.proofs import copy_project
from tests.waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.torch]


def train_kill_resume(headway: Headway, at: str) -> list[str]:
    """Kill the program with SIGKILL once it has printed `at`, let Headway start it again; return what it printed."""
    gate = Path("../gate").resolve()
    job = Path("headway.yaml")
    job.write_text(job.read_text() + f"env: {{GATE: '{gate}'}}\n")
    started = headway("run", "-d")
    assert started.code == 0, started.err
    wait_until(lambda: at in headway("logs", "last").out, within_s=60)
    wait_until(lambda: _pids(), within_s=10)
    for pid in _pids():
        os.kill(pid, signal.SIGKILL)
    gate.write_text("")
    wait_until(lambda: RunFolder(open_store(locate("last"))).ended() is not None, within_s=120)
    ended = RunFolder(open_store(locate("last"))).ended()
    assert ended is not None
    assert ended["state"] == "finished", headway("logs", "last").out
    return headway("logs", "last").out.splitlines()


def _pids() -> list[int]:
    """The training processes in this folder: those that run train.py here."""
    here, found = str(Path.cwd()), []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words[-2:-1] and words[-2].endswith(b"train.py") and os.readlink(entry / "cwd") == here:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def evaluated(headway: Headway, *words: str) -> dict[str, object]:
    done = headway("eval", "last", "--json", *words)
    assert done.code == 0, done.err
    report: dict[str, object] = json.loads(done.out)
    assert report["intervals"]
    return report


def test_a_rent_from_a_row_by_scikit_learn(headway: Headway) -> None:
    pytest.importorskip("sklearn")
    copy_project("rows", Path.cwd())
    lines = train_kill_resume(headway, "pass 3 loss")
    assert any("begins at pass 3" in line for line in lines), "it continued from its own file"
    report = evaluated(headway)
    low, high = report["intervals"]["mae"]  # type: ignore[index]
    assert low < report["metrics"]["mae"] < high < 1  # type: ignore[index]
    compared = json.loads(headway("compare", "last", "last", "--json").out)
    assert compared["metrics"]["mae"][1]["difference"]["value"] == 0
    rents = json.loads(headway("predict", "last", "test.csv", "--json").out)
    wanted = [float(row["rent"]) for row in csv.DictReader(io.StringIO(Path("test.csv").read_text()))]
    assert len(rents) == 60
    assert sum(abs(each["rent"] - rent) for each, rent in zip(rents, wanted, strict=True)) / 60 == pytest.approx(
        report["metrics"]["mae"]  # type: ignore[index]
    )
    one = headway("predict", "last", '{"rooms": 3, "area": 70, "heating": "coal"}')
    assert one.code == 2
    assert "heating: 'coal' is not one of gas, oil" in one.err


def test_a_disc_in_a_picture_by_a_u_net(headway: Headway) -> None:
    pytest.importorskip("onnxruntime")
    copy_project("unet", Path.cwd())
    train_kill_resume(headway, "iou")
    report = evaluated(headway)
    assert report["count"] == 48
    assert report["metrics"]["iou"] > 0.5  # type: ignore[index,operator]
    made = json.loads(headway("export", "last", "--as", "onnx", "--to", "onnx", "--json").out)
    assert made["graphs"][0]["largest_difference"] < 1e-4
    assert Path("onnx/unet.onnx").is_file()
    from PIL import Image

    Path("pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (32, 32), (40, 40, 40)).save(f"pictures/{number}.png")
    masks = json.loads(headway("predict", "last", "pictures", "--json").out)
    assert [mask["input"] for mask in masks] == ["0.png", "1.png"]
    png = base64.b64decode(masks[0]["mask"].partition(",")[2])
    assert Image.open(io.BytesIO(png)).size == (32, 32)
    exported = headway("export", "last", "--to", "../models/discs")
    assert exported.code == 0, exported.err


def test_a_text_continued_letter_by_letter(headway: Headway) -> None:
    copy_project("letters", Path.cwd())
    lines = train_kill_resume(headway, "step 31 loss")
    assert any("begins at step 31" in line for line in lines)
    report = evaluated(headway)
    assert report["metrics"]["accuracy"] > 0.8  # type: ignore[index,operator]
    (answer,) = json.loads(headway("predict", "last", '{"prompt": "twinkle twin", "letters": 3}', "--json").out)
    assert answer["text"] == "kle"


def test_code_of_a_bundle_runs_only_where_it_is_trusted_or_ones_own(
    headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    project = copy_project("rows", Path.cwd())
    assert headway("run").code == 0
    assert headway("export", "last", "--to", "../models/rents").code == 0
    assert headway("predict", "../models/rents", "test.csv").code == 0, "the project's own code, byte for byte"
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    sys.modules.pop("serving", None)
    for verb in (["predict", "../models/rents", "../work/test.csv"], ["serve", "../models/rents", "--port", "0"]):
        refused = headway(*verb)
        assert refused.code == 2
        assert "brings code of its own" in refused.err
        assert "--trust" in refused.err
        assert "serving" not in sys.modules, "nothing of it was imported"
    trusted = headway("eval", "../models/rents", "--data", "../work/test.csv", "--trust", "--json")
    assert trusted.code == 0, trusted.err
    code = Path("../models/rents/headway_code/serving.py")
    code.write_text(code.read_text() + "\nprint('changed')\n")
    changed = headway("predict", "../models/rents", "../work/test.csv", "--trust")
    assert changed.code != 0
    assert "headway_code/serving.py" in changed.err, "a changed file is no part of the bundle"
