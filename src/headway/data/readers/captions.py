"""Readers for Flickr8k, and for a JSON list of captioned pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.readers.files import Tree, below, decoded, elements, first_mark


class Flickr8k:
    """Flickr8k: `Flickr8k.token.txt` (picture#number, tab, caption), `Flickr_8k.trainImages.txt` and its siblings.

    Pictures that no list names are in no split, and reported as such.
    """

    task: Task = "captions"
    name = "Flickr8k"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._folder = _picture_folder(tree)

    def found(self) -> Iterator[Found]:
        splits = self._splits()
        seen = ""
        for number, line in self._tree.lines(token_file(self._tree)):
            text = decoded(line)
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
                id=name, split=splits.get(name, ""), pictures={"picture": self._folder + below(name)}, again=True
            )
        except BadInput as error:
            return Bad(row=name, reason="path leads outside", detail=error.problem.what)

    def _splits(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in self._tree.survey.documents:
            split = split_name(key.rpartition("/")[2])
            if key.lower().endswith("images.txt") and split:
                for _, line in self._tree.lines(key):
                    name = (decoded(line) or "").strip()
                    if name:
                        found[name] = split
        return found


def token_file(tree: Tree) -> str:
    """Return the file with all captions, not the lemmatised one; empty if there is none."""
    names = [key for key in tree.survey.documents if key.lower().endswith(".token.txt") and "lemma" not in key.lower()]
    return min(names, key=len) if names else ""


def _picture_folder(tree: Tree) -> str:
    folders = sorted(
        tree.survey.folders, key=lambda f: ("image" not in f.lower() and "dataset" not in f.lower(), len(f))
    )
    return "" if not folders or folders[0] == "." else folders[0] + "/"


# A JSON list of pictures with their captions: [{"image": path, "captions": […], "split": …}, …].


class Listed:
    task: Task = "captions"
    name = "list of captioned pictures"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def found(self) -> Iterator[Found]:
        for key in documents(self._tree):
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
            picture = self._picture(below(name))
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
        folders = self._tree.survey.folders
        if "/" in name or "." in folders or "images" not in folders:
            return name
        return f"images/{name}"


def documents(tree: Tree) -> list[str]:
    """Return JSON files near the top that are lists of objects with a picture and captions."""
    near = [key for key in tree.survey.documents if key.endswith(".json") and key.count("/") <= 1]
    return [key for key in near if "caption" in key and "result" not in key and _is_list(tree, key)]


def _is_list(tree: Tree, key: str) -> bool:
    path = tree.document(key)
    try:
        if first_mark(path) != "[":
            return False
        first = next(elements(path), None)
    except BadInput:
        return False  # the reader will report what is wrong with it
    return isinstance(first, dict) and "captions" in first and ("image" in first or "file_name" in first)
