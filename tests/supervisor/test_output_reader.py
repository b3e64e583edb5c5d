"""Progress and metrics of programs that nobody changed, from what they print."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.metric_sources import OUTPUT_SOURCES
from headway.supervisor.output_reader import MAX_METRICS, OutputReader
from headway.supervisor.progress_parser import parse_line
from headway.supervisor.terminal_lines import TerminalLines

ALL = frozenset(OUTPUT_SOURCES)
RECORDED = Path(__file__).parent / "output"  # what real programs printed into a pipe


class Read:
    """Output read in the pieces in which programs write it, one each 0.1 s."""

    def __init__(self, data: bytes, *, patterns: Sequence[str] = (), sources: frozenset[str] = ALL) -> None:
        self.now, self.notes, self.metrics = 0.0, list[str](), list[dict[str, Any]]()
        terminal = TerminalLines(clock=lambda: self.now)
        reader = OutputReader(sources, patterns, clock=lambda: self.now, note=self.notes.append)
        self.history = []
        for piece in re.findall(rb"[\r\n]*[^\r\n]*", data):
            self.now += 0.1
            reader.read(terminal.feed(piece))
            reader.read_live(terminal.live())
            self.metrics += reader.take_metrics()
            self.history.append(reader.progress())
        reader.read(terminal.finish())
        reader.flush_waiting()
        self.metrics += reader.take_metrics()
        self.progress: dict[str, Any] = reader.progress() or {}

    def curve(self, name: str) -> list[tuple[int, float]]:
        return [(record["step"], record[name]) for record in self.metrics if name in record]

    def place(self) -> tuple[Any, ...]:
        return tuple(self.progress.get(name) for name in ("step", "steps", "epoch", "epochs"))


def test_keras_counts_steps_over_its_epochs() -> None:
    read = Read((RECORDED / "keras.bin").read_bytes())
    assert read.place() == (48, 48, 2, 3)
    assert read.curve("val_loss") == [(16, 0.6959), (32, 0.6966), (48, 0.6976)]
    assert read.curve("loss")[-1] == (48, 0.6975)
    assert read.progress["rate"] > 10


def test_the_trainer_of_transformers_gives_its_dictionaries_at_their_steps() -> None:
    read = Read((RECORDED / "transformers.bin").read_bytes())
    assert read.place() == (60, 60, 2, 3)
    assert [step for step, _ in read.curve("loss")] == [10, 20, 30, 40, 50, 60]
    assert [step for step, _ in read.curve("eval_loss")] == [20, 40, 60]
    assert read.curve("loss")[0][1] == 0.741
    assert not read.curve("eval_runtime")
    assert not read.curve("eval_samples_per_second")


def test_older_trainers_print_numbers_without_quotes() -> None:
    read = Read(
        b"{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 0.5}\n{'loss': 0.25, 'learning_rate': 1e-05, 'epoch': 1.0}\n"
    )
    assert read.curve("loss") == [(1, 0.5), (2, 0.25)]
    assert read.curve("learning_rate") == [(1, 5e-05), (2, 1e-05)]


def test_lightning_is_read_from_its_bar() -> None:
    bar = "\rEpoch {e}: {p:3}%|███  | {n}/100 [00:01<00:01, 40.00it/s, v_num=0, train_loss=0.{n:03}]"
    data = "".join(bar.format(e=epoch, p=step, n=step) for epoch in (0, 1) for step in (50, 100)).encode()
    read = Read(data)
    assert read.progress["step"] == 200
    assert (read.progress["epoch"], read.progress["rate"]) == (1, 40.0)
    assert read.curve("train_loss")[-1] == (200, 0.1)
    assert not read.curve("v_num")
    assert Read((RECORDED / "lightning.bin").read_bytes()).progress["loss"] == 0.622


def test_of_nested_bars_the_upper_one_counts_epochs() -> None:
    data = b""
    for epoch in range(3):
        for step in (0, 250, 500):
            outer = f"\rruns: {epoch * 33}%|#| {epoch}/3 [00:01<00:01, 1.0it/s]"
            data += f"{outer}\n\rsteps: {step // 5}%|#| {step}/500 [00:01<00:02, 20.0it/s]\x1b[A".encode()
    read = Read(data)
    assert read.place() == (1500, 1500, 2, 3)
    assert read.history[-5] is not None
    assert read.progress["rate"] == 20.0


def test_downloads_and_validation_are_shown_but_are_not_steps() -> None:
    read = Read(
        b"\rDownloading data:  50%|#| 4.50M/9.00M [00:01<00:01, 4.00MB/s]\n"
        b"\rMap: 100%|#| 1000/1000 [00:01<00:00, 900 examples/s]\n"
    )
    assert read.history[0] == {"doing": "Downloading data 50%"}
    data = b"".join(b"\r%d%%|#| %d/100 [00:01<00:01, 10.0it/s]" % (n, n) for n in (1, 2, 50))
    read = Read(data + b"\n\rValidating:  50%|#| 4/8 [00:01<00:01, 10.0it/s]")
    assert (read.progress["step"], read.progress["steps"], read.progress["doing"]) == (50, 100, "Validating 50%")


@pytest.mark.parametrize(
    ("text", "place", "values"),
    [
        ("epoch 3/20", (2, 20, 2, 20), {}),
        ("Epoch 3/20 - loss: 0.5 - val_loss: 0.7", (3, 20, 2, 20), {"loss": 0.5, "val_loss": 0.7}),
        ("step 100/5000 loss=1.5e-1", (100, 5000, None, None), {"loss": 0.15}),
        (
            "[Epoch 2 of 4] step 10/50: train loss 0.5, val acc 91.2%",
            (60, 200, 1, 4),
            {"train_loss": 0.5, "val_acc": 91.2},
        ),
        (
            "Epoch: [3][ 10/500]\tTime  0.3 ( 0.5)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   1.00 (  0.10)",
            (1010, 1500, 2, None),
            {"loss": 6.9, "acc@1": 1.0},
        ),
        (
            "Epoch: [0]  [ 10/1000]  eta: 0:10:00  lr: 0.1  loss: 0.69 (0.7)  time: 0.1",
            (10, 1000, 0, None),
            {"lr": 0.1, "loss": 0.69},
        ),
        (
            "| epoch   2 |    20/   60 batches | lr 5.00 | ms/batch 67.77 | loss  6.89 | ppl   981.43",
            (80, 120, 1, None),
            {"lr": 5.0, "loss": 6.89, "ppl": 981.43},
        ),
        (
            "Train: 0 [  50/312 ( 16%)]  Loss: 2.38 (2.40)  Time: 0.120s, 1066.67/s  LR: 1.000e-04",
            (50, 312, 0, None),
            {"loss": 2.38, "lr": 1e-04},
        ),
        (
            " [======>..........]  Step: 20s561ms | Tot: 20s561ms | Loss: 2.311 | Acc: 11.719% (30/256) 2/10 ",
            (2, 10, None, None),
            {"loss": 2.311, "acc": 11.719},
        ),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.31", (640, 60000, 0, None), {"loss": 2.31}),
        ("iter 100: loss 3.2, time 100ms, mfu 3%", (100, None, None, None), {"loss": 3.2}),
        ("2024-01-01 12:30:00,123 - INFO - epoch=7 loss=0.25", (7, None, 6, None), {"loss": 0.25}),
        ('{"step": 30, "loss": 0.5, "note": "x"}', (30, None, None, None), {"loss": 0.5}),
    ],
)
def test_usual_lines_are_understood(text: str, place: tuple[Any, ...], values: dict[str, float]) -> None:
    read = Read(text.encode() + b"\n")
    assert read.place() == place
    found = {name: value for record in read.metrics for name, value in record.items()}
    assert {name: value for name, value in found.items() if name not in ("step", "epoch", "time")} == values


@pytest.mark.parametrize(
    "text",
    [
        "Namespace(batch_size=64, epoch=20, lr=0.01)",
        "training for 5000 steps, 20 epochs",
        "epochs: 20",
        "loaded 3/4 shards in 12s",
        "Traceback (most recent call last):",
        "loss is not finite",
        "http://host:8080/step",
    ],
)
def test_other_lines_are_no_progress(text: str) -> None:
    read = Read(text.encode() + b"\n")
    assert read.progress == {}
    assert read.metrics == []


def test_a_header_gives_the_lines_below_it_their_epoch() -> None:
    read = Read(
        b"Epoch 0/24\n----------\ntrain Loss: 0.5 Acc: 0.7\nval Loss: 0.4 Acc: 0.8\n"
        b"Epoch 1/24\ntrain Loss: 0.3 Acc: 0.9\n"
    )
    assert read.curve("train_loss") == [(1, 0.5), (2, 0.3)]
    assert read.curve("val_acc") == [(1, 0.8)]
    assert read.progress["epochs"] == 25


def test_a_pattern_gives_metrics_and_the_step() -> None:
    read = Read(
        b"at 10 we lost 0.5\nat 20 we lost 2.5e-1\n", patterns=[r"at (?P<step>\d+) we lost (?P<lost>[-+0-9.e]+)"]
    )
    assert read.curve("lost") == [(10, 0.5), (20, 0.25)]
    assert read.progress["step"] == 20
    read = Read(b"reward 1\nreward 2\n", patterns=[r"reward (?P<reward>\d+)"])
    assert read.curve("reward") == [(1, 1.0), (2, 2.0)]


def test_only_the_named_sources_give_metrics_but_progress_is_always_read() -> None:
    read = Read(b"epoch 3/20 loss=0.5\n", sources=frozenset({"tqdm"}))
    assert read.metrics == []
    assert read.place() == (2, 20, 2, 20)


def test_a_pattern_that_takes_too_long_is_stopped_and_said() -> None:
    started = time.monotonic()
    read = Read(b"a" * 60 + b"\nx=1\nx=2\n", patterns=[r"(?:a+)+(?P<never>b)", r"x=(?P<x>\d)"])
    assert time.monotonic() - started < 5
    assert "took longer" in read.notes[0]
    assert [value for _, value in read.curve("x")] == [1.0, 2.0]


def test_reading_takes_a_bounded_share_of_the_time() -> None:
    reader = OutputReader(ALL, note=(notes := list[str]()).append)
    lines = b"epoch 3/20 step 100/500 loss=0.5 accuracy=0.9\n" * 300_000
    started = time.process_time()
    reader.read(lines)
    assert time.process_time() - started < 5
    assert "faster than it can be read" in notes[0]


def test_a_program_cannot_make_names_without_end() -> None:
    data = b"".join(b"step %d name%d=1\n" % (number, number) for number in range(MAX_METRICS + 50))
    read = Read(data)
    assert len({name for record in read.metrics for name in record if name.startswith("name")}) == MAX_METRICS
    assert "different metrics" in read.notes[0]


@given(st.text(max_size=200) | st.from_regex(r"[0-9%|/\[\]<:, it\.s=a-zA-Z{}']{0,120}"))
def test_any_line_is_read_without_an_error(text: str) -> None:
    parse_line(text, ALL)
    reader = OutputReader(ALL, [r"(?P<loss>[0-9.]+)"])
    reader.read(text.encode("utf-8", "replace"))
    reader.read_live([text])
    reader.progress()
    reader.take_metrics()


@pytest.mark.parametrize(
    "text", ["0%|" * 700, "epoch " * 400, "loss: " * 400, "a" * 2000 + "=", "{'" * 900 + "}", "0/0 ━" * 400, "9" * 2000]
)
def test_hostile_lines_are_read_quickly(text: str) -> None:
    started = time.process_time()
    parse_line(text, ALL)
    assert time.process_time() - started < 0.2
