"""The hook in a program's interpreter: it patches a framework on import, and never breaks the program.

The frameworks are small modules of the same names and signatures in a temporary folder; the real ones are in
test_frameworks.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway import integrations
from tests.waiting import wait_until

TRAINER = '''
"""As much of transformers.trainer as its callbacks see; it is strict about what it is given."""
import json, os, time
class TrainerCallback: pass
class Bag:
    def __init__(self, **values): self.__dict__.update(values)
class Handler:
    def __init__(self): self.callbacks = []
class Trainer:
    def __init__(self, output_dir, steps=6, callbacks=(), pause=0.0):
        self.args = Bag(output_dir=output_dir, num_train_epochs=2, max_steps=-1, device="cpu")
        self.state = Bag(global_step=0, max_steps=steps, epoch=0.0)
        self.callback_handler = Handler()
        self.callback_handler.callbacks += callbacks
        self.pause = pause
    def add_callback(self, callback):
        assert isinstance(callback, TrainerCallback)
        self.callback_handler.callbacks.append(callback)
    def call(self, name, **more):
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, name):
                assert getattr(callback, name)(self.args, self.state, self.control, **more) is None
    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        assert resume_from_checkpoint is None or os.path.isdir(resume_from_checkpoint), resume_from_checkpoint
        self.state.global_step = int(resume_from_checkpoint.rpartition("-")[2]) if resume_from_checkpoint else 0
        print("begins at", self.state.global_step, flush=True)
        self.control = Bag(should_save=False, should_training_stop=False, should_evaluate=True)
        self.call("on_train_begin")
        while self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            self.state.global_step += 1
            time.sleep(self.pause)
            self.call("on_step_end")
            open("stepped", "w").close()
            self.call("on_log", logs={"loss": 1 / self.state.global_step, "note": "text", "bad": float("nan")})
            if self.control.should_save:
                self.save()
        self.call("on_train_end")
        return "output"
    def save(self):
        folder = os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        os.makedirs(folder)
        with open(os.path.join(folder, "trainer_state.json"), "w") as file:
            json.dump({"global_step": self.state.global_step}, file)
        self.call("on_save")
'''
PROGRAM = """
from transformers.trainer import Trainer
trainer = Trainer("out", steps={steps}, pause={pause})
print("returned", trainer.train())
print("after", trainer.state.global_step, len(trainer.callback_handler.callbacks))
"""


class Rank:
    """A folder with a program and fake frameworks, and the variables that the supervisor sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "lib/transformers").mkdir(parents=True)
        (folder / "lib/transformers/__init__.py").write_text("")
        (folder / "lib/transformers/trainer.py").write_text(TRAINER)
        self.records: list[dict[str, Any]] = []

    def start(self, program: str, *, path: str | None = None, **env: str) -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(program)
        read, write = os.pipe()
        self._read = read
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(
                [integrations.rank_path() if path is None else path, str(self.folder / "lib")]
            ),
            "HEADWAY_ATTEMPT": "1",
            "HEADWAY_RUN_DIR": str(self.folder / "files"),
            "HEADWAY_CODE_DIR": str(self.folder),
            "HEADWAY_CONTROL_FD": str(write),
            "HEADWAY_CONTROL_INODE": str(os.fstat(write).st_ino),
            **env,
        }
        process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=self.folder,
            env=variables,
            pass_fds=(write,),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(write)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=30)
        with os.fdopen(self._read) as pipe:
            self.records = [json.loads(line) for line in pipe]
        return process.returncode, out, err

    def run(self, program: str, **more: str) -> tuple[int, str, str]:
        return self.end(self.start(program, **more))


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def program(steps: int = 6, pause: float = 0.0) -> str:
    return PROGRAM.format(steps=steps, pause=pause)


def checkpoint(folder: Path, step: int, state: str = "{}") -> Path:
    where = folder / "out" / f"checkpoint-{step}"
    where.mkdir(parents=True)
    (where / "trainer_state.json").write_text(state)
    return where


def test_a_program_runs_as_before_and_reports_steps_and_metrics(rank: Rank) -> None:
    code, out, err = rank.run(program())
    assert (code, out, err) == (0, "begins at 0\nreturned output\nafter 6 1\n", "")
    progress = [record["progress"] for record in rank.records if "progress" in record]
    assert progress[-1]["step"] == progress[-1]["steps"] == 6
    metrics = [record for record in rank.records if "metrics" in record]
    assert metrics[1] == {"metrics": {"loss": 0.5, "step": 2}, "step": 2}  # what is not a finite number is left out


def test_sigterm_saves_after_the_step_and_ends_with_143(rank: Rank) -> None:
    process = rank.start(program(steps=10_000, pause=0.01))
    assert process.stdout is not None
    assert process.stdout.readline() == "begins at 0\n"
    wait_until((rank.folder / "stepped").exists, "a step is done")
    process.send_signal(signal.SIGTERM)
    code, out, err = rank.end(process)
    assert (code, out) == (143, "")
    [saved] = (rank.folder / "out").iterdir()
    assert f"headway: Hugging Face Trainer: saved {saved.relative_to(rank.folder)}\n" in err
    code, out, err = rank.run(program(steps=int(saved.name[11:]) + 2), HEADWAY_ATTEMPT="2")
    assert code == 0
    assert out.startswith(f"begins at {saved.name[11:]}\n")
    assert "continues from out/checkpoint-" in err


def test_a_deadline_saves_and_lets_the_program_go_on_after_the_training(rank: Rank) -> None:
    code, out, _ = rank.run(program(steps=10_000, pause=0.01), HEADWAY_DEADLINE_S="1", HEADWAY_EXPORT_S="0.3")
    assert code == 0
    assert "returned output" in out
    assert {"event": "budget"} in rank.records
    assert len(list((rank.folder / "out").iterdir())) == 1


def test_a_later_attempt_takes_the_last_complete_checkpoint(rank: Rank) -> None:
    checkpoint(rank.folder, 3)
    checkpoint(rank.folder, 20)
    checkpoint(rank.folder, 100, state="")  # cut off by a kill
    (rank.folder / "out/checkpoint-200").mkdir()
    code, out, _ = rank.run(program(steps=22), HEADWAY_ATTEMPT="2")
    assert (code, out.splitlines()[0]) == (0, "begins at 20")
    assert rank.records[0] == {"metrics": {"resume_step": 20}}  # later points of the last attempt's curves are void


def test_checkpoints_of_an_earlier_training_are_not_continued_from(rank: Rank) -> None:
    old = checkpoint(rank.folder, 3)
    os.utime(old / "trainer_state.json", (1, 1))
    assert rank.run(program())[1].splitlines()[0] == "begins at 0"
    _, out, err = rank.run(program(), HEADWAY_ATTEMPT="2")
    assert out.splitlines()[0] == "begins at 0"
    assert "no checkpoint yet: starts from the beginning" in err
    checkpoint(rank.folder, 5)
    assert rank.run(program(), HEADWAY_ATTEMPT="3")[1].splitlines()[0] == "begins at 5"


def test_a_checkpoint_that_the_program_names_is_taken(rank: Rank) -> None:
    first = checkpoint(rank.folder, 2)
    checkpoint(rank.folder, 4)
    named = program().replace("trainer.train()", f"trainer.train(resume_from_checkpoint={str(first)!r})")
    assert rank.run(named, HEADWAY_ATTEMPT="2")[1].splitlines()[0] == "begins at 2"


@pytest.mark.parametrize("env", [{"HEADWAY_INTEGRATIONS": "0"}, {"path": ""}], ids=["switched off", "not on the path"])
def test_without_the_hook_nothing_is_added(rank: Rank, env: dict[str, str]) -> None:
    code, out, err = rank.run(program(), **env)
    assert (code, out, err) == (0, "begins at 0\nreturned output\nafter 6 0\n", "")
    assert rank.records == []


def test_a_program_that_handles_sigterm_keeps_its_handler(rank: Rank) -> None:
    own = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    process = rank.start(own + program(steps=10_000, pause=0.01))
    assert process.stdout is not None
    process.stdout.readline()
    wait_until((rank.folder / "stepped").exists, "a step is done")
    process.send_signal(signal.SIGTERM)
    code, _, err = rank.end(process)
    assert code == 7
    assert "the program handles SIGTERM itself" in err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class TrainerCallback: pass", ""),  # another version of the framework
        ("class Trainer:", "class Renamed:"),
        ("def add_callback(self, callback):", "def add_callback(self):"),
        ("num_train_epochs=2, ", ""),  # fails inside the callback, at the first step
    ],
)
def test_a_framework_that_is_not_as_expected_goes_on_without_the_integration(rank: Rank, old: str, new: str) -> None:
    text = TRAINER.replace(old, new).replace("isinstance(callback, TrainerCallback)", "callback")
    (rank.folder / "lib/transformers/trainer.py").write_text(text)
    wanted = "Renamed" if "Renamed" in new else "Trainer"
    text = (
        program()
        .replace("import Trainer", f"import {wanted} as Trainer")
        .replace(", len(trainer.callback_handler.callbacks)", "")
    )
    code, out, err = rank.run(text)
    assert code == 0, err
    assert "after 6" in out
    assert err.startswith("headway: the integration of ")
    assert err.count("\n") == 1
    assert "HEADWAY_INTEGRATIONS" in err


def test_an_import_error_of_the_framework_is_the_program_s(rank: Rank) -> None:
    (rank.folder / "lib/transformers/trainer.py").write_text("import no_such_module\n")
    program = "try:\n    import transformers.trainer\nexcept ImportError as error:\n    print(error.name)\n"
    assert rank.run(program) == (0, "no_such_module\n", "")


def test_the_sitecustomize_that_ours_hides_is_run(rank: Rank) -> None:
    (rank.folder / "lib/sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    code, out, err = rank.run("import sys, sitecustomize\nprint(sys.theirs, sitecustomize.__file__)\n" + program())
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == " ".join([str(rank.folder / "lib/sitecustomize.py")] * 2)
    assert "after 6 1" in out


def test_a_process_that_a_launcher_starts_reports_through_the_launcher_s_pipe(rank: Rank) -> None:
    (rank.folder / "inner.py").write_text(program())
    launcher = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'inner.py']))\n"
    assert rank.run(launcher)[0] == 0
    assert any(record.get("progress", {}).get("step") == 6 for record in rank.records)


def test_a_descriptor_that_is_another_file_by_now_is_not_written_to(rank: Rank) -> None:
    code, _, _ = rank.run(program(), HEADWAY_CONTROL_INODE="1")
    assert code == 0
    assert rank.records == []


def test_only_rank_zero_reports(rank: Rank) -> None:
    assert rank.run(program(), RANK="1", WORLD_SIZE="2")[0] == 0
    assert rank.records == []
