"""A job as plain JSON and back: nothing is lost, nothing is expanded twice, and damage is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadPlan
from headway.spec import (
    Accelerator,
    Budget,
    Cache,
    Cadence,
    Checkpoint,
    Data,
    Export,
    Image,
    Job,
    Mount,
    Notify,
    Phase,
    Resources,
    Secret,
    Source,
    TargetEntry,
    dump,
    from_plain,
    to_plain,
    undump,
    units,
)
from tests.spec.world import Config, Load, Schedule

COUNTS = st.integers(1, 2**62)
AMOUNTS = st.floats(0.001, 1e12)
WORDS = st.text(max_size=8)
NAMES = st.from_regex(r"\A[a-z][a-z0-9]{0,8}\Z")
PATHS = NAMES.map(lambda name: f"/{name}")
CADENCES = (
    st.builds(lambda n: Cadence(seconds=n), AMOUNTS)
    | st.builds(lambda n: Cadence(steps=n), COUNTS)
    | st.builds(lambda n: Cadence(epochs=n), COUNTS)
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(NAMES, ANYTHING, max_size=3)
ACCELERATORS = st.builds(Accelerator, kind=st.sampled_from(units.ACCELERATORS), count=COUNTS)
MAYBE = st.none() | WORDS


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SOURCES = several(
    st.builds(Source, source=PATHS, weight=AMOUNTS, split=maybe(NAMES), limit=maybe(COUNTS), where=MAPPINGS)
)
JOBS = st.builds(
    Job,
    name=NAMES,
    recipe=maybe(NAMES),
    script=maybe(NAMES),
    args=several(WORDS),
    config=MAPPINGS,
    seed=st.integers(0, 2**62),
    data=st.builds(Data, train=SOURCES, val=SOURCES, test=SOURCES),
    outputs=PATHS,
    export=st.builds(Export, to=maybe(PATHS), name=maybe(NAMES)),
    checkpoint=st.builds(Checkpoint, every=maybe(CADENCES), keep_last=COUNTS, keep_every=maybe(CADENCES)),
    phases=several(st.builds(Phase, name=NAMES, epochs=COUNTS, lr=maybe(AMOUNTS), train=several(WORDS), best=MAYBE)),
    init_from=MAYBE,
    exact=st.booleans(),
    resources=st.builds(
        Resources,
        accelerator=maybe(ACCELERATORS),
        machine=MAYBE,
        nodes=COUNTS,
        processes=COUNTS | st.just("auto"),
        cpus=maybe(COUNTS),
        memory=maybe(COUNTS),
        spot=st.booleans(),
    ),
    budget=st.builds(Budget, usd=maybe(AMOUNTS), hours=maybe(AMOUNTS)),
    max_wait=maybe(AMOUNTS),
    retries=COUNTS,
    secrets=st.dictionaries(
        NAMES, st.builds(Secret, ref=st.just("env:X"), as_=st.sampled_from(["env", "file"])), max_size=2
    ),
    log_to=several(st.sampled_from(["mlflow", "tensorboard", "wandb"])),
    env=st.dictionaries(NAMES, WORDS, max_size=2),
    image=st.builds(Image, base=MAYBE, repository=MAYBE, uri=MAYBE),
    requirements=maybe(NAMES),
    setup=several(WORDS),
    cache=st.builds(Cache, dir=MAYBE, size=maybe(COUNTS)),
    mounts=several(st.builds(Mount, at=PATHS, pvc=MAYBE, path=maybe(PATHS), read_only=st.booleans())),
    notify=st.builds(Notify, webhook=st.none() | st.just("env:URL"), command=MAYBE),
    targets=st.dictionaries(NAMES, st.builds(TargetEntry, kind=NAMES, options=MAPPINGS), max_size=2),
)


@given(JOBS)
def test_a_job_survives_being_written_as_json(job: Job) -> None:
    assert undump(json.loads(json.dumps(dump(job)))) == job


def test_a_dump_has_plain_numbers_and_all_defaults(read: Load) -> None:
    plain = dump(
        read(
            "name: x\nscript: train.py\nmax_wait: 1h\nresources: {memory: 30GB, accelerator: T4:2}\n"
            "checkpoint: {every: 500 steps}\nsecrets: {K: {ref: env:K, as: file}}\n"
        )
    )
    assert plain["max_wait"] == 3600.0
    assert plain["resources"]["memory"] == 30_000_000_000
    assert plain["resources"]["accelerator"] == {"kind": "T4", "count": 2}
    assert plain["checkpoint"]["every"] == {"seconds": None, "steps": 500, "epochs": None}
    assert plain["secrets"] == {"K": {"ref": "env:K", "as": "file"}}
    assert plain["retries"] == 3


def test_a_dump_does_not_say_where_the_file_lay(read: Load) -> None:
    job = read("name: x\nscript: train.py\n")
    assert "root" not in dump(job)
    assert undump(dump(job)) == job


def test_what_was_expanded_once_is_not_expanded_again(read: Load) -> None:
    job = read("name: x\nscript: train.py\nenv: {A: '${env:A}'}\n", env={"A": "${env:B} $HOME"})
    assert undump(dump(job)).env == {"A": "${env:B} $HOME"}


def test_files_are_not_looked_for_on_the_machine_that_reads_a_plan() -> None:
    assert undump({"name": "x", "script": "elsewhere.py"}).script == "elsewhere.py"


def test_a_recipes_config_and_a_targets_options_come_back_typed() -> None:
    config = Config(epochs=3, sizes=(1, 2), schedule=Schedule(warmup=5), tags=["a"])
    assert from_plain(json.loads(json.dumps(to_plain(config))), Config) == config


def test_a_bottomless_dump_is_a_bad_plan() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(BadPlan, match="nested too deep"):
        undump({"name": "x", "script": "t.py", "config": deep})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"seed": "x"}, "job.seed: seed must be a whole number"),
        ({"resources": {"memory": "30GB"}}, "job.resources.memory: resources.memory must be a whole number"),
        ({"checkpoint": {"every": "10m"}}, "job.checkpoint.every"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"name": None}, "job.name: name must be text"),
        ({"seed": float("nan")}, "job.seed"),
    ],
)
def test_a_damaged_dump_is_a_bad_plan_that_names_the_place(damage: dict[str, Any], words: str) -> None:
    with pytest.raises(BadPlan, match="fix: headway plan") as caught:
        undump({"name": "x", "script": "t.py", **damage})
    assert words in str(caught.value)
