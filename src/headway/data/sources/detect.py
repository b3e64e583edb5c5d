"""Which reader a source needs: asked for by name, or seen from its files. The registry imports lazily."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from headway.data.sources import coco, flickr8k, folders, pairs, parallel, tables, vizwiz
from headway.data.sources.base import Reader
from headway.data.sources.tree import Tree
from headway.errors import BadInput

READERS = {
    "coco": "headway.data.sources.coco:Coco",
    "flickr8k": "headway.data.sources.flickr8k:Flickr8k",
    "folders": "headway.data.sources.folders:ClassFolders",
    "listed": "headway.data.sources.listed:Listed",
    "pairs": "headway.data.sources.pairs:GradedPairs",
    "parallel": "headway.data.sources.parallel:Parallel",
    "table": "headway.data.sources.tables:Table",
    "vizwiz": "headway.data.sources.vizwiz:VizWiz",
}


def reader_for(tree: Tree, kind: str | None = None, **options: Any) -> Reader:
    """The reader of this source. `options` that are None are left to the reader."""
    given = {name: value for name, value in options.items() if value is not None}
    kind = kind or detect(tree)
    if kind not in READERS:
        raise BadInput(f"no reader is called {kind!r}", fix=f"choose one of {', '.join(sorted(READERS))}")
    module, _, name = READERS[kind].partition(":")
    make = getattr(import_module(module), name)
    unknown = [f"--{option}" for option in given if option not in signature(make).parameters]
    if unknown:
        raise BadInput(f"{kind} data has no {', '.join(unknown)}", fix=f"leave out {', '.join(unknown)}")
    reader: Reader = make(tree, **given)
    return reader


def detect(tree: Tree) -> str:
    """The most telling sign wins."""
    for kind, sign in _SIGNS:
        if sign(tree):
            return kind
    survey = tree.survey
    raise BadInput(
        f"{tree.url} looks like none of the data sets known here"
        f" ({survey.pictures} pictures in {len(survey.folders)} folders, {len(survey.documents)} other files)",
        fix=f"say what it is with --format ({', '.join(sorted(READERS))}), or see docs/data.md for the layouts",
    )


def _ends(tree: Tree, name: str) -> bool:
    return any(key.rpartition("/")[2] == name for key in tree.survey.documents)


_SIGNS: tuple[tuple[str, Callable[[Tree], bool]], ...] = (
    ("pairs", lambda tree: _ends(tree, pairs.NAME)),
    ("flickr8k", lambda tree: bool(flickr8k.token_file(tree))),
    ("listed", lambda tree: bool(_listed(tree))),
    ("coco", lambda tree: bool(coco.documents(tree))),
    ("vizwiz", lambda tree: bool(vizwiz.documents(tree)) and tree.survey.pictures > 0),
    ("table", lambda tree: any(tables.read_header(tree, key) for key in tables.table_files(tree))),
    ("parallel", lambda tree: tree.survey.pictures == 0 and _is_parallel(tree)),
    ("folders", folders.looks_like_it),
)


def _listed(tree: Tree) -> list[str]:
    from headway.data.sources.listed import documents

    return documents(tree)


def _is_parallel(tree: Tree) -> bool:
    return bool(parallel.stems(tree)) or any(key.endswith(".tsv") for key in tree.survey.documents)
