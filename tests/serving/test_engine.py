"""ONNX Runtime answers in torch's place only where it says the same; what cannot be is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "onnxruntime", "onnxscript", "starlette"):
    pytest.importorskip(needed)

import torch  # noqa: E402

from headway.artifacts import predictor  # noqa: E402
from headway.artifacts.predictor import open_service  # noqa: E402
from headway.bundle.format import Bundle  # noqa: E402
from headway.core.errors import BadInput  # noqa: E402
from headway.recipes.captioning.inference import OnnxEncoder  # noqa: E402
from tests.serving.test_services import MADE, inputs  # noqa: E402


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["captioning", "classification", "grading"])
def test_onnx_runtime_says_what_torch_says(recipe: str, tmp_path: Path) -> None:
    bundle = Bundle.open(str(MADE[recipe](tmp_path / "bundle")))
    plain, other = open_service(bundle), open_service(bundle)
    assert "no graph has been exported" in predictor.choose_engine(other, bundle, "auto")
    assert predictor.choose_engine(other, bundle, "onnx").startswith("ONNX Runtime: ")
    prepared = [plain.prepare(instance) for _, instance in inputs(recipe, tmp_path)]
    for explain in (False, True):
        expected, found = plain.answer(prepared, explain=explain), other.answer(prepared, explain=explain)
        assert [each["text"] for each in found] == [each["text"] for each in expected]
        assert [set(each) for each in found] == [set(each) for each in expected]
    assert predictor.choose_engine(open_service(bundle), bundle, "auto").startswith("ONNX Runtime: "), "it is cached"
    _refused(bundle)


def _refused(bundle: Bundle) -> None:
    """A graph that is not this model's, or none at all, is found out at the start; torch answers."""
    changed: Any = open_service(bundle)
    with torch.no_grad():
        for weight in changed._predictor.model.parameters():
            weight.mul_(1.5)
    assert "differs from the model" in predictor.choose_engine(changed, bundle, "auto")
    assert not isinstance(getattr(changed._predictor.model, "encoder", None), OnnxEncoder)
    assert getattr(changed, "_run", None) is None
    predictor.graph_path(bundle).write_bytes(b"damaged")
    assert "cannot be read" in predictor.choose_engine(open_service(bundle), bundle, "auto")


def test_a_recipe_that_decodes_word_by_word_stays_with_torch(tmp_path: Path) -> None:
    bundle = Bundle.open(str(MADE["translation"](tmp_path / "bundle")))
    assert predictor.choose_engine(open_service(bundle), bundle, "auto").startswith("torch")
    with pytest.raises(BadInput, match="step by step"):
        predictor.choose_engine(open_service(bundle), bundle, "onnx")
