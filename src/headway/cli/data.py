"""`headway data`: prepare a data set, inspect it, and verify its checksums."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.dispatch import add_json
from headway.cli.render import bar
from headway.core.errors import FAILED, FINISHED, BadInput, needs
from headway.core.format import as_json, duration, size, table

if TYPE_CHECKING:
    from headway.data.dataset.inspect import Inspection
    from headway.data.download.http import Login
    from headway.data.prepare.pipeline import PrepareOptions


def data_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="prepare|inspect|verify")
    prepare = verbs.add_parser("prepare", help="convert images and text to shards that load fast")
    prepare.add_argument("source", metavar="SOURCE", help="a folder, an archive, a URL, a bucket or a known name")
    prepare.add_argument("--to", required=True, metavar="DEST", help="a folder or a bucket")
    prepare.add_argument(
        "--size",
        type=int,
        default=256,
        metavar="PX",
        help="of the short side in pixels (default: 256; 0 keeps the original)",
    )
    prepare.add_argument("--encoding", choices=("jpeg", "raw"), default="jpeg", help="default: jpeg")
    prepare.add_argument("--fit", choices=("short", "crop", "squash", "pad"), help="default: short; raw: crop")
    prepare.add_argument("--quality", type=int, default=90, metavar="Q", help="of JPEGs (default: 90)")
    prepare.add_argument("--format", help="which reader (default: detected from the files)")
    prepare.add_argument("--year", choices=("2014", "2017"), help="which annotations of COCO, if a folder has both")
    prepare.add_argument("--languages", metavar="FROM,TO", help="of parallel text, if there are more than two")
    prepare.add_argument("--splits", metavar="NAME=SHARE,…", help="if the source has none: train=0.8,val=0.1,test=0.1")
    prepare.add_argument("--seed", type=int, default=0, help="of the random splits")
    prepare.add_argument("--words", metavar="MIN-MAX", help="fewest and most words of a caption (default: 2-60)")
    prepare.add_argument("--keep-flagged", action="store_true", help="keep captions that annotators rejected")
    prepare.add_argument(
        "--subwords", type=int, default=8000, metavar="N", help="size for parallel text (default: 8000)"
    )
    prepare.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    prepare.add_argument("--dask", metavar="ADDRESS", help="use this Dask scheduler instead: tcp://host:8786")
    prepare.add_argument(
        "--max-bad", default="1%", metavar="N", help="fail above this share of bad rows (default: 1%%)"
    )
    prepare.add_argument("--duplicates", choices=("report", "drop"), default="report",
                         help="rows of val or test that are also in train (default: report)")  # fmt: skip
    prepare.add_argument(
        "--user", metavar="REF", help="user name for a download, as a secret reference: env:KAGGLE_USERNAME"
    )
    prepare.add_argument("--key", metavar="REF", help="key or password, as a secret reference: env:KAGGLE_KEY")
    prepare.add_argument("--overwrite", action="store_true", help="replace an existing data set")
    inspect = verbs.add_parser("inspect", help="show counts, class balance, a contact sheet, and dropped rows")
    inspect.add_argument("dest", metavar="DEST")
    inspect.add_argument("--page", metavar="FILE", help="write an HTML page with images and histograms")
    inspect.add_argument(
        "--dropped", nargs="?", const="", metavar="REASON", help="list dropped rows, all or those of one reason"
    )
    verify = verbs.add_parser("verify", help="verify the checksum of every shard")
    verify.add_argument("dest", metavar="DEST")
    for each in (prepare, inspect, verify):
        add_json(each)


def data_command(args: argparse.Namespace) -> int:
    with needs("data", f"data {args.what}"):
        return {"prepare": _prepare, "inspect": _inspect, "verify": _verify}[args.what](args)


def _prepare(args: argparse.Namespace) -> int:
    from headway.data.prepare.pipeline import prepare

    options, login = _prepare_options(args), _login(args)
    with bar() as progress:
        made = prepare(
            args.source,
            args.to,
            size=args.size or None,
            encoding=args.encoding,
            workers=args.workers,
            dask=args.dask,
            max_bad=args.max_bad,
            options=options,
            overwrite=args.overwrite,
            login=login,
            progress=progress,
        )
    if args.json:
        print(
            as_json({"url": made.url, "rows": made.rows, "bytes": made.bytes, "dropped": dict(made.manifest.dropped)})
        )
        return FINISHED
    print(table(("split", "rows"), [(split, f"{rows:,}") for split, rows in made.rows.items()]))
    print(f"{size(made.bytes)} in {duration(made.seconds)}")
    for reason, count in made.manifest.dropped.items():
        print(f"dropped: {count:,} × {reason}")
    print(f"next: headway data inspect {made.url}")
    return FINISHED


def _prepare_options(args: argparse.Namespace) -> PrepareOptions:
    from headway.data.prepare.pipeline import PrepareOptions
    from headway.data.text import Rules

    usual = Rules()
    shortest, longest = _word_range(args.words) if args.words else (usual.min_words, usual.max_words)
    chosen = PrepareOptions(
        format=args.format,
        year=args.year,
        languages=_languages(args.languages) if args.languages else None,
        fit=args.fit,
        quality=args.quality,
        rules=replace(usual, min_words=shortest, max_words=longest, keep_flagged=args.keep_flagged),
        seed=args.seed,
        duplicates=args.duplicates,
        bpe_size=args.subwords,
    )
    return replace(chosen, splits=_splits(args.splits)) if args.splits else chosen


def _word_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise BadInput(f"--words {text} is not a range", fix="--words 2-60 (fewest and most words)")
    return int(found[1]), int(found[2])


def _languages(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise BadInput(f"--languages {text} does not name two", fix="--languages en,de")
    return names[0], names[1]


def _splits(text: str) -> dict[str, float]:
    try:
        return {name.strip(): float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        fix = "--splits train=0.9,val=0.1"
        raise BadInput(f"--splits {text} is not a list of names and shares", fix=fix) from None


def _login(args: argparse.Namespace) -> Login | None:
    """Resolve --user and --key, which are secret references, to their values."""
    if args.user is None and args.key is None:
        return None
    if args.user is None or args.key is None:
        raise BadInput("--user and --key go together", fix="--user env:KAGGLE_USERNAME --key env:KAGGLE_KEY")
    from headway.data.download.http import Login
    from headway.storage.secrets import resolve

    return Login(user=resolve(args.user), key=resolve(args.key))


def _inspect(args: argparse.Namespace) -> int:
    from headway.data.dataset.inspect import dropped, inspect

    if args.dropped is not None:
        for row in dropped(args.dest, reason=args.dropped or None):
            print(
                as_json(row)
                if args.json
                else f"{row['reason']}: {row['row']} ({row['split']}) {row['detail']}".rstrip()
            )
        return FINISHED
    found = inspect(args.dest)
    if args.page:
        Path(args.page).write_text(found.page(), encoding="utf-8")
    if args.json:
        print(as_json(_json_record(found)))
        return FINISHED
    rows = [
        (
            split,
            f"{part.rows:,}",
            size(part.bytes),
            f"{part.captions:,}" if part.captions else "",
            _class_balance(part.classes),
        )
        for split, part in found.splits.items()
    ]
    print(table(("split", "rows", "size", "captions", "classes"), rows))
    if found.vocabulary:
        print(f"vocabulary: {found.vocabulary:,}")
    if found.duplicates:
        print("duplicates: " + ", ".join(f"{count:,} {kind}" for kind, count in found.duplicates.items()))
    for reason, count in found.manifest.dropped.items():
        print(f"dropped: {count:,} × {reason}")
    if found.manifest.dropped:
        print(f"to list them: headway data inspect {args.dest} --dropped")
    print(f"page: {args.page}" if args.page else f"next: headway data inspect {args.dest} --page data.html")
    return FINISHED


def _class_balance(classes: Mapping[str, int]) -> str:
    """Format the number of classes and their smallest and largest size: `33 (12 to 480 rows)`."""
    return f"{len(classes)} ({min(classes.values()):,} to {max(classes.values()):,} rows)" if classes else ""


def _json_record(found: Inspection) -> dict[str, object]:
    splits = {
        split: {"rows": part.rows, "bytes": part.bytes, "captions": part.captions, "classes": dict(part.classes)}
        for split, part in found.splits.items()
    }
    return {
        "url": found.url,
        "splits": splits,
        "vocabulary": found.vocabulary,
        "duplicates": dict(found.duplicates),
        "dropped": dict(found.manifest.dropped),
    }


def _verify(args: argparse.Namespace) -> int:
    from headway.data.dataset.inspect import verify

    with bar() as progress:
        found = verify(args.dest, progress=progress)
    if args.json:
        damage = [{"key": each.key, "what": each.what} for each in found.damage]
        print(as_json({"whole": found.intact, "files": found.files, "bytes": found.bytes, "damage": damage}))
    else:
        for each in found.damage:
            print(f"{each.key}: {each.what}")
        print(f"{found.files} files, {size(found.bytes)}: {'whole' if found.intact else 'DAMAGED'}")
    return FINISHED if found.intact else FAILED
