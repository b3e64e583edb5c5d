"""`headway verify-resume`: exact is said only of what is, and what is not gets a name."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.core.errors import BadInput
from headway.tools.verify_checks import (
    CheckpointComparison,
    Difference,
    MetricComparison,
    NondeterminismSuspect,
    compare_histories,
    differences,
    find_suspects,
)
from headway.tools.verify_resume import likely_cause
from headway.training.step_boundary import StepLimit, read_step_limit
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 240.0

UNSEEDED = """
import numpy as np
import torch
import headway
from headway.runtime import Loader

run = headway.start()
dice = np.random.default_rng()
feed = Loader([torch.full((3,), float(i)) for i in range(64)], 8)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
run.restore(model=model, optimizer=optimizer, data=feed)
for _ in run.epochs(20):
    for x in run.steps(feed):
        loss = (model(x + torch.from_numpy(dice.normal(size=x.shape).astype("float32"))) ** 2).mean()
        run.step(loss, optimizer)
        run.log(loss=loss)
run.finish()
"""


class Bench:
    """`headway verify-resume` as a process of its own, with folders of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp = tmp_path / "tmp"
        self.job = tmp_path / "job"
        self.tmp.mkdir()
        self.job.mkdir()
        self._env = {**os.environ, "HEADWAY_HOME": str(tmp_path / "home"), "TMPDIR": str(self.tmp)}

    def script(self, text: str) -> str:
        (self.job / "train.py").write_text(text)
        (self.job / "headway.yaml").write_text("name: t\nscript: train.py\n")
        return str(self.job / "headway.yaml")

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headway", "verify-resume", *map(str, words)]
        return subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def verify(self, *words: object) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err
        self.assert_nothing_is_left()
        return process.returncode, out, err

    def assert_nothing_is_left(self) -> None:
        assert list(self.tmp.glob("headway-*")) == []
        assert [pid for pid in self.processes() if pid != os.getpid()] == []

    def processes(self) -> list[int]:
        """Whatever runs for a run of ours."""
        found = []
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and f"HEADWAY_RUN_URL={self.tmp}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
def test_a_plain_script_with_five_lines_is_exact(bench: Bench) -> None:
    code, out, err = bench.verify("-f", EXAMPLES / "plain-pytorch" / "headway.yaml", "--steps", 12)
    assert code == 0, err
    assert out.startswith("exact: ")
    assert "largest difference: 0, bit-identical" in out


@pytest.mark.slow
def test_the_captioning_recipe_is_exact_over_an_evaluation(bench: Bench) -> None:
    tiny = "{image_size: 32, width: 8, embedding_size: 16, hidden_size: 32, heads: 2, epochs: 2, batch_size: 16, "
    tiny += "captions: 2, dropout: 0.1, train_samples: 64, val_samples: 12, test_samples: 16}"
    (bench.job / "headway.yaml").write_text(f"name: captions\nrecipe: captioning\nseed: 3\nconfig: {tiny}\n")
    code, out, err = bench.verify("-f", bench.job / "headway.yaml", "--steps", 6, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["exact"] is True
    assert found["steps"] == 6
    assert found["resumed_from"] <= found["killed_after"] < 6
    assert found["compared"]["tensors"] > 50
    assert found["histories"]["records"] == 6


@pytest.mark.slow
def test_captioning_is_exact_while_it_learns_from_its_own_captions(bench: Bench) -> None:
    tiny = "{image_size: 32, width: 8, embedding_size: 16, hidden_size: 32, decoder: attention, ema_decay: 0.9, "
    tiny += "epochs: 1, batch_size: 32, captions: 2, self_critical_epochs: 4, "
    tiny += "train_samples: 64, val_samples: 12, test_samples: 16}"
    (bench.job / "headway.yaml").write_text(f"name: captions\nrecipe: captioning\nseed: 3\nconfig: {tiny}\n")
    code, out, err = bench.verify("-f", bench.job / "headway.yaml", "--steps", 9, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["exact"] is True, out
    assert found["histories"]["records"] == 9


@pytest.mark.slow
def test_an_unseeded_script_is_caught_and_named(bench: Bench) -> None:
    code, out, err = bench.verify("-f", bench.script(UNSEEDED), "--steps", 9)
    assert code == 1, err
    assert out.startswith("NOT exact")
    assert "loss differs from step 1 on" in out
    assert "likely cause: unseeded randomness" in out
    assert "train.py:8: dice = np.random.default_rng()" in out


@pytest.mark.slow
def test_a_job_that_fails_by_itself_is_not_blamed_on_the_resume(bench: Bench) -> None:
    file = bench.script("# headway\nprint('on my way')\nraise SystemExit('no such luck')")
    code, _, err = bench.verify("-f", file)
    assert code == 1
    assert "the job does not run on this machine" in err
    assert "no such luck" in err


@pytest.mark.slow
def test_a_script_that_does_not_use_headway_is_refused(bench: Bench) -> None:
    code, _, err = bench.verify("-f", bench.script("print('hello')"))
    assert code == 2
    assert "does not use headway.start()" in err


@pytest.mark.slow
def test_a_script_without_checkpoints_is_refused(bench: Bench) -> None:
    code, _, err = bench.verify("-f", bench.script("# headway\nprint('hello')"))
    assert code == 2
    assert "wrote no checkpoint" in err
    assert "run.restore" in err


@pytest.mark.slow
def test_too_few_steps_are_refused(bench: Bench) -> None:
    code, _, err = bench.verify("-f", bench.script("# headway"), "--steps", 3)
    assert code == 2
    assert "too few" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_running(bench: Bench, number: signal.Signals) -> None:
    started = bench.job / "started"
    file = bench.script(f"# headway\nimport time\nopen({str(started)!r}, 'w')\ntime.sleep(1000)")
    process = bench.start("-f", file)
    wait_until(started.exists)
    assert len(bench.processes()) >= 2  # the supervisor and its rank
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    bench.assert_nothing_is_left()


# What is found


def test_states_are_compared_to_the_bit() -> None:
    one = {"model": {"w": torch.tensor([1.0, math.nan]), "z": torch.tensor(0.0), "n": torch.tensor(3)}, "lr": 0.1}
    same = {"model": {"w": torch.tensor([1.0, math.nan]), "z": torch.tensor(0.0), "n": torch.tensor(3)}, "lr": 0.1}
    assert list(differences(one, same, 5)) == []
    other = {"model": {"w": torch.tensor([1.5, math.nan]), "z": torch.tensor(-0.0), "n": torch.tensor(4)}, "lr": 0.2}
    found = {difference.part: difference for difference in differences(one, other, 5)}
    assert found.keys() == {"model/w", "model/z", "model/n", "lr"}
    assert found["model/z"].amount == 0.0  # and yet not the same bits
    assert found["model/n"].amount == 1.0
    assert found["lr"].words == "0.1 and 0.2"


def test_a_tensor_of_another_shape_or_none_at_all_is_a_difference() -> None:
    one, other = {"w": torch.zeros(2), "only": torch.zeros(1)}, {"w": torch.zeros(3), "new": torch.zeros(1)}
    words = {difference.part: difference.words for difference in differences(one, other, 1)}
    assert words["w"] == "float32[2] and float32[3]"
    assert words["only"] == "float32[1] and nothing"
    assert words["new"] == "no tensor and float32[1]"


def records(*losses: float, **more: list[float]) -> list[dict[str, Any]]:
    return [
        {"step": step, "time": step * 7.0, "loss": loss, **{name: values[step - 1] for name, values in more.items()}}
        for step, loss in enumerate(losses, start=1)
    ]


def test_metrics_are_compared_step_by_step_and_times_are_not() -> None:
    one, other = records(3, 2, 1), [{**record, "time": 0.0} for record in records(3, 2, 1)]
    assert compare_histories(one, other).first_step is None
    found = compare_histories(one, records(3, 2.5, 1))
    assert (found.first_step, found.names, found.values) == (2, ("loss",), (2, 2.5))
    assert compare_histories(one, records(3, 2)).first_step == 3


def test_a_metric_that_differs_in_any_two_runs_proves_nothing() -> None:
    one, other = records(3, 2, 1, speed=[9, 8, 9]), records(3, 2, 1, speed=[8, 8, 8])
    assert compare_histories(one, other, trusted=2).clocks == ("speed",)
    assert compare_histories(one, other, trusted=2).first_step is None
    assert compare_histories(one, other, trusted=0).first_step == 1


def test_lines_that_draw_unseeded_numbers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import os, random, numpy as np, torch\n"
        "a = np.random.default_rng()\n"
        "b = np.random.default_rng(3)\n"
        "c = os.urandom(4)\n"
        "d = torch.Generator().manual_seed(3)\n"
        "e = random.Random()\n"
        "random.seed()\n"
        "f = iter(range(3))\n"
        "g = random.random() + np.random.rand()\n"
    )
    (tmp_path / "b.py").write_text("this is no python")
    found = find_suspects([("a.py", path), ("b.py", tmp_path / "b.py"), ("c.py", tmp_path / "gone.py")])
    kinds = {int(suspect.where.removeprefix("a.py:")): suspect.kind for suspect in found}
    assert kinds == {2: "unseeded", 3: "own", 4: "unseeded", 5: "own", 6: "unseeded", 7: "unseeded", 8: "iterator"}
    assert found[0].code == "a = np.random.default_rng()"


def compared(first: int | None, largest: float = 0.5) -> CheckpointComparison:
    difference = Difference(part="model/w", step=first, amount=largest) if first else None
    parts = ("model/w",) if first else ()
    return CheckpointComparison(
        steps=(10, 20, 30), tensors=1, largest=largest, where="model/w", differing=parts, first=difference
    )


SUSPECTS = [
    NondeterminismSuspect(where="a:1", code="default_rng()", kind="unseeded"),
    NondeterminismSuspect(where="a:2", code="rng(3)", kind="own"),
]


@pytest.mark.parametrize(
    ("found", "first_metric", "words", "look_at"),
    [
        (compared(10), 1, "unseeded randomness", ["a:1"]),
        (compared(10), None, "unseeded randomness", ["a:1"]),
        (compared(30), 21, "sees other data or random numbers", ["a:2"]),
        (compared(30), 22, "state of the optimizer", ["a:2"]),
        (compared(30), None, "state of the optimizer", ["a:2"]),
    ],
)
def test_where_the_runs_part_tells_why(
    found: CheckpointComparison, first_metric: int | None, words: str, look_at: list[str]
) -> None:
    histories = MetricComparison(records=30, first_step=first_metric)
    cause = likely_cause(found, histories, resumed_from=20, suspects=SUSPECTS)
    assert words in cause.words
    assert [suspect.where for suspect in cause.look_at] == look_at


def test_a_tiny_difference_without_suspects_is_an_operations_own() -> None:
    cause = likely_cause(compared(10, 1e-7), MetricComparison(records=30, first_step=1), resumed_from=20, suspects=[])
    assert "sums in a different order" in cause.words
    assert "exact: true" in cause.fix


# What the runtime does for it


def test_without_the_variables_there_is_no_stretch() -> None:
    assert read_step_limit({}, 1) is None
    assert read_step_limit({"HEADWAY_DIE_AFTER_STEP": "3"}, 2) is None  # the attempt that goes on is not to die
    with pytest.raises(BadInput, match="HEADWAY_STEP_LIMIT=soon is not a number of steps"):
        read_step_limit({"HEADWAY_STEP_LIMIT": "soon"}, 1)


def test_a_stretch_ends_after_its_steps() -> None:
    short = read_step_limit({"HEADWAY_STEP_LIMIT": "3"}, 1)
    assert isinstance(short, StepLimit)
    assert [short.after_step(step, lambda: None) for step in (1, 2, 3)] == [False, False, True]


def test_a_death_is_died_after_the_commit_and_before_the_end() -> None:
    code = (
        "import sys\nfrom headway.training.step_boundary import read_step_limit\n"
        "short = read_step_limit({'HEADWAY_STEP_LIMIT': '4', 'HEADWAY_DIE_AFTER_STEP': '2'}, 1)\n"
        "for step in range(1, 5):\n"
        "    short.before_checkpoint(step)\n"
        "    short.after_step(step, lambda: print('committed at', step, flush=True))\n"
        "print('the end', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == "committed at 2\n"
