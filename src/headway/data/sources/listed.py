"""A JSON list of pictures with their captions: [{"image": path, "captions": […], "split": …}, …]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.data.sources.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.sources.stream import elements, first_mark
from headway.data.sources.tree import Tree, below
from headway.errors import BadInput


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
    """JSON files near the top that are lists of objects with a picture and captions."""
    near = [key for key in tree.survey.documents if key.endswith(".json") and key.count("/") <= 1]
    return [key for key in near if "caption" in key and "result" not in key and _is_list(tree, key)]


def _is_list(tree: Tree, key: str) -> bool:
    path = tree.document(key)
    try:
        if first_mark(path) != "[":
            return False
        first = next(elements(path), None)
    except BadInput:
        return False  # whoever reads it will say what is wrong with it
    return isinstance(first, dict) and "captions" in first and ("image" in first or "file_name" in first)
