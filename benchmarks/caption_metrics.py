"""Caption scores compared with pycocoevalcap 1.2, the public tool. Promised: BLEU and CIDEr together 10 ×.

5,000 pictures with five references each, already tokenised. pycocoevalcap is installed in a separate virtual
environment under ~/.cache/headway-bench. Each tool runs in its own process; they take turns.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, interleave, note, show

PEER = "pycocoevalcap==1.2"
HOME = Path.home() / ".cache" / "headway-bench" / "caption-metrics"
REPEATS = 7
PICTURES = 5_000
PROMISE = 10.0
LIMIT = "one look at every token (the limit)"
COCO = (
    Path(os.environ.get("HEADWAY_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "coco_captions"
)

# Each side reads the captions once, then does what it is asked and answers with the scores.
SERVE = """
import json, sys
captions = json.load(open(sys.argv[1]))
hypotheses, references = captions["hypotheses"], captions["references"]
raw = captions["raw"]
for line in sys.stdin:
    print(json.dumps(DO[line.strip()]()), flush=True)
"""

OURS = """
from headway.metrics.bleu import bleu_counts
from headway.metrics.captions import CaptionScorer
from headway.metrics.captions import Cider
from headway.metrics.ptb_tokenizer import tokenize_all
from headway.metrics.ngrams import References
from headway.metrics.captions import rouge_l

def cider():
    return [float(Cider(references).scores(hypotheses).mean())]

def both():
    index = References(references)
    read = index.read(hypotheses)
    return [*bleu_counts(index, read).corpus().tolist(), float(Cider(index).scores_of(read).mean())]

def everything():
    return list(CaptionScorer(references, tokenized=True).score(hypotheses).values())

def again():
    if not kept:
        kept.append(CaptionScorer(references, tokenized=True))
    return list(kept[0].score(hypotheses).values())

def limit():  # what any counting of words must do: every token of all captions found in a table once
    table = {}
    for caption in hypotheses:
        for token in caption.split(): table[token] = table.get(token, 0) + 1
    for group in references:
        for caption in group:
            for token in caption.split(): table[token] = table.get(token, 0) + 1
    return len(table)

kept = []
DO = {"limit": limit, "cider": cider, "both": both, "all": everything, "again": again,
      "rouge": lambda: [float(rouge_l(hypotheses, references).mean())], "tokens": lambda: len(tokenize_all(raw))}
"""

THEIRS = """
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

def given():
    return dict(enumerate(references)), {i: [one] for i, one in enumerate(hypotheses)}

def bleu():
    return list(Bleu(4).compute_score(*given(), verbose=0)[0])

def cider():
    return [float(Cider().compute_score(*given())[0])]

def rouge():
    return [float(Rouge().compute_score(*given())[0])]

DO = {"cider": cider, "rouge": rouge, "both": lambda: bleu() + cider(),
      "all": lambda: bleu() + rouge() + cider(),
      "tokens": lambda: len(PTBTokenizer().tokenize({i: [{"caption": one}] for i, one in enumerate(raw)}))}
"""


class Side:
    """One contender in its own process."""

    def __init__(self, python: Path | str, script: str, captions: Path) -> None:
        command = [str(python), "-c", script + SERVE, str(captions)]
        pipe, silence = subprocess.PIPE, subprocess.DEVNULL  # Java's tokenizer reports its speed on stderr
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silence, text=True)

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


def main() -> int:
    peer = installed()
    with tempfile.TemporaryDirectory() as folder:
        captions = Path(folder) / "captions.json"
        print(write_captions(captions))
        sides = {"headway": Side(sys.executable, OURS, captions)}
        if peer:
            sides["pycocoevalcap"] = Side(peer, THEIRS, captions)
        try:
            return compare(sides)
        finally:
            for side in sides.values():
                side.end()


def compare(sides: dict[str, Side]) -> int:
    cases: dict[str, Callable[[], object]] = {}
    tasks = {
        "both": "BLEU and CIDEr in one run",
        "cider": "CIDEr alone",
        "rouge": "ROUGE-L alone",
    }
    for task, words in (tasks | {"all": "all three"}).items():
        for name, side in sides.items():
            cases[f"{name}: {words}"] = lambda side=side, task=task: side.ask(task)  # type: ignore[misc]
    cases[LIMIT] = lambda: sides["headway"].ask("limit")
    cases["headway: all three, references kept"] = lambda: sides["headway"].ask("again")
    for name, side in sides.items() if shutil.which("java") else [("headway", sides["headway"])]:
        cases[f"{name}: tokenise 25,000 captions"] = lambda side=side: side.ask("tokens")  # type: ignore[misc]
    different = 0
    if len(sides) == 2:
        different = unequal(sides)
    rows = {row.name: row for row in interleave(cases, REPEATS)}
    print("\n" + show(list(rows.values()), "headway: BLEU and CIDEr in one run"))
    floor = rows[LIMIT].median
    for task in tasks.values():
        for name in sides:
            limit = {"limit": "one look at every token", "floor": floor * 1e3} if name == "headway" else {}
            note(task, name, rows[f"{name}: {task}"].median * 1e3, "ms", **limit)  # type: ignore[arg-type]
    return different + (ratios(rows) if len(sides) == 2 else 0)


def unequal(sides: dict[str, Side]) -> int:
    ours, theirs = (sides[name].ask("all") for name in ("headway", "pycocoevalcap"))
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"\nlargest difference of a score: {worst:.1e}")
    return int(worst > 1e-6)


def ratios(rows: dict[str, Row]) -> int:
    print("\n| | pycocoevalcap / headway |\n| --- | ---: |")
    for name, row in rows.items():
        words = name.removeprefix("headway: ")
        if f"pycocoevalcap: {words}" in rows and name.startswith("headway"):
            print(f"| {words} | {rows[f'pycocoevalcap: {words}'].median / row.median:.1f} × |")
    kept = rows["pycocoevalcap: all three"].median / rows["headway: all three, references kept"].median
    print(f"| all three, references kept | {kept:.1f} × |")
    one_run = "BLEU and CIDEr in one run"
    ratio = rows[f"pycocoevalcap: {one_run}"].median / rows[f"headway: {one_run}"].median
    if ratio < PROMISE:
        print(f"\nbroken promise: {one_run} is only {ratio:.1f} × as fast, not {PROMISE:.0f} ×")
    return int(ratio < PROMISE)


def installed() -> Path | None:
    """The Python that has pycocoevalcap; None, with a word about it, where it cannot be installed."""
    python = HOME / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True, capture_output=True, text=True)
        try_import = [str(python), "-c", "import pycocoevalcap"]
        if subprocess.run(try_import, capture_output=True).returncode:
            pip = [str(python), "-m", "pip", "install", "-q", PEER]
            subprocess.run(pip, check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, OSError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        print(f"{PEER} could not be installed, so Headway runs alone: {said[-1] if said else error}\n")
        return None
    return python


def write_captions(path: Path) -> str:
    """Captions for both sides: COCO's where they are, otherwise made up. Returns in words which."""
    if (COCO / "captions_val2017.json").is_file():
        raw, groups = coco()
        words = "captions of COCO val2017; the hypotheses are captions too, a third of the same picture"
    else:
        raw, groups = made_up()
        words = "made-up captions with words as frequent as in English"
    chooser = random.Random(1)
    hypotheses = [group[0] if chooser.random() < 1 / 3 else chooser.choice(groups)[1] for group in groups]
    path.write_text(json.dumps({"hypotheses": hypotheses, "references": groups, "raw": raw}))
    return f"{len(groups):,} pictures, {sum(map(len, groups)):,} references, {words}"


def coco() -> tuple[list[str], list[list[str]]]:
    tokens = dict(line.split("\t") for line in (COCO / "captions_val2017.ptb.tsv").read_text().split("\n") if line)
    groups = defaultdict(list)
    annotations = json.loads((COCO / "captions_val2017.json").read_text())["annotations"]
    for one in annotations:
        groups[one["image_id"]].append(tokens[str(one["id"])])
    return [one["caption"] for one in annotations], list(groups.values())[:PICTURES]


def made_up() -> tuple[list[str], list[list[str]]]:
    chooser = random.Random(0)
    vocabulary = [f"{chooser.choice('bdfgklmnprst')}{vowel}{end}" for vowel in "aeiou" for end in _endings()]
    weights = [1 / (rank + 3) for rank in range(len(vocabulary))]

    def caption(theme: list[str]) -> str:
        words = chooser.choices(vocabulary, weights, k=chooser.randint(4, 9)) + chooser.sample(theme, 3)
        chooser.shuffle(words)
        return " ".join(words)

    groups = []
    for _ in range(PICTURES):
        theme = chooser.choices(vocabulary, weights, k=5)
        groups.append([caption(theme) for _ in range(5)])
    return [f"{one.capitalize()}." for group in groups for one in group], groups


def _endings() -> list[str]:
    return [a + b + c for a in "bdglmnprst" for b in "aeiou" for c in ("", *"bdgklmnprst")]


if __name__ == "__main__":
    sys.exit(main())
