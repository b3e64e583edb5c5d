"""The loop's promises, one at a time, within one process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.core.errors import BadInput, RunFailed
from headway.rundir.layout import RunFolder
from headway.spec import Cadence, Checkpoint, Phase
from headway.storage import open_store
from headway.training import Loader
from headway.training.optim import Average
from headway.training.preemption import Stop
from headway.training.run import Run
from headway.training.schedules import KINDS, Schedule
from tests.training.inside import Start, runs


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


class Numbers:
    """y = 2x + 1, exactly."""

    def __init__(self, count: int = 20, bad: int | None = None) -> None:
        self._count, self._bad = count, bad

    def __len__(self) -> int:
        return self._count

    def item(self, index: int, rng: Any) -> tuple[Tensor, Tensor]:
        x = torch.tensor([index / self._count])
        return x, torch.full_like(x, float("nan")) if index == self._bad else 2 * x + 1


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope, self.rise = nn.Linear(1, 1, bias=False), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x) + self.rise


def parts(run: Run, lr: float = 0.1) -> tuple[Line, torch.optim.SGD, Loader]:
    model = run.place(Line())
    return model, torch.optim.SGD(model.parameters(), lr=lr), Loader(Numbers(), 6)


def train(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Loader, epochs: int = 2, **step: Any
) -> None:
    for _ in run.epochs(epochs):
        for x, y in run.steps(feed):
            loss = ((model(x) - y) ** 2).sum()
            run.step(optimizer, loss_sum=loss, weight=len(x), **step)
            run.log(loss=loss / len(x))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def history(run: Run) -> list[dict[str, Any]]:
    run._metrics.finish()
    return RunFolder(open_store(run.folder)).metrics()


# -- steps ------------------------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_mean_over_the_whole_batch(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    expected = Line()
    expected.load_state_dict(model.state_dict())
    x, y = feed.batch(0, 0, 0, 1)
    ((expected(x) - y) ** 2).mean().backward()
    for x, y in run.steps(feed):
        run.step(optimizer, loss_sum=((model(x) - y) ** 2).sum(), weight=len(x))
        break
    moved = [before - 0.1 * before.grad for before in expected.parameters()]  # type: ignore[operator]
    assert torch.allclose(weights(model), torch.cat([value.flatten() for value in moved]))


def test_micro_batches_give_the_gradient_of_the_batch_they_were_cut_from(start: Start) -> None:
    whole, cut = start(), None
    model, optimizer, feed = parts(whole)
    train(whole, model, optimizer, feed)
    cut = start(config={"accumulate": 4})  # the last batch has 2 items: two of its micro-batches are empty
    other, optimizer, feed = parts(cut)
    train(cut, other, optimizer, feed)
    assert cut.global_step == whole.global_step == 8
    assert torch.allclose(weights(model), weights(other), atol=1e-6)


def test_losses_logged_for_micro_batches_are_averaged_by_weight(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run, lr=0.0)
    train(run, model, optimizer, feed, epochs=1)
    whole = [record["loss"] for record in history(run)]
    run = start(config={"accumulate": 4})
    model, optimizer, feed = parts(run, lr=0.0)
    train(run, model, optimizer, feed, epochs=1)
    assert [record["loss"] for record in history(run)] == pytest.approx(whole)


def test_gradients_are_clipped_by_their_common_norm_which_is_logged(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run, lr=1.0)
    before = weights(model)
    for x, y in run.steps(feed):
        run.step(((model(x) - y) ** 2).sum() * 100, optimizer, clip=0.5)
        break
    assert float((weights(model) - before).norm()) == pytest.approx(0.5, rel=1e-4)


def test_the_number_of_steps_is_the_same_inside_a_step_and_between(start: Start) -> None:
    """Progress is looked at by a thread, at any moment."""
    run = start()
    model, optimizer, feed = parts(run)
    seen = set()
    for _ in run.epochs(3):
        for x, y in run.steps(feed):
            seen.add(run._progress_numbers()["steps"])
            run.step(((model(x) - y) ** 2).sum(), optimizer)
            seen.add(run._progress_numbers()["steps"])
        seen.add(run._progress_numbers()["steps"])
    assert seen == {12}


def test_a_generator_given_up_by_break_leaves_a_run_that_can_go_on(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    for epoch in run.epochs(3):
        for x, y in run.steps(feed):
            run.step(((model(x) - y) ** 2).sum(), optimizer)
            if epoch == 1:
                break
    assert run.global_step == 4 + 1 + 4


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_a_run_that_is_started_again_when_it_is_done_does_nothing(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    train(run, model, optimizer, feed)
    run.finish()
    run = start()
    other, optimizer, feed = parts(run)
    assert run.restore(model=other, optimizer=optimizer, data=feed) == 8
    train(run, other, optimizer, feed)
    assert run.global_step == 8
    assert torch.equal(weights(model), weights(other))


def test_names_that_do_not_fit_the_checkpoint_are_told(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer)
    train(run, model, optimizer, feed)
    run.finish()
    run = start()
    model, optimizer, feed = parts(run)
    with pytest.raises(BadInput, match=r"it lacks net, run\.restore was not given its model"):
        run.restore(net=model, optimizer=optimizer)


def test_something_without_a_state_cannot_be_restored(start: Start) -> None:
    run = start()
    with pytest.raises(BadInput, match="has no state_dict"):
        run.restore(rate=0.1)


def test_other_data_in_the_middle_of_an_epoch_is_refused(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    every_step = Checkpoint(every=Cadence(steps=1))
    run = start(checkpoint=every_step)
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    for x, y in run.steps(feed):
        run.step(((model(x) - y) ** 2).sum(), optimizer)
        if run.global_step == 3:
            break
    run._checkpoints.writer.drain()
    run = start(checkpoint=every_step)
    model, optimizer, _ = parts(run)
    with pytest.raises(BadInput, match=r"in the middle of an epoch \(batch 2\) of 4 batches, which now has 10"):
        run.restore(model=model, optimizer=optimizer, data=Loader(Numbers(), 2))


def test_a_second_call_of_epochs_is_a_second_stage(start: Start) -> None:
    def stages(run: Run, stop_after: int | None = None) -> list[tuple[str, int]]:
        model, optimizer, feed = parts(run)
        run.restore(model=model, optimizer=optimizer, data=feed)
        seen = []
        for name in ("first", "second"):
            for epoch in run.epochs(2):
                seen.append((name, epoch))
                for x, y in run.steps(feed):
                    run.step(((model(x) - y) ** 2).sum(), optimizer)
                    if run.global_step == stop_after:
                        os.kill(os.getpid(), signal.SIGTERM)
        return seen

    run = start()
    with pytest.raises(Stop):
        stages(run, stop_after=10)
    assert stages(start()) == [("second", 0), ("second", 1)]


def test_a_data_loader_continues_with_the_same_batches(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    class Noisy(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor([float(index)]) + torch.rand(1)

    def batches(run: Run, stop: int | None = None) -> list[list[float]]:
        loader = torch.utils.data.DataLoader(Noisy(), batch_size=3, shuffle=True)
        model, optimizer, _ = parts(run)
        run.restore(model=model, optimizer=optimizer, data=loader)
        seen = []
        for _ in run.epochs(1):
            for batch in run.steps(loader):
                seen.append(batch.flatten().tolist())
                run.step(model(batch).sum(), optimizer)
                if run.global_step == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
        return seen

    run = start()
    with pytest.raises(Stop):
        batches(run, stop=2)
    rest = batches(start())
    assert "DataLoader continues after batch 2 of the epoch" in capsys.readouterr().err
    straight = start()
    (Path(straight.folder) / "checkpoints/last.json").unlink()
    for path in Path(straight.folder).glob("checkpoints/*/*"):
        path.unlink()
    assert batches(straight)[2:] == rest


# -- comforts ---------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_and_names_the_items(start: Start) -> None:
    run = start()
    model, optimizer, _ = parts(run)
    feed = Loader(Numbers(bad=13), 5)
    with pytest.raises(RunFailed, match="13"):
        train(run, model, optimizer, feed)
    assert torch.isfinite(weights(model)).all()


def test_a_bad_batch_is_left_out_on_request_with_all_its_traces(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(config={"nan": "skip"})
    model = run.place(nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    class Poisoned(Numbers):
        def item(self, index: int, rng: Any) -> tuple[Tensor, Tensor]:
            x, y = super().item(index, rng)
            return (x * float("nan"), y) if index == 13 else (x, y)

    train(run, model, optimizer, Loader(Poisoned(), 5), epochs=2)
    assert run.global_step == 6  # of 8
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert "was skipped: its loss is not finite" in capsys.readouterr().err
    assert [record["step"] for record in history(run)] == [1, 2, 3, 4, 5, 6]


def test_a_loss_that_is_never_finite_ends_the_run_also_when_batches_are_left_out(start: Start) -> None:
    run = start(config={"nan": "skip"})
    model, optimizer, feed = parts(run, lr=float("inf"))
    with pytest.raises(RunFailed, match="11 batches in a row"):
        train(run, model, optimizer, feed, epochs=9)


def test_epochs_end_when_scores_have_stopped_rising_and_stay_ended(start: Start) -> None:
    def score_falling(run: Run) -> int:
        model, optimizer, feed = parts(run)
        run.restore(model=model, optimizer=optimizer, data=feed)
        for epoch in run.epochs(50):
            for x, y in run.steps(feed):
                run.step(((model(x) - y) ** 2).sum(), optimizer)
            run.score({"score": 5 - epoch}, best="score", patience=3)
        run.finish()
        return run.global_step

    assert score_falling(start()) == 4 * 4
    assert score_falling(start()) == 4 * 4


def test_phases_freeze_what_they_do_not_name_and_resume_inside(start: Start) -> None:
    phases = (Phase(name="head", epochs=1, lr=0.5, train=("rise",), best="score"), Phase(name="all", epochs=2, lr=0.25))

    def learn(run: Run, stop: int | None = None) -> tuple[Line, list[Any]]:
        model, optimizer, feed = parts(run)
        run.restore(model=model, optimizer=optimizer, data=feed)
        seen = []
        for phase in run.phases():
            for epoch in run.epochs(phase.epochs):
                for x, y in run.steps(feed):
                    run.step(((model(x) - y) ** 2).mean(), optimizer)
                    if run.global_step == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                seen.append((phase.name, epoch, optimizer.param_groups[0]["lr"], model.slope.weight.requires_grad))
                run.score({"score": 1.0}, best="score")
        return model, seen

    run = start(phases=phases)
    straight, seen = learn(run)
    run.finish()
    assert seen == [("head", 0, 0.5, False), ("all", 0, 0.25, True), ("all", 1, 0.25, True)]
    assert json.loads((Path(run.folder) / "checkpoints/head_best.json").read_text()) == {"step": 4}
    for path in Path(run.folder).glob("checkpoints/**/*.json"):
        path.unlink()
    with pytest.raises(Stop):
        learn(start(phases=phases), stop=6)
    resumed, seen = learn(start(phases=phases))
    assert seen == [("all", 0, 0.25, True), ("all", 1, 0.25, True)]
    assert torch.equal(weights(straight), weights(resumed))


def test_a_phase_that_names_nothing_is_told_what_there_is(start: Start) -> None:
    run = start(phases=(Phase(name="head", epochs=1, train=("haed.*",)),))
    parts(run)
    with pytest.raises(BadInput, match=r"no parameter matches 'haed\.\*'") as error:
        next(run.phases())
    assert "slope.*" in error.value.problem.fix


def test_an_average_follows_the_weights_is_restored_and_can_stand_in_for_them(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    average = run.average(model, decay=0.9)
    run.restore(model=model, optimizer=optimizer, data=feed)
    train(run, model, optimizer, feed)
    run.finish()
    own = weights(model)
    with average.swapped():
        averaged = weights(model)
    assert torch.equal(weights(model), own)
    assert not torch.allclose(averaged, own)
    run = start()
    model, optimizer, feed = parts(run)
    again = run.average(model, decay=0.9)
    run.restore(model=model, optimizer=optimizer, data=feed)
    with again.swapped():
        assert torch.equal(weights(model), averaged)


def test_an_average_of_a_constant_is_that_constant() -> None:
    model = nn.Linear(3, 2)
    average = Average(model)
    for _ in range(5):
        average.update()
    before = weights(model)
    with average.swapped():
        assert torch.allclose(weights(model), before)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_and_gives_full_precision_back(start: Start, precision: str) -> None:
    run = start(config={"precision": precision})
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    before = weights(model)
    train(run, model, optimizer, feed, clip=1.0)
    assert list(model.state_dict()) == ["rise", "slope.weight"]
    assert weights(model).dtype is torch.float32
    assert not torch.equal(weights(model), before)
    run.finish()


# -- schedules --------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {"warmup": 4},
    "cosine": {"steps": 20, "warmup": 3, "floor": 0.1},
    "inverse_sqrt": {"warmup": 5},
    "linear": {"steps": 20, "warmup": 3},
    "noam": {"width": 128, "warmup": 8},
    "one_cycle": {"steps": 20},
    "plateau": {"patience": 1},
}


def rates(schedule: Schedule, count: int) -> list[float]:
    seen = []
    for _ in range(count):
        seen.append(schedule.lr)
        schedule.step()
        schedule.record_score(0.0)
    return seen


def schedule_of(kind: str) -> Schedule:
    return Schedule(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5), kind, **OPTIONS[kind])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_schedule_goes_on_where_it_was(kind: str) -> None:
    straight = rates(schedule_of(kind), 20)
    first, second = schedule_of(kind), schedule_of(kind)
    assert rates(first, 9) == straight[:9]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert rates(second, 11) == straight[9:]
    assert len(set(straight)) > 1
    assert all(0 <= rate <= 0.5 for rate in straight)


def test_one_cycle_is_the_one_that_torch_has() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=20, cycle_momentum=False)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step() if len(expected) < 20 else None
    assert rates(schedule_of("one_cycle"), 20) == pytest.approx(expected)


def test_noam_peaks_at_the_end_of_its_warm_up() -> None:
    seen = rates(schedule_of("noam"), 20)
    assert seen.index(max(seen)) == 7
    assert seen[7] == pytest.approx(0.5 * 128**-0.5 * 8**-0.5)


def test_a_schedule_that_does_not_exist_is_told_what_does() -> None:
    with pytest.raises(BadInput, match="unknown schedule 'cosin'") as error:
        Schedule(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1), "cosin")
    assert "cosine" in error.value.problem.fix


# -- the end ----------------------------------------------------------------------------------------------------------


class Paper:
    """A bundle that is one file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def write(self, folder: Path) -> None:
        (folder / "weights.txt").write_text(self._text)


def test_at_the_end_of_the_budget_the_best_so_far_is_exported(start: Start) -> None:
    run = start(deadline_s=1e6)
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    run.on_export(lambda: Paper(str(weights(model).tolist())))
    best = torch.zeros(0)

    def until_the_budget_ends() -> None:
        nonlocal best
        for epoch in run.epochs(9):
            for x, y in run.steps(feed):
                run.step(((model(x) - y) ** 2).sum(), optimizer)
                if run.global_step == 10:
                    run._session.preemption._deadline = 0.0
            if run.score({"score": -epoch}, best="score"):
                best = weights(model)

    with pytest.raises(SystemExit) as end:
        until_the_budget_ends()
    assert end.value.code == 0
    assert (Path(run.folder) / "export/weights.txt").read_text() == str(best.tolist())
    assert (Path(run.folder) / "checkpoints/00000010/manifest.json").exists()


@pytest.mark.parametrize(("measured_s", "ends"), [(None, False), ("150", True)])
def test_what_an_export_took_before_is_kept_of_the_budget(
    start: Start, monkeypatch: pytest.MonkeyPatch, measured_s: str | None, ends: bool
) -> None:
    if measured_s is not None:
        monkeypatch.setenv("HEADWAY_EXPORT_S", measured_s)
    run = start(deadline_s=1e6)
    run._session.preemption._deadline = run._session.preemption._clock() + 100.0
    assert run._boundary._over_budget() is ends


def test_a_finished_run_has_its_bundle_and_its_pictures(start: Start) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    train(run, model, optimizer, feed, epochs=1)
    run.sample("a.png", b"png")
    run.finish(Paper("done"))
    assert (Path(run.folder) / "export/weights.txt").read_text() == "done"
    assert (Path(run.folder) / "samples/00000004-a.png").read_bytes() == b"png"
