"""A message of a real tool names its failure, shows the line, and says what to type."""

from __future__ import annotations

import pytest

from headway.diagnose.matching import failure_rules, last_lines, match_rules
from tests.diagnose.messages import MESSAGES


@pytest.mark.parametrize(("name", "message"), MESSAGES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(MESSAGES)])
def test_a_real_message_is_recognised(name: str, message: str) -> None:
    noise = ["epoch 3, loss 1.92", "Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
    found = match_rules([*noise, message, "", "rank 0 exited with 1"])
    assert found is not None
    assert found.name == name
    assert found.evidence == message.strip()[:500]
    assert found.cause
    assert found.fix


def test_every_known_failure_is_held_by_a_real_message() -> None:
    untested = {known.name for known in failure_rules()} - {name for name, _ in MESSAGES}
    assert untested <= {"data-not-prepared", "docker-permission", "lease", "no-checkpoint"}
    assert len({name for name, _ in MESSAGES}) > 80


def test_names_are_unique() -> None:
    names = [known.name for known in failure_rules()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "line",
    [
        "epoch 12/40  loss 0.412  2.1 steps/s",
        "headway: attempt 1 (first start); 1 node of 1 process",
        "UserWarning: The default value of the antialias parameter will change",
        "ValueError: the sum of weights must be 1",
        "my-own-program: frobnication failed with code 7",
        "saved checkpoint to /data/out/model.pt",
    ],
)
def test_ordinary_words_name_no_failure(line: str) -> None:
    assert match_rules([line]) is None


def test_what_is_known_of_the_run_is_filled_into_the_command() -> None:
    denied = "403 trainer@p.iam.gserviceaccount.com does not have storage.objects.create access to the object"
    facts = {"bucket": "my-bucket", "service_account": "trainer@p.iam.gserviceaccount.com"}
    found = match_rules([denied], facts)
    assert found is not None
    assert "gs://my-bucket --member=serviceAccount:trainer@p.iam.gserviceaccount.com" in found.fix
    unknown = match_rules([denied])
    assert unknown is not None
    assert "gs://BUCKET" in unknown.fix


def test_a_missing_grant_is_printed_as_the_command_that_gives_it() -> None:
    message = dict(MESSAGES)["kubernetes-forbidden"]
    found = match_rules([message])
    assert found is not None
    assert "--verb=create --resource=pytorchjobs -n ml" in found.fix
    assert "--user=ana@example.com" in found.fix


def test_braces_and_percent_signs_in_a_message_do_no_harm() -> None:
    found = match_rules(["ModuleNotFoundError: No module named 'a' {0} {run} %s"])
    assert found is not None
    assert found.cause.startswith("the Python module a")


def test_last_words_are_the_end_without_empty_lines() -> None:
    assert last_lines(["a", "", "b", "  ", "c"], 2) == ["b", "c"]


def test_a_long_hostile_line_does_not_hold_anything_up() -> None:
    assert match_rules(["a" * 200_000, "0/" * 50_000, "x " * 20_000]) is None
