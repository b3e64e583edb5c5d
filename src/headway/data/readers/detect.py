"""Select the reader of a source by name, or detect it from the files. The registry imports lazily."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from headway.core.errors import BadInput
from headway.data.readers import captions, csv, files, parallel_text
from headway.data.readers.base import Reader
from headway.data.readers.files import Tree

READERS = {
    "coco": "headway.data.readers.captions:Coco",
    "flickr8k": "headway.data.readers.captions:Flickr8k",
    "folders": "headway.data.readers.files:ClassFolders",
    "listed": "headway.data.readers.captions:Listed",
    "pairs": "headway.data.readers.csv:GradedPairs",
    "parallel": "headway.data.readers.parallel_text:Parallel",
    "table": "headway.data.readers.csv:Table",
    "vizwiz": "headway.data.readers.captions:VizWiz",
}


def reader_for(tree: Tree, kind: str | None = None, **options: Any) -> Reader:
    """Return the reader of a source.

    Args:
        tree: The source's files.
        kind: Name of the reader, a key of `READERS`. None: detect it.
        **options: Options of the reader; those that are None are not passed on.

    Returns:
        The reader.

    Raises:
        BadInput: If no reader has that name or fits the files, or the reader does not have an option.

    Example:
        >>> from pathlib import Path
        >>> from headway.data.readers.detect import reader_for
        >>> from headway.data.readers.files import Tree
        >>> for name in ("cat/1.jpg", "dog/2.jpg"):
        ...     Path("pets", name).parent.mkdir(parents=True)
        ...     _ = Path("pets", name).write_bytes(b"")
        >>> [(row.id, row.label) for row in reader_for(Tree("pets", Path("work"))).read_rows()]
        [('cat/1.jpg', 'cat'), ('dog/2.jpg', 'dog')]
    """
    given = {name: value for name, value in options.items() if value is not None}
    kind = kind or detect(tree)
    if kind not in READERS:
        raise BadInput(f"unknown format {kind!r}", fix=f"choose one of {', '.join(sorted(READERS))}")
    module, _, name = READERS[kind].partition(":")
    make = getattr(import_module(module), name)
    unknown = [f"--{option}" for option in given if option not in signature(make).parameters]
    if unknown:
        raise BadInput(f"the format {kind} has no option {', '.join(unknown)}", fix=f"leave out {', '.join(unknown)}")
    reader: Reader = make(tree, **given)
    return reader


def detect(tree: Tree) -> str:
    r"""Return the name of the first format whose signs match; the most specific signs come first.

    Args:
        tree: The source's files.

    Returns:
        A key of `READERS`.

    Raises:
        BadInput: If the files look like no known format.

    Example:
        >>> from pathlib import Path
        >>> from headway.data.readers.detect import detect
        >>> from headway.data.readers.files import Tree
        >>> Path("texts").mkdir()
        >>> for language in ("de", "en"):
        ...     _ = Path("texts", f"train.{language}").write_text("a\nb\n")
        >>> detect(Tree("texts", Path("work")))
        'parallel'
    """
    for kind, sign in _SIGNS:
        if sign(tree):
            return kind
    summary = tree.summary
    raise BadInput(
        f"{tree.url} has no layout that Headway recognizes"
        f" ({summary.pictures} pictures in {len(summary.folders)} folders, {len(summary.documents)} other files)",
        fix=f"choose one with --format ({', '.join(sorted(READERS))}), or see docs/data.md for the layouts",
    )


def _ends(tree: Tree, name: str) -> bool:
    return any(key.rpartition("/")[2] == name for key in tree.summary.documents)


_SIGNS: tuple[tuple[str, Callable[[Tree], bool]], ...] = (
    ("pairs", lambda tree: _ends(tree, csv.NAME)),
    ("flickr8k", lambda tree: bool(captions.token_file(tree))),
    ("listed", lambda tree: bool(_listed(tree))),
    ("coco", lambda tree: bool(captions.coco_documents(tree))),
    ("vizwiz", lambda tree: bool(captions.vizwiz_documents(tree)) and tree.summary.pictures > 0),
    ("table", lambda tree: any(csv.read_header(tree, key) for key in csv.table_files(tree))),
    ("parallel", lambda tree: tree.summary.pictures == 0 and _is_parallel(tree)),
    ("folders", files.has_class_folders),
)


def _listed(tree: Tree) -> list[str]:
    from headway.data.readers.captions import caption_lists

    return caption_lists(tree)


def _is_parallel(tree: Tree) -> bool:
    return bool(parallel_text.stems(tree)) or any(key.endswith(".tsv") for key in tree.summary.documents)
