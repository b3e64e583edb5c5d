"""The made-up language: the same every time, one right answer each, and nothing of the test in training."""

from __future__ import annotations

from headway.data.synthetic import phrases


def test_pairs_are_the_same_every_time_and_on_every_machine() -> None:
    assert phrases.pairs("train", 5) == phrases.pairs("train", 9)[:5]
    first = phrases.pairs("train", 1)[0]
    assert (first.source, first.target) == (
        "Does a wolf forget four stones?",
        "Ka ulma gorpnm kva oblisar?",
    )


def test_no_sentence_is_in_two_splits() -> None:
    sources = [{pair.source for pair in phrases.pairs(split, 300)} for split in phrases.SPLITS]
    assert [len(each) for each in sources] == [300, 300, 300]
    assert len(set().union(*sources)) == 900


def test_a_sentence_has_one_translation_and_a_translation_one_meaning() -> None:
    found = [pair for split in phrases.SPLITS for pair in phrases.pairs(split, 2000)]
    assert len({pair.source for pair in found}) == len({(pair.source, pair.target) for pair in found})


def test_training_never_shows_the_combinations_that_the_test_asks_for() -> None:
    assert not any(pair.held_out for pair in phrases.pairs("train", 2000))
    asked = [pair.held_out for pair in phrases.pairs("test", 500)]
    assert 0.1 < sum(asked) / len(asked) < 0.5


def test_the_english_is_english() -> None:
    said = " ".join(f" {pair.source.lower()}" for pair in phrases.pairs("train", 2000))
    assert not any(wrong in said for wrong in (" a apple", " a old", " the the", " two dog ", " an red"))
