"""The key `metrics`: names of sources and patterns with named groups."""

from __future__ import annotations

import pytest

from headway.core.errors import BadJob
from headway.core.metric_sources import FILE_SOURCES, OUTPUT_SOURCES, chosen_sources
from headway.spec import Job, dump, loads
from headway.spec.loading import undump

HEAD = "name: own\ncommand: [python, train.py]\n"
PATTERN = "loss[=: ]+(?P<loss>[-+0-9.e]+)"


def job(text: str) -> Job:
    return loads(HEAD + text)


def test_names_and_patterns_are_kept_in_the_plan() -> None:
    own = job(f"metrics: [tensorboard, transformers, tqdm, '{PATTERN}']")
    assert own.metrics == ("tensorboard", "transformers", "tqdm", PATTERN)
    assert dump(own)["metrics"] == ["tensorboard", "transformers", "tqdm", PATTERN]
    assert undump(dump(own)) == own


def test_left_out_it_changes_no_plan_and_an_empty_list_is_another_thing() -> None:
    assert job("").metrics is None
    assert "metrics" not in dump(job(""))
    assert job("metrics: []").metrics == ()
    assert dump(job("metrics: []"))["metrics"] == []
    assert undump(dump(job("metrics: []"))).metrics == ()


@pytest.mark.parametrize(
    ("text", "where", "what", "fix"),
    [
        ("metrics: [tensorbord]", "3:11", "unknown source of metrics 'tensorbord'", "did you mean tensorboard?"),
        ("metrics: [xyzzy]", "3:11", "unknown source of metrics", "write one of tensorboard, wandb"),
        ("metrics: [tqdm, 'loss=(?P<loss>[0-9]']", "3:17", "is not a regular expression", "name each group"),
        ("metrics: ['loss=([0-9.]+)']", "3:11", "has a group without a name", "(?P<loss>"),
        ("metrics: ['loss=[0-9.]+']", "3:11", "or none at all", "(?P<loss>"),
        ("metrics: tqdm", "3:10", "metrics must be a list", "write metrics: [tqdm]"),
        ("metrics: [7]", "3:11", "metrics.0 must be text", ""),
    ],
)
def test_mistakes_are_named_with_their_place_and_what_to_write(text: str, where: str, what: str, fix: str) -> None:
    with pytest.raises(BadJob) as caught:
        job(text)
    (problem,) = caught.value.problems
    assert problem.where == f"job:{where}"
    assert what in problem.what
    assert fix in problem.fix


def test_a_recipe_does_not_take_it() -> None:
    with pytest.raises(BadJob, match="metrics cannot be used together with recipe"):
        loads("name: own\nrecipe: captioning\nmetrics: [tqdm]\n")


def test_sources_are_chosen_by_where_they_are_read() -> None:
    usual = chosen_sources(None)
    assert usual is not None
    assert (usual.files, usual.output, usual.patterns) == (frozenset(FILE_SOURCES), frozenset(OUTPUT_SOURCES), ())
    assert chosen_sources([]) is None
    chosen = chosen_sources(["mlflow", "keras", PATTERN])
    assert chosen is not None
    assert (chosen.files, chosen.output, chosen.patterns) == ({"mlflow"}, {"keras"}, (PATTERN,))
