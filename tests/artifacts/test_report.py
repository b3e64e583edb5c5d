"""The report: one file that needs no network, tells what was measured, and can be trusted with any text."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.artifacts.evaluate import Evaluation, Example, extremes
from headway.artifacts.report import as_job_file, metric_name, write_report
from headway.spec import loads
from tests.recipes.folders import captioning_job, plan_of

PNG = b"\x89PNG\r\n\x1a\n not looked at"
FOUND: dict[str, Any] = {
    "run": "captions-1",
    "recipe": "captioning",
    "split": "test",
    "data": "builtin:scenes (test)",
    "count": 800,
    "checkpoint": "best",
    "step": 20,
    "metrics": {"bleu_4": 0.875, "exact": 0.75, "exact_seen": 1.0, "exact_held_out": 0.5},
    "groups": {"held_out": {"bleu_4": 0.75, "exact": 0.5}, "seen": {"bleu_4": 1.0, "exact": 1.0}},
    "validation": {"bleu_4": 0.9},
    "seconds": 1.5,
    "environment": {"torch": "2.13.0"},
}
EXAMPLES = [
    Example(picture=PNG, answer="a red star", expected=("a red star",), right=True, group="held_out"),
    Example(picture=PNG, answer="a <script>", expected=("a blue & green ring",), right=False, group="held_out"),
]
MEASURED = Evaluation(data="", count=2, metrics={}, examples=EXAMPLES)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with two attempts, of which the second did some steps again."""
    folder = tmp_path / "captions-1"
    for name in ("metrics", "events"):
        (folder / name).mkdir(parents=True)
    (folder / "plan.json").write_text(plan_of(captioning_job(epochs=7)).to_json())
    first = [{"resume_step": 0}, *({"step": n, "epoch": 0, "time": n, "loss": 3 / n} for n in range(1, 13))]
    second = [{"resume_step": 10}, *({"step": n, "epoch": 0, "time": n, "loss": 3 / n} for n in range(11, 21))]
    second += [{"step": n, "epoch": 1, "time": n, "bleu_4": n / 40, "exact": n / 50, "cider": 3.0} for n in (10, 20)]
    events = {
        1: [{"kind": "attempt", "time": 1000.0}, {"kind": "checkpoint", "time": 1100.0, "step": 10}],
        2: [
            {"kind": "attempt", "time": 5000.0},
            {"kind": "ended", "time": 5030.5, "state": "finished", "reason": "", "exit_code": 0},
        ],
    }
    for attempt, records in ((1, first), (2, second)):
        (folder / "metrics" / f"a000{attempt}-0000001.jsonl").write_text(lines(records))
        (folder / "events" / f"a000{attempt}-0000001.jsonl").write_text(lines(events[attempt]))
    return folder


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


class Page(HTMLParser):
    """Tags that are opened are closed, and what is in them is kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_report_json_says_what_was_found_and_how_the_training_went(run: Path) -> None:
    told = write_report(str(run), FOUND, MEASURED)
    assert told == json.loads((run / "report.json").read_text())
    assert told["metrics"] == FOUND["metrics"]
    training = told["training"]
    assert training == {
        "seconds": 130.5,  # what lies between two attempts is not training
        "attempts": 2,
        "ranks": 1,
        "steps": 20,
        "checkpoints": 1,
        "state": "finished",
    }


def test_the_supervisors_count_of_time_goes_before_the_clock_on_the_wall(run: Path) -> None:
    (run / "events" / "a0003-0000001.jsonl").write_text(lines([{"kind": "attempt", "time": 9e9, "spent_s": 77.0}]))
    assert write_report(str(run), FOUND)["training"]["seconds"] == 77.0


def test_the_time_of_a_host_that_was_lost_is_in_it(run: Path) -> None:
    lost = {"attempt": 2, "holder": None, "host": "far", "boot": "b", "pid": 1, "started": "1", "beat": 9}
    (run / "lease.json").write_text(json.dumps({**lost, "spent_s": 90.0}))
    assert write_report(str(run), FOUND)["training"]["seconds"] == 90.0


def test_the_page_shows_metrics_curves_pictures_and_how_to_do_it_again(run: Path) -> None:
    write_report(str(run), FOUND, MEASURED)
    page = Page((run / "report.html").read_text())
    for words in ("captions-1", "50.0 %", "100.0 %", "0.875", "2 min 10 s", "in 2 attempts", "a red star", "torch"):
        assert words in page.text
    assert f"headway run --plan {run}/plan.json" in page.text
    assert "epochs: 7" in page.text
    assert sum(tag == "svg" for tag, _ in page.found) == 3  # loss, scores between 0 and 1, CIDEr
    marks = [attrs["class"] for tag, attrs in page.found if tag == "figure" and "class" in attrs]
    assert marks == ["right", "wrong"]


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    write_report(str(run), FOUND, MEASURED)
    text = (run / "report.html").read_text()
    page = Page(text)
    for tag, attrs in page.found:
        assert tag not in ("script", "link", "iframe", "object")
        for name in ("src", "href"):
            assert (attrs.get(name) or "data:").startswith("data:")
    assert "url(" not in text
    assert "@import" not in text
    images = [attrs["src"] or "" for tag, attrs in page.found if tag == "img"]
    assert [base64.b64decode(source.partition(",")[2]) for source in images] == [PNG, PNG]


def test_what_a_model_says_cannot_break_the_page(run: Path) -> None:
    write_report(str(run), FOUND, MEASURED)
    page = Page((run / "report.html").read_text())
    assert "a <script>" in page.text
    assert "a blue & green ring" in page.text


def test_a_run_without_curves_or_examples_still_gets_a_page(run: Path) -> None:
    for path in (run / "metrics").iterdir():
        path.unlink()
    write_report(str(run), FOUND)
    assert "Training" not in Page((run / "report.html").read_text()).text


def test_the_page_holds_metrics_against_the_baseline_and_says_what_it_cost(run: Path) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["price"] = {"usd_per_hour": 36.0, "spot_usd_per_hour": 12.0, "ceiling_usd": 5.0, "expected_usd": 1.5}
    (run / "plan.json").write_text(json.dumps(plan))
    told = write_report(str(run), {**FOUND, "baseline": {"words": "guesses", "metrics": {"exact": 0.125}}}, MEASURED)
    assert told["cost"] == {"usd": 1.305, "budget_usd": 5.0, "expected_usd": 1.5, "target": "local"}
    page = Page((run / "report.html").read_text())
    for words in ("12.5 %", "it guesses.", "$1.30 on local ($1.50 expected, $5.00 budget)"):
        assert words in page.text


def test_the_best_and_the_worst_are_shown_apart(run: Path) -> None:
    worst = [Example(given="a question", answer="an answer", expected=("another",), right=False, note="0 % in common")]
    write_report(str(run), FOUND, Evaluation(data="", count=2, metrics={}, best=EXAMPLES[:1], worst=worst))
    text = Page((run / "report.html").read_text()).text
    assert text.index("Best results") < text.index("a red star") < text.index("Worst results")
    assert "0 % in common" in text[text.index("Worst results") :]


def test_the_best_and_the_worst_are_different_ones() -> None:
    assert extremes([0.5, 0.9, 0.1, 0.7], count=2) == ([1, 3], [2, 0])
    assert extremes([0.5, 0.9, 0.1]) == ([1], [2])
    assert extremes([]) == ([], [])


JOB_FILE = """
name: captions
recipe: captioning
config: {epochs: 9, decoder: lstm}
seed: 7
data: {train: [{source: "builtin:scenes", limit: 50}]}
checkpoint: {every: 10m, keep_every: 5 epochs}
resources: {accelerator: "T4:2", memory: 30GB}
budget: {usd: 5}
max_wait: 1h30m
env: {OMP_NUM_THREADS: "4"}
secrets: {KEY: env:KEY, OTHER: {ref: file:secret, as: file}}
"""


def test_a_job_file_made_from_a_job_gives_the_job_again() -> None:
    job = loads(JOB_FILE)
    text = as_job_file(job)
    assert loads(text) == job
    assert {"max_wait: 1h30m", "  every: 10m", "  memory: 30GB", "  accelerator: T4:2"} <= set(text.splitlines())
    assert "targets" not in text
    assert set(yaml.safe_load(as_job_file(loads("name: a\nrecipe: captioning\n")))) == {"name", "recipe", "data"}


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("bleu_4", "BLEU-4"),
        ("exact_held_out", "exactly right, new combinations"),
        ("word_accuracy", "word accuracy"),
    ],
)
def test_metrics_are_named_as_people_write_them(metric: str, words: str) -> None:
    assert metric_name(metric) == words
