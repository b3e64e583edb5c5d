"""`--set key=value`: types come from the schema, places from dots, and problems name the override."""

from __future__ import annotations

import pytest

from headway.spec import Accelerator, Secret
from tests.spec.world import Load, Problems

JOB = """\
name: x
recipe: captioning
config: {epochs: 10}
data:
  train: [{source: a}, {source: b, weight: 2}]
resources: {accelerator: T4:1}
"""


def test_overrides_take_their_types_from_the_schema(read: Load) -> None:
    job = read(
        JOB,
        "config.epochs=3",
        "config.lr=1e-4",
        "resources.spot=true",
        "resources.accelerator=A100:2",
        "resources.memory=30GB",
        "data.train.0.weight=2",
        "max_wait=1h",
        "seed=5",
    )
    assert (job.config["epochs"], job.config["lr"], job.seed, job.max_wait) == (3, 1e-4, 5, 3600.0)
    assert (job.resources.spot, job.resources.memory) == (True, 30 * 10**9)
    assert job.resources.accelerator == Accelerator(kind="A100", count=2)
    assert [source.weight for source in job.data.train] == [2.0, 2.0]


def test_text_is_taken_as_it_is_typed(read: Load) -> None:
    job = read(JOB, "export.name=007", "env.A=1e-3", "notify.command=echo: {x} #1", "resources.machine=[odd]")
    assert job.export.name == "007"
    assert job.env == {"A": "1e-3"}
    assert job.notify.command == "echo: {x} #1"
    assert job.resources.machine == "[odd]"


def test_lists_and_mappings_are_typed_as_in_the_file(read: Load) -> None:
    job = read(JOB, "log_to=[wandb, mlflow]", "env={A: 1, B: x}", "setup=[ls, 5]")
    assert job.log_to == ("wandb", "mlflow")
    assert job.env == {"A": "1", "B": "x"}
    assert job.setup == ("ls", "5")


def test_what_is_not_there_yet_is_made(read: Load) -> None:
    text = "name: x\nrecipe: captioning\ndata:\n"
    job = read(text, "data.train.0.source=s", "data.val.0.source=v", "secrets.K=env:K")
    assert [job.data.train[0].source, job.data.val[0].source] == ["s", "v"]
    assert job.secrets == {"K": Secret(ref="env:K")}


def test_a_list_grows_at_its_end(read: Load) -> None:
    assert [source.source for source in read(JOB, "data.train.2.source=c").data.train] == ["a", "b", "c"]


def test_the_last_of_two_overrides_holds(read: Load) -> None:
    assert read(JOB, "seed=1", "seed=2").seed == 2


def test_a_key_can_be_emptied(read: Load) -> None:
    job = read(JOB, "resources.accelerator=null", "data=", "config.clip=null")
    assert job.resources.accelerator is None
    assert job.data.train[0].source == "builtin:scenes"
    assert job.config["clip"] is None


def test_an_override_mends_what_is_wrong_in_the_file(read: Load) -> None:
    assert read("name: x\nscript: no.py\nseed: wrong\n", "seed=3", "script=train.py").seed == 3


def test_references_are_expanded_in_overrides_too(read: Load) -> None:
    assert read(JOB, "outputs=${env:OUT}/runs", env={"OUT": "/data"}).outputs == "/data/runs"


@pytest.mark.parametrize(
    ("setting", "what", "fix"),
    [
        ("config.epochs=x", "config.epochs must be a whole number, not the text 'x'", "write it as in epochs: 1"),
        ("config.epocs=3", "unknown key 'epocs' in config", "did you mean epochs?"),
        ("ouputs=x", "unknown key 'ouputs'", "did you mean outputs?"),
        ("resources.spot=yes", "resources.spot must be true or false", "write spot: true"),
        ("resources.accelerator=T44:1", "unknown accelerator 'T44'", "did you mean T4:1?"),
        ("max_wait=60", "the duration 60 has no unit", "write 60s, 60m or 60h"),
        ("log_to=wandb", "log_to must be a list", "write log_to: [wandb]"),
        ("log_to=[wandb", "log_to must be a list", "write log_to: [wandb]"),
        ("data.train.5.weight=2", "data.train is a list of 2: '5' is not an index of it", "data.train.2 adds one"),
        ("data.train.x.weight=2", "'x' is not an index of it", "count from 0"),
        ("data.train.-1.weight=2", "'-1' is not an index of it", "count from 0"),
        ("name.first=x", "name is a single value: there is no name.first", "write --set name=…"),
        ("seed", "an override must be KEY=VALUE", "write --set config.epochs=3"),
        ("=3", "an override must be KEY=VALUE", "write --set config.epochs=3"),
        ("config..epochs=3", "an override must be KEY=VALUE", "write --set config.epochs=3"),
        ("", "an override must be KEY=VALUE", "write --set config.epochs=3"),
        ("name=", "name must be text, not nothing", "write it as in name: text"),
    ],
)
def test_a_wrong_override_is_one_problem_that_names_it(problems: Problems, setting: str, what: str, fix: str) -> None:
    found = problems(JOB, setting)
    assert list(found) == [f"--set {setting}"]
    assert what in found[f"--set {setting}"].what
    assert fix in found[f"--set {setting}"].fix


def test_an_override_as_deep_as_the_sea_is_refused(problems: Problems) -> None:
    assert len(problems(JOB, f"{'a.' * 5000}a=1")) == 1


def test_problems_of_the_file_and_of_overrides_come_together(problems: Problems) -> None:
    found = problems(f"{JOB}seed: -1\n", "retries=-1", "nonsense")
    assert list(found) == ["7:7", "--set nonsense", "--set retries=-1"]


@pytest.mark.parametrize("setting", ["secrets.KEY=hunter2", "notify.webhook=https://x/hunter2", "env.API_KEY=hunter2"])
def test_a_secret_typed_as_an_override_is_never_repeated(problems: Problems, setting: str) -> None:
    assert "hunter2" not in str(problems(JOB, setting))
