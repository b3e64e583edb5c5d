"""Models for other programs: `.pth` files of old names, ONNX and torch.export that answer as the model does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.artifacts.checkpoint_model import open_trained
from headway.artifacts.export import write_graphs
from headway.artifacts.onnx import Graph, NotExported, write_onnx, write_pt2
from headway.artifacts.weights import write_weights
from headway.core.errors import BadInput
from headway.recipes.grading.config import Config
from headway.recipes.grading.model import Grader
from headway.spec.loading import from_plain
from headway.training.checkpoint.init_weights import initialise
from tests.recipes.grading.trained import trained_grader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_grader(tmp_path_factory)


@pytest.mark.slow
def test_checkpoints_and_best_weights_are_written_under_the_names_of_old(run: Path, tmp_path: Path) -> None:
    names = write_weights(str(run), "pth", str(tmp_path / "pth")).files
    assert set(names) == {
        "phase1_best.pth",
        "phase2_best.pth",
        "checkpoint_epoch_2.pth",
        "psa_dual_branch_state_dict.pth",
        "psa_dual_branch_config.json",
    }
    saved = torch.load(tmp_path / "pth" / "phase1_best.pth", weights_only=True)
    expected = open_trained(str(run), "phase1_best")
    assert saved["step"] == expected.step == 3
    assert saved["scores"]["qwk"] == expected.scores["qwk"]
    assert all(
        torch.equal(saved["model_state_dict"][name], value) for name, value in expected.model.state_dict().items()
    )


@pytest.mark.slow
def test_what_was_pulled_is_enough_to_go_on_elsewhere(run: Path, tmp_path: Path) -> None:
    """The settings rebuild the model, every weight fits, and training may start from the file."""
    write_weights(str(run), "pth", str(tmp_path))
    settings = json.loads((tmp_path / "psa_dual_branch_config.json").read_text())
    grades = settings.pop("grades")
    model = Grader(from_plain(settings, Config, where="test"), grades)
    model.load_state_dict(torch.load(tmp_path / "psa_dual_branch_state_dict.pth", weights_only=True))
    initialise(model, str(tmp_path / "phase2_best.pth"))


@pytest.mark.slow
def test_a_grader_as_onnx_grades_any_number_of_pictures_as_the_model_does(run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    made = write_graphs(str(run / "export"), "onnx", str(tmp_path / "onnx"))
    assert made["graphs"][0]["inputs"] == {
        "back": "uint8 [batch, 3, 96, 96]",
        "front": "uint8 [batch, 3, 96, 96]",
    }
    assert json.loads((tmp_path / "onnx" / "psa_dual_branch_onnx.json").read_text())["graphs"] == made["graphs"]
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "grader.onnx"))
    back, front = torch.randint(0, 256, (2, 5, 3, 96, 96), dtype=torch.uint8)
    chances, grades = session.run(None, {"back": back.numpy(), "front": front.numpy()})
    model = open_trained(str(run)).model.eval()
    with torch.no_grad():
        expected = model.probabilities(model(back, front))
    assert torch.allclose(torch.from_numpy(chances), expected, atol=1e-4)
    assert grades.shape == (5,)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def graph(module: nn.Module, **more: object) -> Graph:
    inputs = {"x": torch.rand(2, 2)}
    given = {"name": "scale", "module": module, "inputs": inputs, "outputs": ("y",), "dynamic": {"x": {0: "batch"}}}
    return Graph(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_exported_program_is_read_back_and_takes_other_sizes(tmp_path: Path) -> None:
    made = write_pt2(graph(Scale().eval(), more=[{"x": torch.rand(7, 2)}]), tmp_path)
    assert made["largest_difference"] == 0
    loaded = torch.export.load(str(tmp_path / "scale.pt2")).module()
    assert torch.equal(loaded(torch.ones(4, 2)), torch.tensor([[2.0, 3.0]] * 4))


class Fickle(Scale):
    """Answers differently while it is traced: as if a kernel were wrong."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (1.0 if torch.compiler.is_compiling() else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_onnx, write_pt2])
def test_a_graph_that_answers_otherwise_is_refused(tmp_path: Path, write: object) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with pytest.raises(NotExported, match="differs from the model"):
        write(graph(Fickle().eval()), tmp_path)  # type: ignore[operator]


class Branching(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else x


def test_what_cannot_be_traced_is_said_with_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(NotExported, match="cannot be exported") as caught:
        write_pt2(graph(Branching().eval()), tmp_path)
    assert "--as pth" in caught.value.problem.fix


def test_files_are_not_put_in_place_of_a_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(BadInput, match="is a file"):
        write_weights(str(run), "pth", str(tmp_path / "taken"))


@pytest.mark.slow
def test_a_classifier_as_onnx_and_as_an_exported_program(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from headway.recipes.classification.config import Config as Settings
    from headway.recipes.classification.model import Classifier, graphs

    cfg = Settings(model="alexnet", model_size="small", image_size=64)
    (whole,) = graphs(Classifier(cfg, ["healthy", "sick"], published=False), cfg)
    for write in (write_onnx, write_pt2):
        made = write(whole, tmp_path)
        assert made["inputs"] == {"picture": "uint8 [batch, 3, 64, 64]"}
        assert made["largest_difference"] < 1e-5
