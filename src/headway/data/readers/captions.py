"""Readers for Flickr8k, and for a JSON list of captioned pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.readers.files import Tree, arrays, decode_utf8, elements, first_character, sanitized_key


class Flickr8k:
    """Flickr8k: `Flickr8k.token.txt` (picture#number, tab, caption), `Flickr_8k.trainImages.txt` and its siblings.

    Pictures that no list names are in no split, and reported as such.
    """

    task: Task = "captions"
    name = "Flickr8k"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return bool(token_file(tree))

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._folder = _picture_folder(tree)

    def read_rows(self) -> Iterator[Found]:
        splits = self._splits()
        seen = ""
        for number, line in self._tree.lines(token_file(self._tree)):
            text = decode_utf8(line)
            if text is None:
                yield Bad(row=f"line {number}", reason="not UTF-8")
                continue
            if not text.strip():
                continue
            head, tab, caption = text.partition("\t")
            name = head.partition("#")[0]
            if not tab or not name:
                yield Bad(row=f"line {number}", reason="wrong format", detail="no tab between picture and caption")
                continue
            if name != seen:  # a picture's five captions are consecutive
                yield self._row(name, splits)
                seen = name
            yield Caption(row=name, text=caption)

    def _row(self, name: str, splits: dict[str, str]) -> Found:
        if splits and name not in splits:
            return Bad(row=name, reason="in no split", detail="none of the split lists names it", fault=False)
        try:
            return Row(
                id=name,
                split=splits.get(name, ""),
                pictures={"picture": self._folder + sanitized_key(name)},
                again=True,
            )
        except BadInput as error:
            return Bad(row=name, reason="path leads outside", detail=error.problem.what)

    def _splits(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in self._tree.summary.documents:
            split = split_name(key.rpartition("/")[2])
            if key.lower().endswith("images.txt") and split:
                for _, line in self._tree.lines(key):
                    name = (decode_utf8(line) or "").strip()
                    if name:
                        found[name] = split
        return found


def token_file(tree: Tree) -> str:
    """Return the file with all captions, not the lemmatised one; empty if there is none."""
    names = [key for key in tree.summary.documents if key.lower().endswith(".token.txt") and "lemma" not in key.lower()]
    return min(names, key=len) if names else ""


def _picture_folder(tree: Tree) -> str:
    folders = sorted(
        tree.summary.folders, key=lambda f: ("image" not in f.lower() and "dataset" not in f.lower(), len(f))
    )
    return "" if not folders or folders[0] == "." else folders[0] + "/"


# A JSON list of pictures with their captions: [{"image": path, "captions": […], "split": …}, …].


class Listed:
    task: Task = "captions"
    name = "list of captioned pictures"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return bool(caption_lists(tree))

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read_rows(self) -> Iterator[Found]:
        for key in caption_lists(self._tree):
            for place, entry in enumerate(elements(self._tree.document(key)), 1):
                yield from self._entry(entry, f"{key}: entry {place}", split_name(key.rpartition("/")[2]))

    def _entry(self, entry: Any, where: str, split: str) -> Iterator[Found]:
        if not isinstance(entry, dict):
            yield Bad(row=where, reason="wrong type", detail=f"an entry is {type(entry).__name__}, not an object")
            return
        name, captions = entry.get("image", entry.get("file_name")), entry.get("captions")
        if not isinstance(name, str) or not isinstance(captions, list):
            detail = f"image is {name!r}, captions is {type(captions).__name__}"
            yield Bad(row=where, reason="wrong type", detail=detail)
            return
        try:
            picture = self._picture(sanitized_key(name))
        except BadInput as error:
            yield Bad(row=where, reason="path leads outside", detail=error.problem.what)
            return
        own = entry.get("split")
        yield Row(id=name, split=split_name(own) if isinstance(own, str) else split, pictures={"picture": picture})
        for caption in captions:
            if isinstance(caption, str):
                yield Caption(row=name, text=caption)
            else:
                yield Bad(row=name, reason="wrong type", detail=f"a caption is {caption!r}")

    def _picture(self, name: str) -> str:
        folders = self._tree.summary.folders
        if "/" in name or "." in folders or "images" not in folders:
            return name
        return f"images/{name}"


def caption_lists(tree: Tree) -> list[str]:
    """Return JSON files near the top that are lists of objects with a picture and captions."""
    near = [key for key in tree.summary.documents if key.endswith(".json") and key.count("/") <= 1]
    return [key for key in near if "caption" in key and "result" not in key and _is_list(tree, key)]


def _is_list(tree: Tree, key: str) -> bool:
    path = tree.document(key)
    try:
        if first_character(path) != "[":
            return False
        first = next(elements(path), None)
    except BadInput:
        return False  # the reader will report what is wrong with it
    return isinstance(first, dict) and "captions" in first and ("image" in first or "file_name" in first)


# Readers for COCO captions (2014, 2017) and VizWiz-Captions, which uses COCO's format.
#
# COCO has a JSON file per split with `images` and `annotations`, and folders of pictures.


_FILE = re.compile(r"(?:^|/)(captions[^/]*|instances[^/]*)\.json$")
_YEAR = re.compile(r"20\d\d")
_ARRAYS = frozenset(("images", "annotations"))


class Coco:
    """COCO captions. Splits come from the file name (`captions_train2014.json`), or from each image's own `split`."""

    task: Task = "captions"
    name = "COCO captions"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return bool(coco_documents(tree))

    def __init__(self, tree: Tree, *, year: str | None = None) -> None:
        self._tree = tree
        self._documents = _of_one_year(coco_documents(tree), year)

    def read_rows(self) -> Iterator[Found]:
        for key in self._documents:
            yield from read_images_and_annotations(self._tree, key, split_name(key.rpartition("/")[2]))


def coco_documents(tree: Tree) -> list[str]:
    """Return the caption files, without `…_results.json` and `instances_…`, which have no captions to learn from."""
    found = [key for key in tree.summary.documents if _FILE.search(key)]
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
    picture_folders = _PictureFolders(tree, key)
    for array, entry in arrays(tree.document(key), _ARRAYS):
        yield _image(entry, key, split, picture_folders) if array == "images" else _annotation(entry, key)


def _image(entry: Any, key: str, split: str, picture_folders: _PictureFolders) -> Found:
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
        picture = picture_folders.locate(sanitized_key(name), own if isinstance(own, str) else "", split)
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


class _PictureFolders:
    """Finds the folder of a file's pictures: COCO has train2014/, mirrors have images/, others no folder."""

    def __init__(self, tree: Tree, key: str) -> None:
        self._folders = tree.summary.folders
        self._year = match[0] if (match := _YEAR.search(key.rpartition("/")[2])) else ""
        self._chosen: dict[tuple[str, str], str] = {}

    def locate(self, name: str, entry_split: str, split: str) -> str:
        key = (entry_split, split)
        if key not in self._chosen:
            self._chosen[key] = self._choose(entry_split, split, name)
        folder = self._chosen[key]
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

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return bool(vizwiz_documents(tree)) and tree.summary.pictures > 0

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read_rows(self) -> Iterator[Found]:
        for key in vizwiz_documents(self._tree):
            yield from read_images_and_annotations(self._tree, key, split_name(key.rpartition("/")[2]))


def vizwiz_documents(tree: Tree) -> list[str]:
    """Return train.json and the like, at the top or in `annotations`: other data sets use these names elsewhere."""
    found = [key for key in tree.summary.documents if key.rpartition("/")[2] in _NAMES]
    return [key for key in found if key.rpartition("/")[0].rpartition("/")[2] in ("", "annotations")]
