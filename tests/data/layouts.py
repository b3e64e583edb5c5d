"""Small data sets in the layouts that people have, with pictures made up on the spot."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.data.made_pictures import jpeg, photograph


@cache
def picture(number: int, width: int = 64, height: int = 48) -> bytes:
    return jpeg(photograph(width, height, number))


def put(path: Path, body: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    return path


def coco(root: Path, *, year: str = "2017", train: int = 6, val: int = 3, flat: bool = False) -> Path:
    first = 0
    for split, count in (("train", train), ("val", val)):
        name = f"COCO_{split}2014_{{:012d}}.jpg" if year == "2014" else "{:012d}.jpg"
        numbers = range(first, first + count)
        folder = root / ("images" if flat else f"{split}{year}")
        for number in numbers:
            put(folder / name.format(number), picture(number))
        put(root / "annotations" / f"captions_{split}{year}.json", json.dumps(coco_json(numbers, name)))
        first += count
    return root


def coco_json(numbers: Sequence[int], name: str = "{:012d}.jpg", captions: int = 5) -> dict[str, Any]:
    return {
        "info": {"description": "made up", "nested": [{"a": "]}"}]},
        "images": [{"id": n, "file_name": name.format(n), "height": 48, "width": 64} for n in numbers],
        "licenses": [],
        "annotations": [
            {"image_id": n, "id": 100 * n + k, "caption": f"A made-up picture number {n}, said in way {k}."}
            for k in range(captions)
            for n in numbers
        ],
    }


def vizwiz(root: Path, count: int = 4) -> Path:
    for split, first in (("train", 0), ("val", 100), ("test", 200)):
        numbers = range(first, first + count)
        name = f"VizWiz_{split}_{{:08d}}.jpg"
        for number in numbers:
            put(root / split / name.format(number), picture(number))
        body = coco_json(numbers, name)
        for annotation in body["annotations"]:
            annotation |= {"is_rejected": False, "is_precanned": False, "text_detected": True}
        if split == "test":
            del body["annotations"]
        put(root / "annotations" / f"{split}.json", json.dumps(body))
    return root


def flickr8k(root: Path, train: int = 4, val: int = 2, test: int = 2) -> Path:
    lines, first = [], 0
    for split, count in (("train", train), ("dev", val), ("test", test)):
        names = [f"{number}_abc.jpg" for number in range(first, first + count)]
        put(root / "Flickr8k_text" / f"Flickr_8k.{split}Images.txt", "".join(f"{name}\n" for name in names))
        for number, name in enumerate(names, first):
            put(root / "Flicker8k_Dataset" / name, picture(number))
            lines += [f"{name}#{k}\tA dog numbered {number} runs in way {k} .\n" for k in range(5)]
        first += count
    put(root / "Flickr8k_text" / "Flickr8k.token.txt", "".join(lines))
    return root


def class_folders(root: Path, *, splits: Sequence[str] = (), classes: int = 3, each: int = 4) -> Path:
    number = 0
    for split in splits or ("",):
        for label in range(classes):
            for k in range(each):
                put(root / split / f"class_{label}" / f"{k}.jpg", picture(number))
                number += 1
    return root


def table(root: Path, rows: Sequence[dict[str, Any]], name: str = "manifest.csv") -> Path:
    with (root / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), delimiter="\t" if name.endswith("tsv") else ",")
        writer.writeheader()
        writer.writerows(rows)
    return root


def parallel(root: Path, lines: int = 40, languages: Sequence[str] = ("en", "de")) -> Path:
    for split, count in (("train", lines), ("val", 6), ("test_2016", 6)):
        for language in languages:
            text = "".join(f"The {language} sentence number {n} of {split} has some words.\n" for n in range(count))
            put(root / f"{split}.{language}", text)
    return root


def graded_pairs(root: Path, train: int = 6, val: int = 2) -> Path:
    splits: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for split, count in (("train", train), ("val", val)):
        splits[split] = []
        for _ in range(count):
            entry: dict[str, Any] = {"cert_id": 1000 + number, "grade": 1 + number % 4}
            for side in ("front", "back"):
                entry[side] = f"cards/{number}_{side}.jpg"
                put(root / entry[side], picture(number * 2 + (side == "back")))
            splits[split].append(entry)
            number += 1
    put(root / "splits.json", json.dumps(splits))
    return root
