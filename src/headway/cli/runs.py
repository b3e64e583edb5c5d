"""What verbs that take a RUN share."""

from __future__ import annotations

import argparse
from typing import Any


def add_run(parser: argparse.ArgumentParser) -> None:
    argument = parser.add_argument("run", metavar="RUN", help="a name, a unique prefix, `last`, a folder or a URL")
    argument.completer = _names  # type: ignore[attr-defined]  # read by argcomplete


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _names(prefix: str, **_: Any) -> list[str]:
    from headway.ledger import Ledger

    return [row.name for row in Ledger().rows(glob=f"{prefix}*", limit=50)]


def locate(text: str, *, bundles: bool = False) -> str:
    """The URL of the run that `text` names; with `bundles`, an exported bundle's folder or URL will do as well."""
    from headway.runs import find
    from headway.storage import open_store

    named_folder = bundles and ("/" in text or text == ".")
    if named_folder and any(entry.key == "bundle.json" for entry in open_store(text).list("bundle.json")):
        return text
    return find(text).url
