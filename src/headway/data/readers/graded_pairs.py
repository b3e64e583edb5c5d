"""Reader for splits.json of graded pairs.

    {"train": [{"cert_id": …, "grade": 1, "back": path, "front": path}, …], "val": …}

An entry may describe each side, all values from 0 to 1: `edge`, the damaged share of the edges, and `center`, how far
the print is off-centre across and down: {"edge": {"back": 0.1}, "center": {"back": [0.2, 0.05]}}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Found, Row, Task, split_name
from headway.data.readers.files import Tree, arrays, below

NAME = "splits.json"
TARGETS = "targets"  # column: edge, across, down of the back, then of the front; NaN if unknown
_SPLITS = frozenset(("train", "val", "test", "valid", "validation", "dev", "training", "testing"))


class GradedPairs:
    """Two pictures and a grade. Pictures of one `cert_id` are one group, which must not be in two splits."""

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
        try:
            targets = _targets(entry)
        except ValueError as error:
            return Bad(row=str(name), reason="wrong type", detail=str(error))
        return Row(
            id=f"{split}/{name}",
            name=str(name),
            split=split_name(split),
            pictures=pictures,
            numbers={TARGETS: targets} if any(value is not None for value in targets) else {},
            label=str(int(grade)),
            group=str(name),
        )

    def _inside(self, path: str) -> str:
        """Return the key of a path. Accepts absolute paths inside the source, as other tools write them."""
        root = self._tree.path
        if root is not None and path.startswith(f"{root}/"):
            path = path[len(str(root)) + 1 :]
        folder = self._key.rpartition("/")[0]
        return below(f"{folder}/{path}" if folder and not path.startswith("/") else path)


def _targets(entry: dict[str, Any]) -> list[float | None]:
    """Return six numbers, None if unknown. Raises ValueError with the reason."""
    edge, center = (_sides(entry, name) for name in ("edge", "center"))
    found: list[float | None] = []
    for side in ("back", "front"):
        found.append(None if edge.get(side) is None else _share(edge[side], f"edge of the {side}"))
        pair = [None, None] if center.get(side) is None else center[side]
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"center of the {side} is {pair!r}, not [across, down]")
        found += [None if value is None else _share(value, f"center of the {side}") for value in pair]
    return found


def _sides(entry: dict[str, Any], name: str) -> dict[str, Any]:
    said = entry.get(name)
    if said is None:
        return {}
    if not isinstance(said, dict) or not said.keys() <= {"front", "back"}:
        raise ValueError(f'{name} is {said!r}, not {{"front": …, "back": …}}')
    return said


def _share(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{what} is {value!r}, not a number from 0 to 1")
    return float(value)
