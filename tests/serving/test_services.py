"""Every recipe is served from its bundle alone, and a server says what `headway predict` says."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from PIL import Image  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from headway.artifacts.evaluate import predict  # noqa: E402
from headway.artifacts.predictor import PredictionError, PredictionService, open_service  # noqa: E402
from headway.bundle.format import Bundle  # noqa: E402
from headway.core.errors import BadBundle  # noqa: E402
from headway.plugins import RECIPES  # noqa: E402
from headway.recipes.classification.inference import bundle as class_bundle  # noqa: E402
from headway.recipes.classification.model import Classifier  # noqa: E402
from headway.recipes.grading.inference import bundle as grade_bundle  # noqa: E402
from headway.recipes.grading.model import Grader  # noqa: E402
from headway.recipes.translation.inference import bundle as translation_bundle  # noqa: E402
from tests.recipes.captioning.test_predict import exported  # noqa: E402
from tests.recipes.classification import tiny as classes  # noqa: E402
from tests.recipes.grading import jobs as grades  # noqa: E402
from tests.recipes.translation import tiny as translations  # noqa: E402


def picture(path: Path, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


def pixels(path: str) -> Any:
    return np.asarray(Image.open(path))


def _captions(folder: Path) -> Path:
    return exported(folder)


def _classes(folder: Path) -> Path:
    cfg = classes.settings()
    torch.manual_seed(0)
    class_bundle(Classifier(cfg, ["healthy", "rust", "scab"], published=False), cfg, classes.job(), {}).write(folder)
    return folder


def _translations(folder: Path) -> Path:
    model = translations.translator()
    translation_bundle(model, translations.settings(), translations.job(), {}).write(folder)
    return folder


def _grades(folder: Path) -> Path:
    cfg = grades.grading_config()
    torch.manual_seed(0)
    grade_bundle(Grader(cfg, range(1, 11)), cfg, grades.grading_job(), {}).write(folder)
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "captioning": _captions,
    "classification": _classes,
    "grading": _grades,
    "translation": _translations,
}


@pytest.fixture(params=sorted(MADE))
def served(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, PredictionService]:
    folder = MADE[request.param](tmp_path / "bundle")
    return request.param, folder, open_service(Bundle.open(str(folder)))


def inputs(recipe: str, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """What is typed after `headway predict`, and the same as instances."""
    if recipe == "translation":
        return [(text, {"text": text}) for text in ("one small sentence", "and another")]
    files = [picture(folder / f"{seed}.png", seed) for seed in range(4)]
    if recipe == "grading":
        pairs = zip(files[::2], files[1::2], strict=True)
        return [(f"{front},{back}", {"front": pixels(front), "back": pixels(back)}) for front, back in pairs]
    return [(path, {"image": pixels(path)}) for path in files[:2]]


def test_every_recipe_is_served() -> None:
    assert list(RECIPES) == sorted(RECIPES)
    assert all(recipe.service for recipe in RECIPES.values())


def test_a_server_needs_only_its_own_extra(tmp_path: Path) -> None:
    """What the extras `train`, `data` and `translation` bring besides is not on a machine that only serves."""
    folders = [str(MADE[recipe](tmp_path / recipe)) for recipe in sorted(MADE)]
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'dask', 'distributed', 'simplejpeg', 'pyvips', 'sacrebleu', 'google.auth', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        "from headway.bundle.format import Bundle\n"
        "from headway.artifacts.predictor import open_service\n"
        "for folder in sys.argv[1:]:\n"
        "    open_service(Bundle.open(folder))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_server_says_what_predict_says(served: tuple[str, Path, PredictionService], tmp_path: Path) -> None:
    recipe, folder, service = served
    typed = inputs(recipe, tmp_path)
    answers = service.answer([service.prepare(instance) for _, instance in typed], explain=False)
    told = predict(str(folder), [text for text, _ in typed])
    assert [answer["text"] for answer in answers] == [each["text"] for each in told]


def test_an_explanation_changes_no_answer(served: tuple[str, Path, PredictionService], tmp_path: Path) -> None:
    recipe, _, service = served
    prepared = [service.prepare(instance) for _, instance in inputs(recipe, tmp_path)]
    plain, rich = (service.answer(prepared, explain=explain) for explain in (False, True))
    assert [each["text"] for each in plain] == [each["text"] for each in rich]
    shown = {"captioning": "words", "classification": "saliency", "grading": "evidence", "translation": "attention"}
    assert all(shown[recipe] in each for each in rich)


def test_a_caption_comes_with_what_else_the_search_considered(tmp_path: Path) -> None:
    service = open_service(Bundle.open(str(_captions(tmp_path / "b"))))
    (answer,) = service.answer([service.prepare({"image": pixels(picture(tmp_path / "p.png", 1))})], explain=True)
    found = answer["alternatives"]
    assert len(found) > 1
    assert found[0]["text"] == answer["text"]
    assert found[0]["probability"] == pytest.approx(math.exp(answer["log_probability"]), rel=0.01, abs=1e-6)
    assert len({each["text"] for each in found}) == len(found)


def test_a_translation_comes_with_where_each_word_looked(tmp_path: Path) -> None:
    service = open_service(Bundle.open(str(_translations(tmp_path / "b"))))
    (answer,) = service.answer([service.prepare({"text": "one small  sentence, here"})], explain=True)
    assert " ".join(answer["source"]).split() == ["one", "small", "sentence,", "here"]
    assert "".join(answer["target"]).replace(" ", "") == answer["text"].replace(" ", "")
    table = np.array(answer["attention"])
    assert table.shape == (len(answer["target"]), len(answer["source"]))
    assert (table >= 0).all()
    assert (table.sum(axis=1) <= 1.001).all(), "the rest is for the sentence's end"


def test_a_sentence_longer_than_any_it_learnt_is_refused(tmp_path: Path) -> None:
    service = open_service(Bundle.open(str(_translations(tmp_path / "b"))))
    with pytest.raises(PredictionError, match="subwords"):
        service.prepare({"text": "word " * 500})


def test_weights_of_another_size_are_a_damaged_bundle(served: tuple[str, Path, PredictionService]) -> None:
    recipe, folder, _ = served
    weights = load_file(folder / "model.safetensors")
    name = max(weights, key=lambda each: weights[each].numel())
    weights[name] = torch.cat([weights[name], weights[name]])
    opened = Bundle.open(str(folder))
    opened.weights = lambda: weights  # type: ignore[method-assign]
    with pytest.raises(BadBundle, match="do not fit its settings"):
        RECIPES[recipe].load("predictor")(opened)
