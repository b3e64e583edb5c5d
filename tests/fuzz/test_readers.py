"""Readers of foreign bytes return or say what is wrong, whatever they are given. The long form is `make fuzz`."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz.mutate import mutations
from tests.fuzz.sealed import SEALED
from tests.fuzz.subjects import SUBJECTS

INPUTS = 150
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_no_bytes_whatever_make_a_reader_fail_in_another_way_than_it_says(name: str) -> None:
    for needed in ("torch", "PIL", "pyarrow", "starlette"):
        pytest.importorskip(needed)
    subject = SUBJECTS[name]()
    for sample in subject.samples:
        subject.meets(sample)
    for body in itertools.islice(mutations(subject.samples, seed=1), INPUTS):
        subject.meets(body)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEALED))
def test_files_with_right_checksums_are_refused_or_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("torch", "tokenizers", "pyarrow", "starlette"):
        pytest.importorskip(needed)
    monkeypatch.setenv("COLUMNS", "80")
    subject = SEALED[name]()
    for sample in subject.samples:
        subject.meets(sample)
    for body in itertools.islice(mutations(subject.samples, seed=2), INPUTS // 6):
        subject.meets(body)


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, other = (list(itertools.islice(mutations([b'{"a": [1, 2]}', b"abc"], 5), 60)) for _ in range(2))
    assert one == other
    assert len(set(one)) > 40
