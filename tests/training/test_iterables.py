"""DataLoaders, streams and other iterables: a resumed run sees the same batches, or is told that it will not."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headway.core.errors import BadInput
from headway.training.preemption import Stop
from headway.training.run import Run
from tests.supervisor.supervised import quiet_environment
from tests.training.inside import Start, runs
from tests.training.live import Case
from tests.waiting import wait_until


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


@pytest.fixture(name="straight")
def _straight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """The same, in a folder of its own."""
    yield from runs(tmp_path / "straight", monkeypatch)


class Noisy(Dataset[Tensor]):
    """Items with noise from the default generators of torch, numpy and Python."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        noise = float(torch.rand(())) + float(np.random.random()) + random.random()
        return torch.tensor([index + noise / 10])


class Stream(IterableDataset[Tensor]):
    def __init__(self, count: int = 10) -> None:
        self._count = count

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(self._count):
            yield torch.tensor([index + float(torch.rand(()))])


class Own(Stream):
    """A stream with a generator of its own, which goes on from epoch to epoch."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(10):
            yield torch.tensor([index + self._rng.random()])


class Stateful:
    """A loader with a position of its own, as torchdata's StatefulDataLoader; it counts what it reads."""

    def __init__(self) -> None:
        self.at, self.epoch, self.loads, self.finished = 0, 0, 0, False

    def __iter__(self) -> Iterator[Tensor]:
        if self.finished:
            self.at, self.epoch, self.finished = 0, self.epoch + 1, False
        while self.at < 5:
            self.at += 1
            self.loads += 1
            yield torch.tensor([[100.0 * self.epoch + self.at]])
        self.finished = True

    def state_dict(self) -> dict[str, Any]:
        other = {"tensor": torch.arange(3), "pair": (1, b"2")}
        return {"at": self.at, "epoch": self.epoch, "finished": self.finished, "other": other}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["other"]["tensor"], torch.arange(3))
        assert state["other"]["pair"] == (1, b"2")
        self.at, self.epoch, self.finished = state["at"], state["epoch"], state["finished"]


def generated() -> Iterator[Tensor]:
    for index in range(5):
        yield torch.tensor([[index + float(torch.rand(()))]])


def with_generator(seed: int = 4, **options: Any) -> DataLoader[Tensor]:
    return DataLoader(Noisy(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(seed), **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=2, shuffle=True),
    "own generator": with_generator,
    "own generator and workers": lambda: with_generator(num_workers=2),
    "persistent workers": lambda: DataLoader(Noisy(), 2, shuffle=True, num_workers=2, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "stream with a worker": lambda: DataLoader(Stream(), batch_size=2, num_workers=1),
    "stream as it is": Stream,
    "list": lambda: [torch.full((1, 1), float(number)) for number in range(5)],
    "stateful": Stateful,
}


def trained(run: Run, make: Callable[[], Any], stop: int | None = None, epochs: int = 3) -> list[list[float]]:
    """The batches that were trained on; asked to stop at a step."""
    loader, seen = make(), []
    model = run.place(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run.restore(model=model, optimizer=optimizer, data=loader)
    for _ in run.epochs(epochs):
        for batch in run.steps(loader):
            seen.append(batch.flatten().tolist())
            run.step(model(batch.reshape(-1, 1)).square().mean(), optimizer)
            if run.global_step == stop:
                os.kill(os.getpid(), signal.SIGTERM)
    run.finish()
    return seen


@pytest.mark.parametrize("stop", [2, 5, 7, 10])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_resumed_run_sees_the_same_batches(start: Start, straight: Start, kind: str, stop: int) -> None:
    expected = trained(straight(), LOADERS[kind])
    with pytest.raises(Stop):
        trained(start(), LOADERS[kind], stop)
    assert trained(start(), LOADERS[kind]) == expected[stop:]
    size = len(expected) // 3
    assert len(expected) == 3 * size
    if kind not in ("list", "stateful"):
        assert expected[:size] != expected[size : 2 * size]


def test_a_run_resumed_twice_in_one_epoch_sees_the_same_batches(start: Start, straight: Start) -> None:
    expected = trained(straight(), with_generator)
    for stop in (6, 8):
        with pytest.raises(Stop):
            trained(start(), with_generator, stop)
    assert trained(start(), with_generator) == expected[8:]


def test_a_loader_with_a_state_of_its_own_reads_nothing_again(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stop):
        trained(start(), Stateful, stop=8)
    loader = Stateful()
    assert len(trained(start(), lambda: loader)) == loader.loads == 7
    assert "continues from its saved state" in capsys.readouterr().err


def test_a_data_loader_without_workers_is_not_replayed(start: Start) -> None:
    class Counting(Noisy):
        loads = 0

        def __getitem__(self, index: int) -> Tensor:
            Counting.loads += 1
            return super().__getitem__(index)

    def make() -> DataLoader[Tensor]:
        return DataLoader(Counting(), batch_size=2, shuffle=True)

    with pytest.raises(Stop):
        trained(start(), make, stop=4, epochs=1)
    Counting.loads = 0
    assert len(trained(start(), make, epochs=1)) == 1
    assert Counting.loads == 2 + 2  # the first batch, which is compared with the checkpoint's, and the last


def test_a_generator_that_would_be_spent_is_refused_before_the_first_step(start: Start) -> None:
    with pytest.raises(BadInput, match=r"this generator can be read once, and 3 epochs are to be trained"):
        trained(start(), generated)


def test_a_spent_generator_is_refused_and_one_made_anew_is_not(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start()
    for _ in run.epochs(2):
        assert len(list(run.steps(generated()))) == 5
    assert "this generator can be read once: create it anew for every epoch" in capsys.readouterr().err
    run, spent = start(), generated()
    with pytest.raises(BadInput, match="read to its end in an earlier epoch"):
        [list(run.steps(spent)) for _ in run.epochs(2)]


def test_data_that_gives_no_batch_is_refused(start: Start) -> None:
    with pytest.raises(BadInput, match="gave no batch in epoch 1"):
        list(start().steps(DataLoader(Stream(0))))


@pytest.mark.parametrize(("make", "repeats"), [(lambda: Own(1), False), (lambda: Own(None), False), (Stream, True)])
def test_data_that_does_not_repeat_itself_is_recognised_in_the_first_epoch(
    start: Start, capsys: pytest.CaptureFixture[str], make: Callable[[], Any], repeats: bool
) -> None:
    run = start()
    for batch in run.steps(make()):
        assert len(batch) == 1
    assert run._batches._reader is not None
    assert run._batches._reader._check.done.wait(30)
    assert ("gives another first batch when it is read again" not in capsys.readouterr().err) == repeats


def test_other_batches_after_a_restart_are_recognised(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stop):
        trained(start(), lambda: Own(None), stop=2, epochs=1)
    trained(start(), lambda: Own(None), epochs=1)
    assert "gives other batches than before the restart" in capsys.readouterr().err


def test_the_last_step_of_an_epoch_takes_the_micro_batches_that_are_left(start: Start) -> None:
    """5 batches of 2, 2, 2, 2 and 1 items, two per step: none is carried into the next epoch."""
    run = start(config={"accumulate": 2})
    x = torch.arange(9.0).reshape(-1, 1)
    loader = DataLoader(x, batch_size=2)  # type: ignore[arg-type]
    model, bare = run.place(nn.Linear(1, 1)), nn.Linear(1, 1)
    bare.load_state_dict(model.state_dict())
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.001) for one in (model, bare))
    for _ in run.epochs(2):
        for batch in run.steps(loader):
            run.step(model(batch).square().mean(), optimizer)
    for part in itertools.chain.from_iterable([x.split(4)] * 2):
        plain.zero_grad()
        bare(part).square().mean().backward()
        plain.step()
    assert run.global_step == 6
    assert torch.allclose(model.weight, bare.weight, rtol=1e-5)


# Several ranks


def seen_by(case: Case) -> list[dict[int, str]]:
    """What every rank trained on, by step. A step that was repeated after a kill must have seen the same."""
    found: list[dict[int, str]] = []
    for rank in range(case.ranks):
        steps: dict[int, str] = {}
        for line in (case.folder / f"seen-{rank}").read_text().splitlines():
            step, _, value = line.partition(" ")
            assert steps.setdefault(int(step), value) == value, f"rank {rank}, step {step}: other data"
        found.append(steps)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_a_stream_of_unknown_length_and_resume_it(tmp_path: Path, ranks: int, split: bool) -> None:
    options = {"loop": "streamed", "split": split}
    straight, killed = Case(tmp_path / "straight", ranks=ranks), Case(tmp_path / "killed", ranks=ranks)
    assert straight.train(TEST_OPTIONS=json.dumps(options)) == [0] * ranks, straight.log()
    assert killed.train(TEST_OPTIONS=json.dumps({**options, "die_at": 6, "die_rank": 1})) != [0] * ranks
    assert killed.train(TEST_OPTIONS=json.dumps(options)) == [0] * ranks, killed.log()
    assert straight.digest() == killed.digest() == killed.digest(1)
    assert seen_by(straight) == seen_by(killed)
    steps = -(-10 // ranks)
    for epoch in range(2):
        numbers = [seen[step] for seen in seen_by(straight) for step in range(epoch * steps, (epoch + 1) * steps)]
        assert sorted(int(float(one)) for one in numbers if "padding" not in one) == list(range(10))
    words = "each rank reads its own part" if split else "each rank reads all of it and trains on its batches"
    assert f"DataLoader: {words}" in straight.log()


def test_torchdatas_stateful_data_loader_resumes_from_its_state(start: Start, straight: Start) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        return stateful.StatefulDataLoader(Noisy(), batch_size=2, shuffle=True)

    expected = trained(straight(), make)
    for stop in (3, 5, 9):
        with pytest.raises(Stop):
            trained(start(), make, stop)
    assert trained(start(), make) == expected[9:]


def test_a_stream_of_hugging_face_datasets_is_resumed(start: Start, straight: Start, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(10)))

    def make() -> DataLoader[Any]:
        rows = datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train", streaming=True)
        return DataLoader(rows.shuffle(seed=1, buffer_size=4), batch_size=2)

    def seen(run: Run, stop: int | None = None) -> list[list[float]]:
        loader, found = make(), []
        model = run.place(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        run.restore(model=model, optimizer=optimizer, data=loader)
        for epoch in run.epochs(2):
            loader.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in run.steps(loader):
                found.append(batch["x"].tolist())
                run.step(model(batch["x"].float().reshape(-1, 1)).square().mean(), optimizer)
                if run.global_step == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
        return found

    expected = seen(straight())
    with pytest.raises(Stop):
        seen(start(), stop=7)
    assert seen(start()) == expected[7:]
    assert expected[:5] != expected[5:]


ENDED = """
import os, signal, sys
import headway, torch
from torch.utils.data import DataLoader

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return b"x" * 300_000  # more than a pipe holds

run = headway.start(sys.argv[1])
model = run.place(torch.nn.Linear(1, 1))
loader = DataLoader(Large(), batch_size=2, num_workers=2, collate_fn=b"".join, persistent_workers=True)
for _ in run.steps(loader):
    print(*[worker.pid for worker in loader._iterator._workers], flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_loaders_workers_end_with_their_rank(tmp_path: Path, how: str) -> None:
    """Also those that wait to hand over a batch, and those of the process that reads the first batch again."""
    (tmp_path / "train.py").write_text(ENDED)
    done = subprocess.run(
        [sys.executable, "train.py", str(tmp_path / "run"), how],
        cwd=tmp_path,
        env={**quiet_environment(), "ENDED_TEST": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) >= 2, done.stderr

    def left() -> list[int]:
        """All processes that the script has started."""
        mark = f"ENDED_TEST={tmp_path}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in read_or_nothing(path)]

    wait_until(lambda: not left(), lambda: f"still there: {left()}", 20.0)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
