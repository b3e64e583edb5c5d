"""Readers for COCO captions (2014, 2017) and VizWiz-Captions, which uses COCO's format.

COCO has a JSON file per split with `images` and `annotations`, and folders of pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.readers.files import Tree, arrays, below

_FILE = re.compile(r"(?:^|/)(captions[^/]*|instances[^/]*)\.json$")
_YEAR = re.compile(r"20\d\d")
_ARRAYS = frozenset(("images", "annotations"))


class Coco:
    """COCO captions. Splits come from the file name (`captions_train2014.json`), or from each image's own `split`."""

    task: Task = "captions"
    name = "COCO captions"

    def __init__(self, tree: Tree, *, year: str | None = None) -> None:
        self._tree = tree
        self._documents = _of_one_year(coco_documents(tree), year)

    def found(self) -> Iterator[Found]:
        for key in self._documents:
            yield from read_images_and_annotations(self._tree, key, split_name(key.rpartition("/")[2]))


def coco_documents(tree: Tree) -> list[str]:
    """Return the caption files, without `…_results.json` and `instances_…`, which have no captions to learn from."""
    found = [key for key in tree.survey.documents if _FILE.search(key)]
    return [key for key in found if "result" not in key and "/instances" not in "/" + key]


def _of_one_year(keys: list[str], year: str | None) -> list[str]:
    years = sorted({match[0] for key in keys if (match := _YEAR.search(key.rpartition("/")[2]))})
    if year is None and len(years) > 1:
        raise BadInput(
            f"there are captions of {' and '.join(years)}, whose pictures overlap",
            fix=f"choose one: --year {years[-1]}",
        )
    return [key for key in keys if year is None or year in key.rpartition("/")[2]]


def read_images_and_annotations(tree: Tree, key: str, split: str) -> Iterator[Found]:
    """Read a file in COCO's format, also used by VizWiz. Rows are named by their image numbers."""
    place = _PicturePlaces(tree, key)
    for array, entry in arrays(tree.document(key), _ARRAYS):
        yield _image(entry, key, split, place) if array == "images" else _annotation(entry, key)


def _image(entry: Any, key: str, split: str, place: _PicturePlaces) -> Found:
    if not isinstance(entry, dict):
        return Bad(
            row=f"{key}: images", reason="wrong type", detail=f"an image is {type(entry).__name__}, not an object"
        )
    number, name = entry.get("id"), entry.get("file_name")
    if isinstance(number, bool) or not isinstance(number, int | str) or not isinstance(name, str) or not name:
        detail = f"id is {number!r}, file_name is {name!r}"
        return Bad(row=f"{key}: images: {number!r}", reason="wrong type", detail=detail)
    own = entry.get("split")
    split = split_name(own) if isinstance(own, str) and split_name(own) else split
    try:
        picture = place.of(below(name), own if isinstance(own, str) else "", split)
    except BadInput as error:
        return Bad(row=_row_id(key, number), reason="path leads outside", detail=error.problem.what)
    return Row(id=_row_id(key, number), name=str(number), split=split, pictures={"picture": picture})


def _annotation(entry: Any, key: str) -> Found:
    if not isinstance(entry, dict):
        return Bad(
            row=f"{key}: annotations", reason="wrong type", detail=f"one is {type(entry).__name__}, not an object"
        )
    number, text = entry.get("image_id"), entry.get("caption")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return Bad(row=f"{key}: annotations", reason="wrong type", detail=f"image_id is {number!r}")
    if not isinstance(text, str):
        return Bad(row=_row_id(key, number), reason="wrong type", detail=f"caption is {text!r}")
    return Caption(row=_row_id(key, number), text=text, flag=_flag(entry))


def _flag(entry: dict[str, Any]) -> Literal["", "rejected", "pre-canned"]:
    if entry.get("is_precanned") is True:
        return "pre-canned"
    return "rejected" if entry.get("is_rejected") is True else ""


def _row_id(key: str, number: int | str) -> str:
    stem = key.rpartition("/")[2].removesuffix(".json")
    return f"{stem}/{number}"


class _PicturePlaces:
    """Finds the folder of a file's pictures: COCO has train2014/, mirrors have images/, others no folder."""

    def __init__(self, tree: Tree, key: str) -> None:
        self._folders = tree.survey.folders
        self._year = match[0] if (match := _YEAR.search(key.rpartition("/")[2])) else ""
        self._chosen: dict[tuple[str, str], str] = {}

    def of(self, name: str, own: str, split: str) -> str:
        asked = (own, split)
        if asked not in self._chosen:
            self._chosen[asked] = self._choose(own, split, name)
        folder = self._chosen[asked]
        return f"{folder}/{name}" if folder else name

    def _choose(self, own: str, split: str, name: str) -> str:
        inside = name.rpartition("/")[0]
        candidates = [own, split + self._year, split, "images"]
        for candidate in candidates:
            matching = [f for f in self._folders if f"/{f}/".endswith(f"/{candidate}/{inside}/".replace("//", "/"))]
            if candidate and matching:
                return min(matching, key=len).removesuffix(inside).rstrip("/")
        if "." in self._folders or not candidates[1]:
            return ""
        return candidates[1]  # missing pictures are reported under the expected name


# VizWiz-Captions: train.json, val.json and test.json in COCO's format, with `is_rejected` and `is_precanned`.


_NAMES = ("train.json", "val.json", "test.json")


class VizWiz:
    """VizWiz-Captions. The test file has pictures but no captions: they are reported, not read."""

    task: Task = "captions"
    name = "VizWiz-Captions"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def found(self) -> Iterator[Found]:
        for key in vizwiz_documents(self._tree):
            yield from read_images_and_annotations(self._tree, key, split_name(key.rpartition("/")[2]))


def vizwiz_documents(tree: Tree) -> list[str]:
    """Return train.json and the like, at the top or in `annotations`: other data sets use these names elsewhere."""
    found = [key for key in tree.survey.documents if key.rpartition("/")[2] in _NAMES]
    return [key for key in found if key.rpartition("/")[0].rpartition("/")[2] in ("", "annotations")]
