"""The tokens are those of coco-caption's Java tool, and no caption can spoil another one's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics import ptb_tokenizer
from headway.metrics.ptb_tokenizer import tokenize, tokenize_all
from tests.metrics.public_data import coco, needs_coco, tokenised_by_java

CASES = json.loads((Path(__file__).parent / "fixtures" / "ptb_cases.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize(("caption", "tokens"), CASES, ids=[case[0] for case in CASES])
def test_a_hard_caption_has_the_tokens_that_java_gives_it(caption: str, tokens: str) -> None:
    assert " ".join(tokenize(caption)) == tokens


@needs_coco
def test_of_the_captions_of_coco_at_most_one_in_two_thousand_differs_from_java() -> None:
    theirs = tokenised_by_java()
    annotations = coco("captions_val2017.json")["annotations"]
    ours = tokenize_all(annotation["caption"] for annotation in annotations)
    same = sum(theirs[one["id"]] == tokens for one, tokens in zip(annotations, ours, strict=True))
    assert len(annotations) == 25_014
    assert same / len(annotations) >= 0.9995


@pytest.mark.parametrize("line_break", ["\r", "\n", "\r\n", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_a_line_break_in_a_caption_is_a_blank(line_break: str) -> None:
    captions = [f"a dog{line_break}runs", "a cat sleeps"]
    assert tokenize_all(captions) == ["a dog runs", "a cat sleeps"]


def test_a_letter_that_ends_a_caption_loses_its_period_whatever_caption_comes_next() -> None:
    # Java looks into the next line: "vitamin c" before "A man …", "vitamin c." before "two men …".
    assert tokenize("a jar of vitamin C.") == ["a", "jar", "of", "vitamin", "c"]
    assert tokenize("plan B. is next") == ["plan", "b.", "is", "next"]


def test_a_letter_before_a_new_sentence_loses_its_period() -> None:
    assert tokenize("He stands in row C. The rest sit.") == ["he", "stands", "in", "row", "c", "the", "rest", "sit"]


@pytest.mark.parametrize("caption", ["", " ", ".", "...", "?!.", "\n", "😀"])
def test_a_caption_may_have_no_tokens(caption: str) -> None:
    assert tokenize(caption) in ([], ["?!"])


@pytest.mark.parametrize("unit", ["a!", "a,", "a@", "a'", "<a ", "1 1/", ".", "a.", "www.", "(555) ", "A&", "o'a", ":"])
def test_a_monstrous_caption_takes_no_quadratic_time(unit: str) -> None:
    # 20,000 units: a second or so in all where time is linear, hours where it is not
    assert isinstance(tokenize(unit * (20_000 // len(unit))), list)


def test_the_memory_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb_tokenizer, "_ROOM", 10)
    monkeypatch.setattr(ptb_tokenizer, "_PIECES", ptb_tokenizer._Pieces())
    assert tokenize_all(f"word{number}" for number in range(100))[-1] == "word99"
    assert len(ptb_tokenizer._PIECES) <= 10


TRICKY = "A a dog Dog. U.S. no. 5 1/2 can't it's (555) 123-4567 C. The <b x> '90s vs. K. $5 50%"
captions = st.lists(st.text(max_size=8) | st.sampled_from(TRICKY.split(" ")), max_size=8).map(" ".join)


@given(captions)
def test_tokens_are_lower_case_and_have_no_blanks(caption: str) -> None:
    for token in tokenize(caption):
        assert token
        assert " " not in token
        assert token == token.lower()


@given(captions)
def test_remembering_pieces_changes_nothing(caption: str) -> None:
    assert tokenize(caption) == ptb_tokenizer._scan(caption)


@given(st.lists(st.sampled_from(["a", "dog", "runs", "in", "two", "green", "fields", "and", "woods"])))
def test_plain_words_are_their_own_tokens(words: list[str]) -> None:
    assert tokenize(" ".join(words)) == words
