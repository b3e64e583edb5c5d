"""VizWiz-Captions: train.json, val.json and test.json in COCO's format, with `is_rejected` and `is_precanned`."""

from __future__ import annotations

from collections.abc import Iterator

from headway.data.sources.base import Found, Task, split_name
from headway.data.sources.coco import read_images_and_annotations
from headway.data.sources.tree import Tree

_NAMES = ("train.json", "val.json", "test.json")


class VizWiz:
    """The test file has pictures but no captions: they are reported, not read."""

    task: Task = "captions"
    name = "VizWiz-Captions"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def found(self) -> Iterator[Found]:
        for key in documents(self._tree):
            yield from read_images_and_annotations(self._tree, key, split_name(key.rpartition("/")[2]))


def documents(tree: Tree) -> list[str]:
    """train.json and the like, at the top or in `annotations`: other data sets keep other things under such names."""
    found = [key for key in tree.survey.documents if key.rpartition("/")[2] in _NAMES]
    return [key for key in found if key.rpartition("/")[0].rpartition("/")[2] in ("", "annotations")]
