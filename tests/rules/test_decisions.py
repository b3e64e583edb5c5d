"""Numbers in docs/decisions that the tree itself can tell: each holds to within a tenth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.diagnose.messages import MESSAGES

ROOT = Path(__file__).parents[2]
DECISIONS, SRC = ROOT / "docs/decisions", ROOT / "src/headway"


def lines(*patterns: str) -> int:
    paths = [path for pattern in patterns for path in SRC.glob(pattern)]
    assert paths, patterns
    return sum(len(path.read_text().splitlines()) for path in paths)


CLAIMS = [
    ("0002", r"About ([\d,]+) lines to keep", lines("spec/*.py")),
    ("0002", r"`yaml_reader\.py` is (\d+)", lines("spec/yaml_reader.py")),
    ("0002", r"`validate\.py` (\d+)", lines("spec/validate.py")),
    ("0002", r"`schema\.py` (\d+)", lines("spec/schema.py")),
    ("0006", r"(\d+)-line shim", lines("supervisor/rank_entry.py")),
    ("0006", r"(\d+) lines of selector", lines("supervisor/event_loop.py")),
    ("0016", r"about (\d+) lines", lines("targets/kubernetes/client.py", "targets/kubernetes/kubeconfig.py")),
    ("0018", r"([\d,]+) rows of machines", lines("pricing/prices.csv") - 2),
    ("0019", r"messages\.txt, (\d+) of them", len(MESSAGES)),
    ("0021", r"client\.py`, (\d+) lines", lines("targets/vertex/client.py")),
    ("0022", r"library alone, (\d+) lines", lines("targets/vertex/boot.py")),
]


@pytest.mark.parametrize(("page", "claim", "counted"), CLAIMS, ids=[f"{page} {claim}" for page, claim, _ in CLAIMS])
def test_a_number_still_holds(page: str, claim: str, counted: int) -> None:
    (path,) = DECISIONS.glob(f"{page}-*.md")
    found = re.search(claim, path.read_text())
    assert found is not None, f"{path.name} no longer says {claim!r}"
    stated = int(found[1].replace(",", ""))
    assert stated == pytest.approx(counted, rel=0.1), f"{path.name} says {stated}, counted {counted}: renew it"
