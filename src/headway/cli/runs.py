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
