"""The vocabulary: from training alone, always the same, and read back as it was written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headway.recipes.captioning.vocabulary import END, PAD, SPECIAL, START, UNKNOWN, Vocabulary


def test_words_are_ordered_by_frequency_then_alphabet() -> None:
    words = Vocabulary.of(["b a", "b c", "a c b"], min_count=1, max_words=10)
    assert words.words == (*SPECIAL, "b", "a", "c")


def test_rare_words_and_words_beyond_the_limit_are_unknown() -> None:
    words = Vocabulary.of(["a a a b b c"], min_count=2, max_words=1)
    assert words.words == (*SPECIAL, "a")
    assert words.encode("a b c", max_length=9) == [START, 4, UNKNOWN, UNKNOWN, END]


def test_a_long_caption_is_cut_but_still_ends() -> None:
    words = Vocabulary.of(["a b"], min_count=1, max_words=9)
    assert words.encode("a b a b", max_length=3) == [START, 4, 5, 4, END]


@given(st.lists(st.sampled_from(["red", "star", "a", "above"]), max_size=8))
def test_what_is_encoded_is_decoded_again(caption: list[str]) -> None:
    words = Vocabulary.of(["a red star above"], min_count=1, max_words=9)
    assert words.decode([*words.encode(" ".join(caption), max_length=8), PAD, 4]) == " ".join(caption)


def test_the_files_of_a_bundle_agree_with_each_other() -> None:
    words = Vocabulary.of(["ein Stern über Ä"], min_count=1, max_words=9)
    files = words.files()
    to_id, to_word = json.loads(files["word_to_id.json"]), json.loads(files["id_to_word.json"])
    assert {int(number): word for number, word in to_word.items()} == dict(enumerate(words.words))
    assert all(to_word[str(number)] == word for word, number in to_id.items())
    assert Vocabulary.from_file(files["vocabulary.json"]).words == words.words
