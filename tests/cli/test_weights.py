"""Every run has its weights: `export --as pth|safetensors` and `pull --as pth`, with or without a recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Headway, Said

pytest.importorskip("torch")
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.torch]

TWO_MODELS = """\
import headway, torch
run = headway.start()
maker, critic = run.place(torch.nn.Linear(2, 3)), run.place(torch.nn.Linear(3, 1))
optimizer = torch.optim.Adam([*maker.parameters(), *critic.parameters()], lr=0.1)
batches = [torch.ones(4, 2)] * 3
run.restore(maker=maker, critic=critic, optimizer=optimizer, data=batches)
for epoch in run.epochs(2):
    for x in run.steps(batches):
        run.step(critic(maker(x)).square().mean(), optimizer)
    run.score({"accuracy": 0.5 - epoch / 10}, best="accuracy")
run.finish()
"""
SAVES_FILES = """\
import pathlib, torch
from safetensors.torch import save_file
model = torch.nn.Linear(2, 1)
pathlib.Path("out").mkdir()
optimizer = torch.optim.Adam(model.parameters())
state = {"epoch": 3, "model_state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(state, "out/last.pth")
torch.save(model, "out/pickled.pt")
save_file({"w": torch.ones(2)}, "out/adapter.safetensors")
"""


def trained(headway: Headway, script: str) -> None:
    Path("train.py").write_text(script)
    Path("headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    done = headway("run")
    assert done.code == 0, done.err


def fix_of(said: Said) -> list[str]:
    """The words of the command that an error says to type next."""
    found = re.search(r"headway (export|pull|init)[\w \-./]*", said.err)
    assert found, said.err
    return found[0].split()[1:]


def test_a_script_with_two_models_gives_the_weights_of_each_checkpoint(headway: Headway) -> None:
    trained(headway, TWO_MODELS)
    made = json.loads(headway("export", "last", "--as", "pth", "--to", "pth", "--json").out)
    assert set(made["files"]) == {"best.pth", "job_state_dict.pth", "job_config.json"}
    best = torch.load("pth/best.pth", weights_only=True)
    assert set(best) == {"maker_state_dict", "critic_state_dict", "step", "epoch", "scores"}
    assert (best["step"], best["scores"]) == (3, {"accuracy": 0.5})
    assert headway("export", "last", "--as", "safetensors", "--to", "st").code == 0
    tensors = load_file("st/job.safetensors")
    assert torch.equal(tensors["maker.weight"], best["maker_state_dict"]["weight"])
    assert headway("export", "last", "--as", "pth", "--checkpoint", "last", "--to", "newest").code == 0
    newest = torch.load("newest/last.pth", weights_only=True)
    assert newest["step"] == 6
    assert not torch.equal(newest["maker_state_dict"]["weight"], best["maker_state_dict"]["weight"])
    # What the other verbs refuse leads to a command that works.
    for verb in (["serve", "last"], ["predict", "last", "x"], ["export", "last"], ["eval", "last"]):
        refused = headway(*verb)
        assert refused.code == 2
        assert headway(*fix_of(refused)).code == 0


def test_a_program_that_saves_files_gives_them_in_either_format(headway: Headway) -> None:
    trained(headway, SAVES_FILES)
    pulled = headway("pull", "last", "--as", "pth", "--to", "pth")
    assert pulled.code == 0
    assert sorted(path.name for path in Path("pth/out").iterdir()) == ["adapter.pth", "last.pth", "pickled.pt"]
    assert Path("pth/out/last.pth").read_bytes() == Path("out/last.pth").read_bytes(), "a file of torch is not changed"
    assert torch.load("pth/out/adapter.pth", weights_only=True)["w"].tolist() == [1, 1]
    exported = headway("export", "last", "--as", "safetensors", "--to", "st")
    assert "out/pickled.pt is left out: not a file of plain weights" in exported.err
    saved = torch.load("out/last.pth", weights_only=True)["model_state_dict"]
    assert torch.equal(load_file("st/out/last.safetensors")["weight"], saved["weight"])
    compared = headway("compare", "last", "last")
    assert "headway eval" not in compared.out, "it would be refused"


def test_a_run_without_weights_says_what_it_saved_and_how_to_get_it(headway: Headway) -> None:
    trained(headway, "import pathlib; pathlib.Path('model.npz').write_bytes(b'numbers')")
    refused = headway("export", "last", "--as", "pth")
    assert "it saved model.npz" in refused.err
    assert headway(*[{"RUN": "last"}.get(word, word) for word in fix_of(refused)], "--to", "got").code == 0
    assert Path("got/files/workdir/model.npz").read_bytes() == b"numbers"
