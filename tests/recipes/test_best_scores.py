"""Scores, without what is noted beside them."""

from __future__ import annotations

from headway.rundir.history import scores_in


def test_what_a_supervisor_notes_of_every_event_is_no_score() -> None:
    event = {"kind": "score", "time": "2026-01-01T00:00:00Z", "attempt": 3, "spent_s": 60.5, "rank": 0, "step": 40}
    assert scores_in({**event, "bleu": 38.6, "chrf": 61}) == {"bleu": 38.6, "chrf": 61.0}
