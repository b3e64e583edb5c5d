"""Reader for parallel text: two files of equal length (train.en, train.de), or one TSV with two columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest

from headway.core.errors import BadInput
from headway.data.readers.base import Bad, Found, Row, Task, split_name
from headway.data.readers.files import Tree, decode_utf8

Pair = tuple[str, str]


class Parallel:
    """Parallel text.

    `languages` are file extensions: ("en", "de") reads train.en and train.de. Optional if there are two.
    """

    task: Task = "translation"
    name = "parallel text"

    @classmethod
    def fits(cls, tree: Tree) -> bool:
        if tree.summary.pictures:
            return False
        return bool(stems(tree)) or any(key.endswith(".tsv") for key in tree.summary.documents)

    def __init__(self, tree: Tree, *, languages: Pair | None = None) -> None:
        self._tree = tree
        self._tables = [key for key in tree.summary.documents if key.lower().endswith(".tsv")]
        self._pairs = [] if self._tables else _pairs(tree, languages)

    def read_rows(self) -> Iterator[Found]:
        for key in self._tables:
            yield from self._table(key)
        for stem, (source, target) in self._pairs:
            yield from self._two_files(stem, source, target)

    def _table(self, key: str) -> Iterator[Found]:
        stem = key.removesuffix(".tsv")
        for number, line in self._tree.lines(key):
            if not line.strip():
                continue
            cells = line.split(b"\t")
            if len(cells) != 2:
                detail = f"{len(cells)} columns where there should be 2"
                yield Bad(row=f"{stem}/{number}", reason="wrong format", detail=detail)
            else:
                yield _row(stem, number, cells[0], cells[1])

    def _two_files(self, stem: str, source: str, target: str) -> Iterator[Found]:
        both = zip_longest(self._tree.lines(source), self._tree.lines(target))
        for number, (left, right) in enumerate(both, 1):
            if left is None or right is None:
                shorter = source if left is None else target
                raise BadInput(
                    f"{source} and {target} do not have the same number of lines: {shorter} ends after {number - 1}",
                    where=self._tree.url,
                    fix="align them again; a blank line still counts",
                )
            yield _row(stem, number, left[1], right[1])


def _row(stem: str, number: int, source: bytes, target: bytes) -> Found:
    left, right = decode_utf8(source), decode_utf8(target)
    name = f"{stem}/{number}"
    if left is None or right is None:
        return Bad(row=name, reason="not UTF-8")
    split = split_name(stem.rpartition("/")[2])
    return Row(id=name, split=split, texts={"source": left, "target": right})


def stems(tree: Tree) -> dict[str, list[str]]:
    """Group files that differ only in their extension: {"train": ["de", "en"]}."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in tree.summary.documents:
        stem, dot, ending = key.rpartition(".")
        if dot and 2 <= len(ending) <= 3 and ending.islower() and ending not in ("txt", "csv", "tsv", "md", "py"):
            found[stem].append(ending)
    return {stem: sorted(endings) for stem, endings in found.items() if len(endings) >= 2}


def _pairs(tree: Tree, languages: Pair | None) -> list[tuple[str, Pair]]:
    found = stems(tree)
    known = sorted({ending for endings in found.values() for ending in endings})
    if languages is None:
        if len(known) != 2:
            some = f"{known[-2]},{known[0]}" if len(known) > 2 else "en,de"
            raise BadInput(
                f"there are texts in {', '.join(known) or 'no language'}",
                where=tree.url,
                fix=f"choose source and target language: --languages {some}",
            )
        languages = (known[1], known[0]) if known[1] == "en" else (known[0], known[1])
    missing = [language for language in languages if language not in known]
    if missing:
        raise BadInput(f"no text ends in .{missing[0]}", where=tree.url, fix=f"choose from {', '.join(known)}")
    source, target = languages
    return [
        (stem, (f"{stem}.{source}", f"{stem}.{target}"))
        for stem, endings in sorted(found.items())
        if source in endings and target in endings
    ]
