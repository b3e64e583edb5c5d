"""Bundles of graders: all that is needed to grade picture files, also under the names of old."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from headway.artifacts.checkpoint_model import open_trained
from headway.artifacts.evaluate import predict
from headway.artifacts.export import export_run
from headway.artifacts.media import open_picture
from headway.bundle.format import Bundle
from headway.core.errors import BadInput
from headway.data.synthetic import cards
from headway.recipes.common import resize_square
from tests.recipes.grading.trained import trained_grader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_grader(tmp_path_factory)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pair")
    for name, pixels in zip(("front", "back"), cards.draw(cards.compose("test", 1)), strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return f"{folder}/front.png,{folder}/back.png"


def test_a_pair_of_files_gets_a_grade_and_its_probabilities(run: Path, pair: str) -> None:
    (answer,) = predict(str(run), [pair])
    assert answer["grade"] in cards.GRADES
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-2)
    assert answer["text"].startswith(f"grade {answer['grade']}")


def test_the_bundle_answers_as_the_checkpoint_does(run: Path, pair: str) -> None:
    model = open_trained(str(run)).model.eval()
    front, back = (resize_square(open_picture(path), 96)[None] for path in pair.split(","))
    with torch.no_grad():
        chances = model.probabilities(model(back, front))[0]
    (answer,) = predict(str(run), [pair])
    assert list(answer["probabilities"].values()) == pytest.approx(chances.tolist(), abs=1e-3)


def test_a_lone_file_is_refused_where_two_are_needed(run: Path, pair: str) -> None:
    with pytest.raises(BadInput, match="takes 2 per item") as caught:
        predict(str(run), [pair.split(",", maxsplit=1)[0]])
    assert "FRONT,BACK" in caught.value.problem.fix


def test_nothing_of_a_picture_is_cut_off(tmp_path: Path) -> None:
    picture = Image.new("RGB", (50, 100), (0, 0, 0))
    picture.paste((255, 0, 0), (0, 0, 50, 5))  # along the top edge, which a middle square would lose
    picture.save(tmp_path / "tall.png")
    assert int(resize_square(open_picture(str(tmp_path / "tall.png")), 64)[0, 0].float().mean()) > 200


def test_the_bundle_holds_a_plain_state_dict_and_its_config(run: Path) -> None:
    bundle = Bundle.open(str(run / "export"))
    state = torch.load(io.BytesIO(bundle.read("psa_dual_branch_state_dict.pth")), weights_only=True)
    weights = bundle.weights()
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[name], weights[name]) for name in state)
    config = json.loads(bundle.read("psa_dual_branch_config.json"))
    assert config["lambda_fusion"] == 0.7
    assert config["grades"] == list(range(1, 11))


def test_a_bundle_made_from_the_best_checkpoint_is_the_one_the_run_exported(run: Path, tmp_path: Path) -> None:
    export_run(str(run), checkpoint="best", to=str(tmp_path / "models"))
    original = {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "models").iterdir()} == original
