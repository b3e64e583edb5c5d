from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.data.text import (
    END,
    PAD,
    SPECIAL,
    START,
    UNKNOWN,
    BpeTokenizer,
    Rules,
    WordTokenizer,
    caption_exclusion,
    load_tokenizer,
    normalised,
    pair_exclusion,
    split_words,
)

SENTENCES = [f"the quick brown fox number {n} jumps über den faulen Hund" for n in range(60)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man's t-shirt says 3.5 % off!", ["a", "man's", "t-shirt", "says", "3.5", "off"]),
        ("“Stop,” she said…", ["stop", "she", "said"]),
        ("Don’t  STOP", ["don't", "stop"]),
        ("Ein Mädchen läuft.", ["ein", "mädchen", "läuft"]),
        ("snake_case -dash- 'quoted'", ["snake", "case", "dash", "quoted"]),
        (" \n\t", []),
    ],
)
def test_words_are_split_as_documented(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_a_vocabulary_holds_the_common_words_commonest_first() -> None:
    counts = {"b": 5, "a": 5, "rare": 2, "top": 9}
    tokenizer = WordTokenizer.from_counts(counts, min_count=3)
    assert tokenizer.words == (*SPECIAL, "top", "a", "b")
    assert WordTokenizer.from_counts(counts, min_count=1, max_size=6).words == (*SPECIAL, "top", "a")
    assert tokenizer.encode("Top rare, b.") == [4, UNKNOWN, 6]
    assert tokenizer.decode([START, 4, 6, END, 5, PAD]) == "top b"


def test_a_word_tokenizer_survives_being_saved() -> None:
    tokenizer = WordTokenizer(["ä", "b"])
    loaded = load_tokenizer(tokenizer.to_json())
    assert isinstance(loaded, WordTokenizer)
    assert loaded.words == tokenizer.words
    assert len(loaded) == 6


@given(st.text(min_size=1, max_size=40))
def test_subwords_can_write_any_text(text: str) -> None:
    import unicodedata

    text = unicodedata.normalize("NFC", text).strip()
    assert BPE.decode(BPE.encode(text)) == text


BPE = BpeTokenizer.train(iter(SENTENCES), size=320)


def test_subwords_survive_being_saved_and_have_the_special_ones_first() -> None:
    loaded = load_tokenizer(BPE.to_json())
    assert loaded.encode("the fox") == BPE.encode("the fox")
    assert min(BPE.encode(" ".join(SENTENCES))) > UNKNOWN
    assert len(loaded) == 320
    assert loaded.decode([START, *BPE.encode("the fox"), END, 9, 9]) == "the fox"


def test_the_same_text_gives_the_same_subwords_in_another_process() -> None:
    script = (
        "from headway.data.text import BpeTokenizer\n"
        "lines = [f'the quick brown fox number {n} jumps über den faulen Hund' for n in range(60)]\n"
        "made = BpeTokenizer.train(iter(lines), size=320).to_json()\n"
        "import hashlib; print(hashlib.sha256(made.encode()).hexdigest())"
    )
    import hashlib

    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert other == hashlib.sha256(BPE.to_json().encode()).hexdigest()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"tokenizer": "magic"}', '{"tokenizer": "words", "words": ["a", "a"]}']
)
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        load_tokenizer(text)


@given(st.text(max_size=60))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once
    assert "  " not in once
    assert "\n" not in once


@pytest.mark.parametrize(
    ("text", "flag", "reason"),
    [
        ("A dog runs.", "", None),
        ("", "", "empty caption"),
        (". . .", "", "empty caption"),
        ("Dog", "", "caption too short"),
        ("word " * 61, "", "caption too long"),
        ("A dog runs.", "rejected", "rejected caption"),
        ("A dog runs.", "pre-canned", "pre-canned caption"),
        ("Quality issues are too severe to recognize visual content.", "", "pre-canned caption"),
        ("bad \ud800 text", "", "not UTF-8"),
    ],
)
def test_captions_are_dropped_with_a_reason(text: str, flag: str, reason: str | None) -> None:
    drop = caption_exclusion(text, flag, Rules())
    assert (drop.reason if drop else None) == reason


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a dog", "ein Hund", None),
        ("a", "b", None),
        ("", "ein Hund", "empty sentence"),
        ("a dog", "…", "empty sentence"),
        ("w " * 201, "w " * 201, "sentence too long"),
        ("w " * 30, "w w", "lengths do not match"),
        ("w " * 9, "w", None),
    ],
)
def test_pairs_are_dropped_with_a_reason(source: str, target: str, reason: str | None) -> None:
    drop = pair_exclusion(source, target, Rules())
    assert (drop.reason if drop else None) == reason
