"""Three models that are no recipes: trained, killed, resumed, scored, compared, exported, asked."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
from headway.artifacts.batch import Shard, predict_to_file
from headway.artifacts.models import open_model
from headway.artifacts.own_model import Choice, OwnService
from headway.artifacts.samples import rows_of
from headway.cli.dispatch import locate
from headway.core.errors import BadInput
from headway.model import Model, Number, Text
from headway.rundir.layout import RunFolder
from headway.storage import open_store
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway
from tests.models.proofs import copy_project
from tests.waiting import wait_until

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


def test_answers_to_a_table_are_written_in_parts_and_continued(headway: Headway) -> None:
    pytest.importorskip("sklearn")
    copy_project("rows", Path.cwd())
    assert headway("run").code == 0
    model = open_model(locate("last"), Choice())
    first = predict_to_file(model, ["test.csv"], "rents.jsonl", shard=Shard(index=0, count=2), per_part=20)
    assert (first.answered, first.complete) == (40, False)
    assert not Path("rents.jsonl").exists()
    again = predict_to_file(model, ["test.csv"], "rents.jsonl", shard=Shard(index=0, count=2), per_part=20)
    assert again.answered == 0, "its parts are there"
    with pytest.raises(BadInput, match="answers to other samples"):
        predict_to_file(model, ["train.csv"], "rents.jsonl", shard=Shard(), per_part=20)
    last = predict_to_file(model, ["test.csv"], "rents.jsonl", shard=Shard(index=1, count=2), per_part=20)
    assert (last.answered, last.complete) == (20, True)
    rows = [json.loads(line) for line in Path("rents.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == [str(number) for number in range(60)]
    assert not Path("rents.jsonl.parts").exists()
    Path("bad.csv").write_text("rooms,area,heating\n1,20,gas\n1,much,gas\n")
    assert headway("predict", "last", "bad.csv", "--out", "bad.parquet", "--json").code == 0
    (good, bad) = rows_of(Path("bad.parquet").read_bytes(), "bad.parquet")
    assert good["error"] is None
    assert "'much'" in bad["error"]


def test_a_served_model_answers_values_forms_and_streams(headway: Headway) -> None:
    from starlette.testclient import TestClient

    from headway.serving.app import Server, Settings, application

    class Echo(Model):
        inputs: ClassVar = {"text": Text(), "times": Number(low=1, high=9, required=False)}
        outputs: ClassVar = {"text": Text()}

        def predict(self, batch: Sequence[Mapping[str, Any]]) -> list[str]:
            return [each["text"] * int(each.get("times", 1)) for each in batch]

        def stream(self, sample: Mapping[str, Any]) -> Iterator[str]:
            yield from self.predict([sample])[0]

    app = application(Server(OwnService(Echo()), Settings(name="echo")))
    with TestClient(app, base_url="http://localhost") as client:
        asked = {"instances": [{"text": "ab", "times": 2}, "c"]}
        assert [each["text"] for each in client.post("/predict", json=asked).json()["predictions"]] == ["abab", "c"]
        assert client.post("/predict", json={"instances": [{"text": "a", "times": "2"}]}).status_code == 400
        assert client.post("/predict", files={"text": (None, "a"), "times": (None, "3")}).json()["predictions"][0] == {
            "text": "aaa"
        }
        events = client.post("/stream", json={"instances": ["ab"]}).text.split("\n\n")
        assert [json.loads(event[6:]) for event in events if event] == [
            {"piece": "a"},
            {"piece": "b"},
            {"text": "ab", "done": True},
        ]
        made = client.post("/v1/completions", json={"prompt": "ab", "times": 2, "max_tokens": 5}).json()
        assert made["choices"][0]["text"] == "abab"
        assert {"/stream", "/v1/completions"} < set(client.get("/openapi.json").json()["paths"])
