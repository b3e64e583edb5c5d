"""Reader for a CSV or TSV of pictures, one per line, with class, grade or caption, and optionally split and group."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.readers.files import Tree, arrays, is_picture, sanitized_key
from headway.data.text import is_unicode

_FILE = ("file", "file_name", "filename", "path", "image", "image_path", "picture")
_CLASS = ("class", "label", "category", "species", "target")
_GRADE = ("grade", "score", "level", "diagnosis", "rating")
_CAPTION = ("caption", "text", "description", "comment")
_GROUP = ("group", "group_id", "dup_group", "patient", "patient_id", "subject")


@dataclass(frozen=True, slots=True)
class Header:
    """The meaning of each column: the first known name wins."""

    file: str
    kind: Task
    value: str
    split: str = ""
    group: str = ""


class Table:
    name = "table"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return any(read_header(tree, key) for key in table_files(tree))

    def __init__(self, tree: Tree, key: str = "") -> None:
        self._tree = tree
        found = [(k, header) for k in ([key] if key else table_files(tree)) if (header := read_header(tree, k))]
        if not found:
            raise BadInput(
                f"no table in {tree.url} names pictures and their class, grade or caption",
                fix=f"give its first line a column of {', '.join(_FILE[:3])} and one of class, grade or caption",
            )
        self._tables = found
        self.task: Task = found[0][1].kind

    def read_rows(self) -> Iterator[Found]:
        for key, header in self._tables:
            if header.kind == self.task:
                yield from self._rows(key, header)

    def _rows(self, key: str, header: Header) -> Iterator[Found]:
        file_split, seen = split_name(key.rpartition("/")[2]), ""
        for number, line in _records(self._tree, key):
            where = f"{key}: line {number}"
            if isinstance(line, str):
                yield Bad(row=where, reason=line)
                continue
            name, value = (line.get(header.file) or "").strip(), (line.get(header.value) or "").strip()
            more = (line.get(header.split) or "", line.get(header.group) or "", file_split)
            row = self._row(name, value, where, more)
            if name != seen or self.task != "captions":
                yield row
            if self.task == "captions" and isinstance(row, Row):
                yield Caption(row=row.id, text=value)
            seen = name

    def _row(self, name: str, value: str, where: str, more: tuple[str, str, str]) -> Row | Bad:
        if not name:
            return Bad(row=where, reason="no file name")
        if self.task == "grades" and not value.lstrip("-").isdigit():
            return Bad(row=where, reason="wrong type", detail=f"the grade is {value!r}, not a whole number")
        if self.task == "classes" and not value:
            return Bad(row=where, reason="no class")
        try:
            picture = self._picture(sanitized_key(name))
        except BadInput as error:
            return Bad(row=where, reason="path leads outside", detail=error.problem.what)
        split, group, of_file = more
        label = "" if self.task == "captions" else value
        return Row(
            id=name,
            split=split_name(split) or of_file,
            pictures={"picture": picture},
            label=label,
            group=group.strip(),
            again=self.task == "captions",
        )

    def _picture(self, name: str) -> str:
        """Return the picture's key: tables name files with or without folder and extension."""
        name = name if is_picture(name) else name + ".jpg"
        inside = name.rpartition("/")[0] or "."
        if inside in self._tree.summary.folders:
            return name
        folders = sorted(f for f in self._tree.summary.folders if inside == "." or f"/{f}".endswith(f"/{inside}"))
        if not folders or folders[0] == ".":
            return name
        return f"{folders[0].removesuffix(inside)}{'' if inside != '.' else '/'}{name}".lstrip("/")


def table_files(tree: Tree) -> list[str]:
    return [key for key in tree.summary.documents if key.lower().endswith((".csv", ".tsv")) and key.count("/") <= 1]


def read_header(tree: Tree, key: str) -> Header | None:
    """Read the header, or return None if it names no pictures."""
    with _open_text(tree, key) as lines:
        first = next(csv.reader(lines, delimiter=_delimiter(key)), [])
    names = {name.strip().lower(): name for name in first}

    def pick(choices: tuple[str, ...]) -> str:
        return next((names[choice] for choice in choices if choice in names), "")

    file, split, group = pick(_FILE), pick(("split", "set", "subset")), pick(_GROUP)
    kinds: tuple[tuple[Task, str], ...] = (
        ("grades", pick(_GRADE)),
        ("classes", pick(_CLASS)),
        ("captions", pick(_CAPTION)),
    )
    kind = next(((task, value) for task, value in kinds if value), None)
    return Header(file, kind[0], kind[1], split, group) if file and kind else None


def _records(tree: Tree, key: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield lines as dictionaries, or an error text for a bad line. Handles quoted line breaks."""
    with _open_text(tree, key) as file:
        reader = csv.DictReader(file, delimiter=_delimiter(key))
        try:
            for line in reader:
                values = [value for value in line.values() if isinstance(value, str)]
                yield reader.line_num, line if all(map(is_unicode, values)) else "not UTF-8"
        except csv.Error as error:
            yield reader.line_num, f"not CSV: {error}"


def _open_text(tree: Tree, key: str) -> TextIO:
    """Open with surrogateescape, so that invalid UTF-8 costs only its own line."""
    return tree.document(key).open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _delimiter(key: str) -> str:
    return "\t" if key.lower().endswith(".tsv") else ","


# Reader for splits.json of graded pairs.
#
#     {"train": [{"cert_id": …, "grade": 1, "back": path, "front": path}, …], "val": …}
#
# An entry may describe each side, all values from 0 to 1: `edge`, the damaged share of the edges, and `center`, how
# far the print is off-centre across and down: {"edge": {"back": 0.1}, "center": {"back": [0.2, 0.05]}}.


NAME = "splits.json"
TARGETS = "targets"  # column: edge, across, down of the back, then of the front; NaN if unknown
_SPLITS = frozenset(("train", "val", "test", "valid", "validation", "dev", "training", "testing"))


class GradedPairs:
    """Two pictures and a grade. Pictures of one `cert_id` are one group, which must not be in two splits."""

    task: Task = "grades"
    name = "graded pairs"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        return any(key.rpartition("/")[2] == NAME for key in tree.summary.documents)

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._key = next(key for key in tree.summary.documents if key.rpartition("/")[2] == NAME)

    def read_rows(self) -> Iterator[Found]:
        for number, (split, entry) in enumerate(arrays(self._tree.document(self._key), _SPLITS), 1):
            yield self._row(entry, split, number)

    def _row(self, entry: Any, split: str, number: int) -> Found:
        where = f"{self._key}: {split}: entry {number}"
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
        return sanitized_key(f"{folder}/{path}" if folder and not path.startswith("/") else path)


def _targets(entry: dict[str, Any]) -> list[float | None]:
    """Return six numbers, None if unknown. Raises ValueError with the reason."""
    edge, center = (_sides(entry, name) for name in ("edge", "center"))
    found: list[float | None] = []
    for side in ("back", "front"):
        found.append(None if edge.get(side) is None else _fraction(edge[side], f"edge of the {side}"))
        pair = [None, None] if center.get(side) is None else center[side]
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"center of the {side} is {pair!r}, not [across, down]")
        found += [None if value is None else _fraction(value, f"center of the {side}") for value in pair]
    return found


def _sides(entry: dict[str, Any], name: str) -> dict[str, Any]:
    sides = entry.get(name)
    if sides is None:
        return {}
    if not isinstance(sides, dict) or not sides.keys() <= {"front", "back"}:
        raise ValueError(f'{name} is {sides!r}, not {{"front": …, "back": …}}')
    return sides


def _fraction(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{what} is {value!r}, not a number from 0 to 1")
    return float(value)
