"""How a script resumes is known before it runs, by a look at its sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.plan import BEGINNING, BY_FRAMEWORK, BY_SCRIPT, EXACT, KERAS, LIGHTNING, TRANSFORMERS, UNKNOWN, Plan
from headway.packaging.code import archive_path
from headway.packaging.resume_evidence import integrated, kind_of, resume_kind
from headway.planning import plan
from headway.spec import Job

TRAINER = """
from transformers import Trainer, TrainingArguments
trainer = Trainer(model=model, args=TrainingArguments("out", save_steps=100, save_total_limit=2))
trainer.train({how})
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import headway\nrun = headway.start()\n", EXACT),
        ("from headway import start\nrun = start()\n", EXACT),
        (TRAINER.format(how=""), TRANSFORMERS),
        (TRAINER.format(how="resume_from_checkpoint=True"), TRANSFORMERS),
        ("from trl import SFTTrainer\nSFTTrainer(model).train()\n", TRANSFORMERS),
        ("from transformers import AutoModel\ntorch.save(AutoModel.from_pretrained('x'), 'y')\n", BEGINNING),
        ("import lightning as L\nL.Trainer().fit(model)\n", LIGHTNING),
        ("import pytorch_lightning as pl\npl.Trainer().fit(model)\n", LIGHTNING),
        ("from lightning.fabric import Fabric\n", BEGINNING),
        ("from tensorflow import keras\nmodel = keras.Sequential()\nmodel.fit(x, y)\n", KERAS),
        ("import tensorflow as tf\ntf.linalg.svd(x)\n", BEGINNING),
        ("from sklearn.svm import SVC\nSVC().fit(x, y)\n", BEGINNING),
        ("from transformers.trainer_utils import get_last_checkpoint\n", BY_SCRIPT),
        ("import torch\nmodel.load_state_dict(torch.load('model.pt'))\n", BY_SCRIPT),
        ("import torch\ntorch.save(model.state_dict(), 'models/model.pt')\n", BEGINNING),
        ("trainer.fit(model, ckpt_path='last')\n", BY_SCRIPT),
        ("ckpt_path = 'out/model.pt'\ntorch.save(model, ckpt_path)\n", BEGINNING),
        ("model.load_weights('weights.h5')\n", BY_SCRIPT),
        ("model.fit(x, callbacks=[keras.callbacks.BackupAndRestore('backup')])\n", BY_SCRIPT),
        ("checkpoint = tf.train.Checkpoint(model=model)\n", BY_SCRIPT),
        ("import orbax.checkpoint as ocp\n", BY_SCRIPT),
        ("parser.add_argument('--resume', action='store_true')\n", BY_SCRIPT),
        ("import os\nout = os.environ['HEADWAY_RUN_DIR']\n", BY_SCRIPT),
        ("import pickle\npickle.dump(state, f)\nstate = pickle.load(f)\n", BY_SCRIPT),
        ("import pickle\nrows = pickle.load(f)\n", BEGINNING),
        ("import numpy as np\nnp.savez('x', **params)\nparams = np.load('x.npz')\n", BY_SCRIPT),
        ("from flax import serialization\nserialization.to_bytes(x)\nserialization.from_bytes(x, y)\n", BY_SCRIPT),
        ("import equinox as eqx\neqx.tree_serialise_leaves(f, m)\neqx.tree_deserialise_leaves(f, m)\n", BY_SCRIPT),
        ('"""Does not resume."""\n# torch.load is for later\nprint(1)\n', BEGINNING),
        ("def broken(:\n    torch.load('model.pt')\n", BY_SCRIPT),  # for another Python than ours
        ("", BEGINNING),
    ],
)
def test_what_a_script_says_of_itself_decides(text: str, kind: str) -> None:
    assert resume_kind("train.py", (), {"train.py": text}) == kind


EVALUATES_ITS_BEST = """
import torch, util
def train():
    for x, y in data:
        loss(model(x), y).backward()
def test(path):
    model.load_state_dict(torch.load(path))
{before}
for epoch in range(9):
    model.train()
    train()
    torch.save(model.state_dict(), "best.pt")
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("", "test('best.pt')", BEGINNING),
        ("", "test('x.pt')\nwith open('best.pt', 'rb') as f:\n    model = torch.load(f)", BEGINNING),
        ("", "test('x.pt')\nutil.restore(model)", BEGINNING),
        ("model.train()\nmodel.load_state_dict(torch.load('last.pt'))", "test('best.pt')", BY_SCRIPT),
        ("if os.path.exists('last.pt'):\n    util.restore(model)", "test('best.pt')", BY_SCRIPT),
        ("parser.add_argument('--load_checkpoint')", "test('best.pt')", BY_SCRIPT),
        ("", "test('best.pt')\nsubprocess.run(['python', 'more.py'])", BY_SCRIPT),  # who knows
        ("callbacks = {'start': lambda: test('last.pt')}", "", BY_SCRIPT),  # nor here
    ],
)
def test_a_program_that_loads_only_to_evaluate_its_best_weights_does_not_resume(
    before: str, after: str, kind: str
) -> None:
    text = EVALUATES_ITS_BEST.format(before=before, after=after)
    util = "import torch\ndef restore(model):\n    model.load_state_dict(torch.load('x.pt'))\n"
    assert resume_kind("train.py", (), {"train.py": text, "util.py": util if "util." in before + after else ""}) == kind


@pytest.mark.parametrize(
    ("job", "kinds"),
    [
        ({}, (TRANSFORMERS, LIGHTNING, KERAS)),
        ({"env": {"HEADWAY_INTEGRATIONS": "0"}}, ()),
        ({"resources": {"nodes": 1, "processes": "auto", "accelerator": {"kind": "T4", "count": 1}}}, BY_FRAMEWORK),
        ({"resources": {"nodes": 2}}, (TRANSFORMERS, LIGHTNING)),  # Keras' integration is for one process
        ({"resources": {"processes": 2}}, (TRANSFORMERS, LIGHTNING)),
        ({"resources": {"processes": "auto", "accelerator": {"kind": "T4", "count": 4}}}, (TRANSFORMERS, LIGHTNING)),
    ],
)
def test_an_integration_counts_where_it_is_on(job: dict[str, Any], kinds: tuple[str, ...]) -> None:
    assert integrated(job) == kinds
    without = resume_kind("train.py", (), {"train.py": TRAINER.format(how="")}, integrated(job))
    assert without == (TRANSFORMERS if kinds else BEGINNING)


def test_modules_that_the_script_imports_count_and_others_do_not() -> None:
    sources = {
        "train.py": "from lib.loop import go\ngo()\n",
        "lib/__init__.py": "",
        "lib/loop.py": "from . import saving\n",
        "lib/saving.py": "import torch\ntorch.save(1, 'x')\n",
        "predict.py": "import torch\ntorch.load('x')\n",
        "exact.py": "import headway\nheadway.start()\n",
    }
    assert resume_kind("train.py", (), sources) == BEGINNING
    assert resume_kind("train.py", (), {**sources, "lib/saving.py": "import torch\ntorch.load('x')\n"}) == BY_SCRIPT
    assert resume_kind("exact.py", (), sources) == EXACT


def test_arguments_and_files_that_are_named_count() -> None:
    sources = {"train.py": "import yaml\n", "conf/a.yaml": "resume_from_checkpoint: true\n", "b.yaml": "epochs: 3\n"}
    assert resume_kind("train.py", ("--config", "b.yaml"), sources) == BEGINNING
    assert resume_kind("train.py", ("--config=conf/a.yaml",), sources) == BY_SCRIPT
    assert resume_kind("train.py", ("--resume",), sources) == BY_SCRIPT
    assert resume_kind("train.py", ("--ckpt_path", "last"), sources) == BY_SCRIPT


def test_a_script_that_starts_others_may_use_any_source() -> None:
    sources = {"train.py": "import subprocess\nsubprocess.run(['x'])\n", "real.py": "torch.load('x')\n"}
    assert resume_kind("train.py", (), sources) == BY_SCRIPT
    assert resume_kind("go.sh", (), {"go.sh": "python -m nemo.train\n"}) == BEGINNING
    assert resume_kind("go.sh", (), {"go.sh": "python -m nemo.train --resume-if-exists\n"}) == BY_SCRIPT


def test_a_plan_records_it_and_an_older_one_is_judged_by_its_recorded_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("print(1)\n")
    made = plan(Job(name="t", script="train.py", root=str(tmp_path), outputs=str(tmp_path / "runs")))
    assert made.resume == BEGINNING
    assert Plan.from_json(made.to_json()) == made
    old = Plan.from_json(replace(made, resume="").to_json())
    assert '"resume"' not in old.to_json()  # and so its hash is what it was
    assert (old.resume, kind_of(old)) == (UNKNOWN, BEGINNING)
    archive_path(made.code.sha256).unlink()
    assert kind_of(old) == UNKNOWN
