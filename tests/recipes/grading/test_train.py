"""The loop: two phases as data, the best of each by QWK, and what every epoch leaves."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.artifacts.checkpoint_model import open_trained
from headway.core.errors import BadInput, NoCheckpoint
from headway.recipes.grading.data import load
from headway.recipes.grading.model import Grader
from headway.recipes.grading.train import curriculum, freeze_for_phase, sampled
from headway.rundir.layout import RunFolder
from headway.spec import Data, Phase
from headway.storage import open_store
from headway.training.schedules import freeze
from tests.recipes.grading.jobs import grading_config
from tests.recipes.grading.trained import trained_grader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_grader(tmp_path_factory)


def test_the_curriculum_is_the_back_alone_then_everything() -> None:
    first, second = curriculum(grading_config(phase1_epochs=10, phase2_epochs=30, phase1_lr=1e-3, phase2_lr=3e-4))
    assert (first.name, first.epochs, first.lr, first.best) == ("phase1", 10, 1e-3, "qwk")
    assert (second.name, second.epochs, second.lr, second.train) == ("phase2", 30, 3e-4, ("*",))
    assert not any(pattern.startswith("front") or pattern == "*" for pattern in first.train)


def test_a_phase_of_no_epochs_is_left_out_and_none_at_all_is_refused() -> None:
    assert [phase.name for phase in curriculum(grading_config(phase1_epochs=0))] == ["phase2"]
    with pytest.raises(BadInput, match="the model would not be trained"):
        curriculum(grading_config(phase1_epochs=0, phase2_epochs=0))


def test_a_phase_draws_rows_by_its_own_sampler() -> None:
    cfg = grading_config(train_samples=200, skewed=True, batch_size=200)
    graded = load(cfg, Data(), "train")
    as_they_are = Counter(graded.labels().tolist())

    def drawn(**phase: str) -> Counter[int]:
        settings = sampled(cfg, Phase(name="first", epochs=1, **phase))
        return Counter(graded.feed(settings, training=True, seed=1).batch(0, 0, 0, 1)["label"].tolist())

    assert drawn(sampler="uniform") == as_they_are
    assert drawn(sampler="balanced") == drawn() != as_they_are  # the config's own is balanced
    assert sampled(replace(cfg, sampler="uniform"), Phase(name="b", epochs=1, sampler="balanced")).sampler == "balanced"


def test_a_sampler_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="phase first: there is no sampler 'weighted'"):
        sampled(grading_config(), Phase(name="first", epochs=1, sampler="weighted"))


def test_what_does_not_learn_holds_still_and_the_front_is_not_looked_at() -> None:
    model = Grader(grading_config(), range(1, 11))
    first, second = curriculum(grading_config())
    freeze([model], first)
    freeze_for_phase(model)
    pictures = torch.randint(0, 256, (4, 3, 96, 96), dtype=torch.uint8)
    other = torch.randint(0, 256, (4, 3, 96, 96), dtype=torch.uint8)
    answer = model.eval()(pictures, pictures)
    assert answer.front is None
    assert torch.equal(answer.scores, model(pictures, other).scores)
    freeze([model], second)
    freeze_for_phase(model)
    model.eval()
    assert not torch.equal(model(pictures, pictures).scores, model(pictures, other).scores)


def test_in_single_view_the_first_phase_leaves_the_encoder_as_it_came() -> None:
    cfg = grading_config(views="single")
    model = Grader(cfg, range(5))
    freeze([model], curriculum(cfg)[0])
    freeze_for_phase(model)
    assert model.back.frozen == "all"
    assert not any(module.training for module in model.back.modules() if isinstance(module, torch.nn.BatchNorm2d))
    assert all(parameter.requires_grad for parameter in model.head.parameters())


@pytest.mark.slow
def test_each_phase_has_its_best_and_every_second_epoch_is_kept(run: Path) -> None:
    names = {path.stem for path in (run / "checkpoints").glob("*.json")}
    assert names == {"phase1_best", "phase2_best", "epoch_2", "last"}
    pointed = {name: json.loads((run / "checkpoints" / f"{name}.json").read_text())["step"] for name in names}
    assert pointed["phase1_best"] == 3
    assert pointed["epoch_2"] == 6


@pytest.mark.slow
def test_the_best_checkpoint_is_that_of_the_last_phase_and_the_highest_qwk(run: Path) -> None:
    trained = open_trained(str(run))
    assert trained.checkpoint == "phase2_best"
    scored = [event for event in RunFolder(open_store(str(run))).events() if event["kind"] == "score"]
    best = max(scored[1:], key=lambda event: event["qwk"])
    assert trained.step == best["step"]
    assert trained.scores["qwk"] == best["qwk"]


@pytest.mark.slow
def test_weights_of_another_model_are_refused_by_name(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    plan = json.loads((other / "plan.json").read_text())
    plan["job"]["config"]["head"] = "coral"
    (other / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(NoCheckpoint, match=r"do not match the current grading recipe: .*head"):
        open_trained(str(other))


@pytest.mark.slow
def test_a_checkpoint_of_the_first_phase_is_asked_without_the_front(run: Path) -> None:
    model = open_trained(str(run), "phase1_best").model.eval()
    pictures = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)
    assert model(pictures, pictures).front is None
    assert open_trained(str(run), "phase2_best").model.eval()(pictures, pictures).front is not None


@pytest.mark.slow
def test_all_parts_of_the_loss_are_logged(run: Path) -> None:
    history = RunFolder(open_store(str(run))).metrics()
    parts = ("loss_softmax", "loss_emd", "loss_edge", "loss_center")
    first = history[0]
    assert first["loss"] == pytest.approx(sum(first[name] for name in parts), rel=1e-4)
    assert all(first[name] > 0 for name in parts)
    assert [record["lr"] for record in history[:3]] == [1e-3] * 3
    assert history[4]["lr"] == pytest.approx(3e-4)
