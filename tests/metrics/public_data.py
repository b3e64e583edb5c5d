"""Public data sets that some tests are held against. They are not part of Headway: without them, those tests skip."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("HEADWAY_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
COCO = FOLDER / "coco_captions"

needs_coco = pytest.mark.skipif(
    not COCO.is_dir(), reason=f"COCO's captions are not in {COCO} (set HEADWAY_TEST_DATA to a folder that has them)"
)


@cache
def coco(name: str) -> Any:
    return json.loads((COCO / name).read_text(encoding="utf-8"))


def tokenised_by_java() -> dict[int, str]:
    """Annotation id → tokens, of every caption of COCO val2017."""
    lines = (COCO / "captions_val2017.ptb.tsv").read_bytes().decode("utf-8").split("\n")
    rows = (line.split("\t") for line in lines if line)
    return {int(number): tokens for number, tokens in rows}


def references_by_picture() -> dict[int, list[str]]:
    groups = defaultdict(list)
    for annotation in coco("captions_val2017.json")["annotations"]:
        groups[annotation["image_id"]].append(annotation["caption"])
    return groups
