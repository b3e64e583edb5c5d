"""`headway logs`: what a run printed, complete and in order; with -f from before it starts to its end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import paint
from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.targets.base import LogLine


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank (default: all; -1: the supervisor)")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="T", help="a duration (10m) or a time (2026-01-31T12:00)")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.launcher import logs

    url = locate(args.run)
    start = since(args.since) if args.since else ""

    def chosen(*, follow: bool) -> Iterator[LogLine]:
        return (line for line in logs(url, follow=follow, rank=args.rank) if line.time >= start)

    # What is there already is cut to the last N; what comes after is new, and all of it is shown.
    skipped = 0 if args.tail is None else max(0, sum(1 for _ in chosen(follow=False)) - args.tail)
    lines = islice(chosen(follow=args.follow), skipped, None)
    for line in lines:
        print(as_record(line) if args.json else shown(line), flush=args.follow)
    return 0


def shown(line: LogLine) -> str:
    if line.rank < 0:
        return paint(f"headway: {line.text}", "dim")
    return f"[{line.rank}] {line.text}" if line.rank else line.text


def since(text: str) -> str:
    """The time meant, as log lines carry it."""
    from headway.spec.units import duration

    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(timezone.utc).isoformat()
    except ValueError:
        pass
    try:
        seconds = duration(text)
    except ValueError:
        raise BadInput(f"--since {text}: neither a duration nor a time", fix="--since 10m") from None
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()


def as_record(line: LogLine) -> str:
    return json.dumps({"rank": line.rank, "time": line.time, "text": line.text}, ensure_ascii=False)
