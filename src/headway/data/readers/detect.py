"""Select the reader of a source by name, or detect it from the files."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any, Final

from headway.core.errors import BadInput
from headway.data.readers.base import Reader
from headway.data.readers.files import Tree
from headway.plugins import READERS
from headway.plugins.registry import declare, is_path

# The most specific signs first: a folder of COCO's files holds pictures in folders, too.
_ORDER: Final = ("pairs", "flickr8k", "listed", "coco", "vizwiz", "table", "parallel", "folders")


def reader_for(tree: Tree, kind: str | None = None, **options: Any) -> Reader:
    """Return the reader of a source.

    Args:
        tree: The source's files.
        kind: Name of the reader (`headway.plugins.READERS`), or its class as "module:Class". None: detect it.
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
    if is_path(kind):
        declare(kind, os.getcwd())
    if kind not in READERS:
        raise BadInput(f"unknown format {kind!r}", fix=READERS.suggest(kind))
    make = READERS[kind].load()
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
        A key of `headway.plugins.READERS`.

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
    for kind in (*_ORDER, *(name for name in READERS if name not in _ORDER)):
        if READERS[kind].load().fits(tree):
            return kind
    summary = tree.summary
    raise BadInput(
        f"{tree.url} has no layout that Headway recognizes"
        f" ({summary.pictures} pictures in {len(summary.folders)} folders, {len(summary.documents)} other files)",
        fix=f"choose one with --format ({', '.join(sorted(READERS))}), or see docs/data.md for the layouts",
    )
