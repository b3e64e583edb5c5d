"""Translations are scored by sacrebleu, with its signature, from lists or files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.core.errors import BadInput, MissingExtra
from headway.metrics.files import score_translation
from headway.metrics.translation import score, translation_counts

sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `translation`)")

SYSTEM = ["Ein Hund läuft über die Wiese.", "Zwei Männer spielen Schach.", "Es regnet."]
HUMAN = ["Ein Hund rennt über die Wiese.", "Zwei Männer spielen Schach.", "Es regnet heute stark."]
OTHER = ["Ein Hund läuft auf dem Gras.", "Zwei Herren spielen Schach.", "Es regnet."]


def test_bleu_is_sacrebleus_with_its_signature() -> None:
    ours = score(SYSTEM, HUMAN)
    assert ours["bleu"] == sacrebleu.corpus_bleu(SYSTEM, [HUMAN]).score
    assert ours["chrf"] == sacrebleu.corpus_chrf(SYSTEM, [HUMAN]).score
    assert ours["signature"] == f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert ours["sentences"] == 3


def test_several_translations_of_a_sentence_all_count() -> None:
    ours = score(SYSTEM, [HUMAN, OTHER])
    assert ours["bleu"] == sacrebleu.corpus_bleu(SYSTEM, [HUMAN, OTHER]).score
    assert "nrefs:2" in ours["signature"]


def test_case_and_tokenizer_show_in_the_signature() -> None:
    signature = score(SYSTEM, HUMAN, lowercase=True, tokenizer="char")["signature"]
    assert "case:lc" in signature
    assert "tok:char" in signature


def test_a_perfect_translation_scores_a_hundred() -> None:
    assert score(HUMAN, HUMAN)["bleu"] == pytest.approx(100)


def test_the_counts_of_sentences_sum_to_the_corpus() -> None:
    import numpy as np

    counts = translation_counts(SYSTEM, [HUMAN, OTHER])
    once, twice = np.ones((1, 3)), np.array([[2.0, 1.0, 0.0]])
    assert counts.summed(once)[0] == pytest.approx(score(SYSTEM, [HUMAN, OTHER])["bleu"])
    repeated = [SYSTEM[0], SYSTEM[0], SYSTEM[1]]
    theirs = [[one[0], one[0], one[1]] for one in (HUMAN, OTHER)]
    assert counts.summed(twice)[0] == pytest.approx(score(repeated, theirs)["bleu"])


@pytest.mark.parametrize(
    ("hypotheses", "references", "problem"),
    [
        (SYSTEM[:2], HUMAN, "2 hypotheses, but 3 references"),
        (SYSTEM, [HUMAN, OTHER[:1]], "3 hypotheses, but 1 references in set 2"),
        ([], [], "no sentences"),
        ("ein Hund", HUMAN, "lists of sentences"),
        (SYSTEM, "ein Hund", "lists of sentences"),
    ],
)
def test_lists_out_of_step_are_refused(hypotheses: list[str], references: list[str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        score(hypotheses, references)


def test_an_unknown_tokenizer_is_named_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"no tokenizer 'moses'\n.*13a"):
        score(SYSTEM, HUMAN, tokenizer="moses")


def test_without_sacrebleu_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r"extra \[translation\]"):
        score(SYSTEM, HUMAN)


def test_files_have_a_sentence_on_each_line_however_it_ends(tmp_path: Path) -> None:
    system, human = tmp_path / "system.de", tmp_path / "human.de"
    system.write_bytes("\r\n".join(SYSTEM).encode())
    human.write_bytes(("\n".join(HUMAN) + "\n").encode())
    answer = score_translation(system, human)
    assert {name: answer[name] for name in score(SYSTEM, HUMAN)} == score(SYSTEM, HUMAN)
    assert answer["notes"] == []


def test_a_strange_line_separator_does_not_put_files_out_of_step(tmp_path: Path) -> None:
    system, human = tmp_path / "system.de", tmp_path / "human.de"
    system.write_text("ein\u2028Hund\nzwei Hunde\n", encoding="utf-8")
    human.write_text("ein Hund\nzwei Hunde\n", encoding="utf-8")
    assert score_translation(system, human)["sentences"] == 2


def test_files_of_different_length_are_refused(tmp_path: Path) -> None:
    system, human = tmp_path / "system.de", tmp_path / "human.de"
    system.write_text("ein Hund\n")
    human.write_text("ein Hund\nzwei Hunde\n")
    with pytest.raises(BadInput, match=r"human\.de: 2 lines, but .*system\.de has 1"):
        score_translation(system, human)


def test_empty_lines_are_counted_and_refused_unless_allowed(tmp_path: Path) -> None:
    system, human = tmp_path / "system.de", tmp_path / "human.de"
    system.write_text("ein Hund\n\nzwei Katzen sind da\n")
    human.write_text("ein Hund\nx\nzwei Katzen sind da\n")
    with pytest.raises(BadInput, match=r"1 empty lines: line 2\n.*--allow-empty"):
        score_translation(system, human)
    answer = score_translation(system, human, allow_empty=True)
    assert answer["notes"] == ["1 empty lines were scored as they are"]
