"""BLEU, ROUGE-L and CIDEr equal coco-caption's, for any captions and in any order."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import BadInput
from headway.metrics.captions import METRICS, CaptionScorer, Cider, bleu, rouge_l_of, score, score_each
from headway.metrics.ngrams import References
from tests.metrics.public_data import coco, needs_coco

EXPECTED = json.loads((Path(__file__).parent / "fixtures" / "coco_scores.json").read_text(encoding="utf-8"))
HYPOTHESES, REFERENCES = EXPECTED["hypotheses"], EXPECTED["references"]
THEIR_NAMES = {f"bleu_{n}": f"Bleu_{n}" for n in range(1, 5)} | {"rouge_l": "ROUGE_L", "cider": "CIDEr"}

words = st.sampled_from(["a", "the", "dog", "cat", "runs", "sleeps", "on", "in", "grass"])
caption = st.lists(words, max_size=9).map(" ".join)
pictures = st.lists(st.tuples(caption, st.lists(caption, min_size=1, max_size=4)), min_size=1, max_size=6)


def test_the_scores_of_made_up_captions_are_those_of_pycocoevalcap() -> None:
    ours = score(HYPOTHESES, REFERENCES, tokenized=True)
    assert tuple(ours) == METRICS
    assert ours == pytest.approx(EXPECTED["corpus"], abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_scores_of_each_picture_are_those_of_pycocoevalcap(metric: str) -> None:
    ours = score_each(HYPOTHESES, REFERENCES, tokenized=True)[metric]
    assert ours == pytest.approx(EXPECTED["each"][metric], abs=1e-9)


@needs_coco
@pytest.mark.parametrize("tokenized", [False, True])
def test_the_public_results_on_coco_score_what_the_java_tools_gave_them(tokenized: bool) -> None:
    known = coco("reference_fakecap126.json")
    names = list(known["per_image"])
    gts, res = (known["gts_ptb"], known["res_ptb"]) if tokenized else (known["gts_raw"], known["res_raw"])
    hypotheses = [_text(res[name]) for name in names]
    scores = CaptionScorer([list(map(_text, gts[name])) for name in names], tokenized=tokenized).measure(hypotheses)
    each, corpus = scores.each(), scores.corpus()
    for ours, theirs in THEIR_NAMES.items():
        assert corpus[ours] == pytest.approx(known["scores"][theirs], abs=1e-6)
        assert each[ours] == pytest.approx([known["per_image"][name][theirs] for name in names], abs=1e-6)


def _text(given: object) -> str:
    if isinstance(given, list):
        return _text(given[0])
    return str(given["caption"]) if isinstance(given, dict) else str(given)


@given(pictures)
def test_scores_stay_within_their_bounds(given: list[tuple[str, list[str]]]) -> None:
    scores = score_each([mine for mine, _ in given], [theirs for _, theirs in given], tokenized=True)
    for metric, values in scores.items():
        top = 10 if metric == "cider" else 1
        assert all(0 <= value <= top + 1e-9 for value in values), metric


@given(pictures, st.randoms(use_true_random=False))
def test_neither_the_order_of_pictures_nor_that_of_references_matters(
    given: list[tuple[str, list[str]]], shuffler: random.Random
) -> None:
    mixed = [(mine, shuffler.sample(theirs, len(theirs))) for mine, theirs in given]
    shuffler.shuffle(mixed)
    before = score([mine for mine, _ in given], [theirs for _, theirs in given], tokenized=True)
    after = score([mine for mine, _ in mixed], [theirs for _, theirs in mixed], tokenized=True)
    assert after == pytest.approx(before, abs=1e-9)


@given(pictures)
def test_the_plain_definitions_give_the_same_numbers(given: list[tuple[str, list[str]]]) -> None:
    """BLEU and CIDEr once more, as slowly as they are written down."""
    hypotheses, references = [mine for mine, _ in given], [theirs for _, theirs in given]
    ours = score(hypotheses, references, tokenized=True)
    assert [ours[f"bleu_{n}"] for n in range(1, 5)] == pytest.approx(plain_bleu(hypotheses, references), abs=1e-9)
    assert ours["cider"] == pytest.approx(plain_cider(hypotheses, references), abs=1e-9)


@given(pictures)
def test_bleu_alone_is_the_bleu_of_all_scores(given: list[tuple[str, list[str]]]) -> None:
    hypotheses, references = [mine for mine, _ in given], [theirs for _, theirs in given]
    alone, all_scores = bleu(hypotheses, references, tokenized=True), score(hypotheses, references, tokenized=True)
    assert alone == {name: value for name, value in all_scores.items() if name.startswith("bleu")}


def test_bleu_alone_refuses_what_all_scores_refuse() -> None:
    with pytest.raises(BadInput, match="1 hypotheses for 2 pictures"):
        bleu(["a"], [["a"], ["b"]])
    with pytest.raises(BadInput, match="picture 1 has no references"):
        bleu(["a", "b"], [["a"], []])
    assert bleu(HYPOTHESES, REFERENCES, tokenized=True)["bleu_4"] == pytest.approx(EXPECTED["corpus"]["bleu_4"])


def grams(caption: str, n: int) -> dict[tuple[str, ...], int]:
    tokens, counts = caption.split(), dict[tuple[str, ...], int]()
    for i in range(len(tokens) - n + 1):
        counts[tuple(tokens[i : i + n])] = counts.get(tuple(tokens[i : i + n]), 0) + 1
    return counts


def plain_bleu(hypotheses: list[str], references: list[list[str]]) -> list[float]:
    length = sum(len(mine.split()) for mine in hypotheses)
    closest = sum(
        min((abs(len(r.split()) - len(mine.split())), len(r.split())) for r in theirs)[1]
        for mine, theirs in zip(hypotheses, references, strict=True)
    )
    product, scores = 1.0, []
    for n in range(1, 5):
        right = total = 0
        for mine, theirs in zip(hypotheses, references, strict=True):
            for gram, count in grams(mine, n).items():
                right += min(count, max(grams(r, n).get(gram, 0) for r in theirs))
                total += count
        product *= (right + 1e-15) / (total + 1e-9)
        scores.append(product ** (1 / n))
    ratio = (length + 1e-15) / (closest + 1e-9)
    return [value * (math.exp(1 - 1 / ratio) if ratio < 1 else 1) for value in scores]


def plain_cider(hypotheses: list[str], references: list[list[str]]) -> float:
    def vector(caption: str, n: int) -> dict[tuple[str, ...], float]:
        return {
            gram: count * (math.log(len(references)) - math.log(max(1, frequency[gram])))
            for gram, count in grams(caption, n).items()
        }

    frequency = dict.fromkeys((g for n in range(1, 5) for one in hypotheses for g in grams(one, n)), 0)
    for theirs in references:
        for gram in {g for n in range(1, 5) for one in theirs for g in grams(one, n)}:
            frequency[gram] = frequency.get(gram, 0) + 1
    total = 0.0
    for mine, theirs in zip(hypotheses, references, strict=True):
        for one in theirs:
            gap = max(0, len(mine.split()) - 1) - max(0, len(one.split()) - 1)
            for n in range(1, 5):
                h, r = vector(mine, n), vector(one, n)
                norm = math.hypot(*h.values()) * math.hypot(*r.values())
                dot = sum(min(h[g], r[g]) * r[g] for g in h.keys() & r.keys())
                total += (dot / norm if norm else 0) * math.exp(-(gap**2) / 72) / 4 / len(theirs)
    return 10 * total / len(hypotheses)


def test_captions_equal_to_their_references_score_the_maximum() -> None:
    captions = ["a red kite above the harbour", "two goats stand on a hill", "the clock tower at night is lit"]
    scores = score(captions, [[one] for one in captions], tokenized=True)
    assert scores.pop("cider") == pytest.approx(10)
    assert all(value == pytest.approx(1, abs=1e-6) for value in scores.values())


def test_captions_without_a_word_in_common_score_nothing() -> None:
    scores = score(["aa bb cc dd", "ee ff gg hh"], [["x y z w"], ["u v t s"]], tokenized=True)
    assert all(value == pytest.approx(0, abs=1e-6) for value in scores.values())


def test_untokenised_captions_are_tokenised_first() -> None:
    raw = score(["A man's dog, asleep."], [["a man's dog is asleep!"]])
    assert raw == score(["a man 's dog asleep"], [["a man 's dog is asleep"]], tokenized=True)


def test_a_scorer_gives_the_same_again_and_again() -> None:
    scorer = CaptionScorer(REFERENCES, tokenized=True)
    first = scorer.score(HYPOTHESES)
    scorer.score([f"{one} and something never seen" for one in HYPOTHESES])
    assert scorer.score(HYPOTHESES) == first


def test_cider_rewards_any_number_of_hypotheses_for_any_pictures() -> None:
    cider = Cider(REFERENCES)
    whole = cider.scores(HYPOTHESES)
    order = [3, 3, 0, 15, 9]
    some = cider.scores([HYPOTHESES[number] for number in order], picture=order)
    assert some.tolist() == pytest.approx(whole[order].tolist())
    better, worse = cider.scores(["a baker holds a tray of bread", "a baker"], picture=[8, 8])
    assert better > worse


def test_a_hypothesis_for_every_picture_is_asked_for() -> None:
    with pytest.raises(BadInput, match="1 hypotheses for 2 pictures"):
        score(["a"], [["a"], ["b"]])
    with pytest.raises(BadInput, match="between 0 and 1"):
        Cider([["a"], ["b"]]).scores(["a"], picture=[2])


def test_a_picture_without_references_is_refused() -> None:
    with pytest.raises(BadInput, match="picture 1 has no references"):
        score(["a", "b"], [["a"], []])
    with pytest.raises(BadInput, match="no references to score against"):
        score([], [])


def test_one_text_is_not_taken_for_a_list_of_captions() -> None:
    with pytest.raises(BadInput, match="list of captions"):
        score("a dog", [["a dog"]])
    with pytest.raises(BadInput, match="list of captions"):
        score(["a dog"], ["a dog"])


def test_the_mark_between_captions_may_stand_in_one() -> None:
    strange = score(["a \0 dog", "b"], [["a \0 dog"], ["b"]], tokenized=True)
    assert strange["bleu_1"] == pytest.approx(1, abs=1e-6)


def test_memory_grows_with_the_captions_not_with_their_square() -> None:
    def numbers(pictures: int) -> int:
        made = random.Random(7)
        vocabulary = [f"w{number}" for number in range(500)]
        groups = [[" ".join(made.choices(vocabulary, k=10)) for _ in range(3)] for _ in range(pictures)]
        index = References(groups)
        arrays = [value for cells in index.cells for value in (cells.keys, cells.most, cells.entries, cells.counts)]
        return sum(array.nbytes for array in [*arrays, *index.vocabulary.tables])

    assert numbers(800) < 4.4 * numbers(200)


def test_rouge_takes_precision_and_recall_from_different_references() -> None:
    precise, complete = "a dog on the big green grass", "dog"
    both = rouge_l_of("dog cat", [precise, complete])
    assert both == pytest.approx((1 + 1.44) * 0.5 * 1.0 / (1.0 + 1.44 * 0.5))


@given(caption, caption)
def test_the_common_subsequence_is_the_longest(one: str, other: str) -> None:
    a, b = one.split(" "), other.split(" ")
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    longest = int(table[-1, -1])
    precision, recall = longest / len(a), longest / len(b)
    expected = (1 + 1.44) * precision * recall / (recall + 1.44 * precision) if longest else 0.0
    assert rouge_l_of(one, [other]) == pytest.approx(expected)
