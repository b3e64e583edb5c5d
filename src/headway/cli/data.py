"""`headway data`: prepare a data set once, look into it, and prove that it is whole."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.cli.bars import bar
from headway.cli.runs import add_json
from headway.cli.show import as_json, duration, size, table
from headway.errors import FAILED, FINISHED
from headway.extras import needs


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="prepare|inspect|verify")
    prepare = verbs.add_parser("prepare", help="pictures and text into shards that are read at memory speed")
    prepare.add_argument("source", metavar="SOURCE", help="a folder, an archive, a URL, a bucket or a known name")
    prepare.add_argument("--to", required=True, metavar="DEST", help="a folder or a bucket")
    prepare.add_argument(
        "--size", type=int, default=256, metavar="PX", help="of the short side (default: 256; 0 keeps it)"
    )
    prepare.add_argument("--encoding", choices=("jpeg", "raw"), default="jpeg", help="default: jpeg")
    prepare.add_argument("--format", help="which reader (default: seen from the files)")
    prepare.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    prepare.add_argument("--dask", metavar="ADDRESS", help="use this scheduler's machines instead: tcp://host:8786")
    prepare.add_argument("--max-bad", default="1%", metavar="N", help="stop past this many bad rows (default: 1%%)")
    prepare.add_argument("--drop-duplicates", action="store_true", help="drop what train shares with val or test")
    prepare.add_argument("--overwrite", action="store_true", help="replace a data set that is there already")
    inspect = verbs.add_parser("inspect", help="counts, balance, a contact sheet, and what was dropped and why")
    inspect.add_argument("dest", metavar="DEST")
    inspect.add_argument("--page", metavar="FILE", help="write it as a page with pictures and histograms")
    inspect.add_argument(
        "--dropped", nargs="?", const="", metavar="REASON", help="every dropped row, or those of a reason"
    )
    verify = verbs.add_parser("verify", help="hash every shard again")
    verify.add_argument("dest", metavar="DEST")
    for each in (prepare, inspect, verify):
        add_json(each)


def main(args: argparse.Namespace) -> int:
    with needs("data", f"data {args.what}"):
        return {"prepare": _prepare, "inspect": _inspect, "verify": _verify}[args.what](args)


def _prepare(args: argparse.Namespace) -> int:
    from headway.data.prepare import Wishes, prepare

    wishes = Wishes(format=args.format, duplicates="drop" if args.drop_duplicates else "report")
    with bar() as progress:
        made = prepare(
            args.source,
            args.to,
            size=args.size or None,
            encoding=args.encoding,
            workers=args.workers,
            dask=args.dask,
            max_bad=args.max_bad,
            wishes=wishes,
            overwrite=args.overwrite,
            progress=progress,
        )
    if args.json:
        print(as_json({"url": made.url, "rows": made.rows, "bytes": made.bytes, "bad_rows": made.bad_rows}))
        return FINISHED
    print(table(("split", "rows"), [(split, f"{rows:,}") for split, rows in made.rows.items()]))
    print(f"{size(made.bytes)} in {duration(made.seconds)}; {made.bad_rows:,} rows dropped")
    print(f"next: headway data inspect {made.url}")
    return FINISHED


def _inspect(args: argparse.Namespace) -> int:
    from headway.data.inspect import dropped, inspect

    if args.dropped is not None:
        for row in dropped(args.dest, reason=args.dropped or None):
            print(
                as_json(row) if args.json else f"{row['reason']}: {row.get('id', '')} {row.get('detail', '')}".rstrip()
            )
        return FINISHED
    found = inspect(args.dest)
    if args.page:
        Path(args.page).write_text(found.page(), encoding="utf-8")
    facts = {split: (part.rows, part.bytes, len(part.classes)) for split, part in found.splits.items()}
    if args.json:
        named = {split: dict(zip(("rows", "bytes", "classes"), row, strict=True)) for split, row in facts.items()}
        print(as_json({"url": found.url, "splits": named, "vocabulary": found.vocabulary}))
        return FINISHED
    rows = [(split, f"{count:,}", size(weight), str(kinds or "")) for split, (count, weight, kinds) in facts.items()]
    print(table(("split", "rows", "size", "classes"), rows))
    print(f"vocabulary: {found.vocabulary:,}" if found.vocabulary else "no vocabulary")
    print(f"page: {args.page}" if args.page else f"next: headway data inspect {args.dest} --page data.html")
    return FINISHED


def _verify(args: argparse.Namespace) -> int:
    from headway.data.verify import verify

    with bar() as progress:
        found = verify(args.dest, progress=progress)
    if args.json:
        damage = [{"key": each.key, "what": each.what} for each in found.damage]
        print(as_json({"whole": found.whole, "files": found.files, "bytes": found.bytes, "damage": damage}))
    else:
        for each in found.damage:
            print(f"{each.key}: {each.what}")
        print(f"{found.files} files, {size(found.bytes)}: {'whole' if found.whole else 'DAMAGED'}")
    return FINISHED if found.whole else FAILED
