"""splits.json of graded pairs: {"train": [{"cert_id": …, "grade": 1, "back": path, "front": path}, …], "val": …}."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.data.sources.base import Bad, Found, Row, Task, split_name
from headway.data.sources.stream import arrays
from headway.data.sources.tree import Tree, below
from headway.errors import BadInput

NAME = "splits.json"
_SPLITS = frozenset(("train", "val", "test", "valid", "validation", "dev", "training", "testing"))


class GradedPairs:
    """Two pictures and a grade. Pictures of one `cert_id` are one group: it must not stand in two splits."""

    task: Task = "grades"
    name = "graded pairs"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._key = next(key for key in tree.survey.documents if key.rpartition("/")[2] == NAME)

    def found(self) -> Iterator[Found]:
        for place, (split, entry) in enumerate(arrays(self._tree.document(self._key), _SPLITS), 1):
            yield self._row(entry, split, place)

    def _row(self, entry: Any, split: str, place: int) -> Found:
        where = f"{self._key}: {split}: entry {place}"
        if not isinstance(entry, dict):
            return Bad(row=where, reason="wrong type", detail=f"an entry is {type(entry).__name__}, not an object")
        name, grade = entry.get("cert_id"), entry.get("grade")
        if isinstance(name, bool) or not isinstance(name, int | str) or name == "":
            return Bad(row=where, reason="wrong type", detail=f"cert_id is {name!r}")
        if isinstance(grade, bool) or not isinstance(grade, int | float) or grade != int(grade):
            return Bad(row=str(name), reason="wrong type", detail=f"grade is {grade!r}, not a whole number")
        pictures: dict[str, str] = {}
        for side in ("front", "back"):
            path = entry.get(side)
            if not isinstance(path, str):
                return Bad(row=str(name), reason="wrong type", detail=f"{side} is {path!r}")
            try:
                pictures[side] = self._inside(path)
            except BadInput as error:
                return Bad(row=str(name), reason="path leads outside", detail=error.problem.what)
        return Row(
            id=f"{split}/{name}",
            name=str(name),
            split=split_name(split),
            pictures=pictures,
            label=str(int(grade)),
            group=str(name),
        )

    def _inside(self, path: str) -> str:
        """An absolute path is accepted where it lies in the source: other tools write such."""
        root = self._tree.path
        if root is not None and path.startswith(f"{root}/"):
            path = path[len(str(root)) + 1 :]
        folder = self._key.rpartition("/")[0]
        return below(f"{folder}/{path}" if folder and not path.startswith("/") else path)
