"""`headway score`: captions, grades, classes or translations in files, scored without a run."""

from __future__ import annotations

import argparse
from typing import Any

from headway.cli.runs import add_json
from headway.cli.show import as_json, table
from headway.errors import BadInput
from headway.extras import needs

FILES = {  # what -> how its two files are called
    "captions": "RESULTS.json REFERENCES.json",
    "classification": "PREDICTIONS [LABELS]",
    "ordinal": "PREDICTIONS [LABELS]",
    "translation": "HYPOTHESES REFERENCES…",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=sorted(FILES))
    parser.add_argument("files", nargs="+", metavar="FILE", help="; ".join(f"{k}: {v}" for k, v in FILES.items()))
    parser.add_argument("--tokenized", action="store_true", help="captions: words are separated by spaces already")
    parser.add_argument("--per-image", action="store_true", help="captions: the scores of each picture too")
    parser.add_argument("--allow-missing", action="store_true", help="score what is in both files")
    parser.add_argument("--allow-empty", action="store_true", help="score empty captions and lines as they are")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    with needs("train", f"score {args.what}"):
        found = _score(args)
    if args.json:
        print(as_json(found))
        return 0
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else str(value)) for name, value in found.items()
            if isinstance(value, (int, float, str))]  # fmt: skip
    print(table(("score", args.what), rows))
    for note in found.get("notes", []):
        print(f"note: {note}")
    return 0


def _score(args: argparse.Namespace) -> dict[str, Any]:
    from headway.score import files

    given = args.files
    most = {"captions": 2, "translation": len(given)}.get(args.what, 2)
    least = 2 if args.what in ("captions", "translation") else 1
    if not least <= len(given) <= most:
        raise BadInput(
            f"score {args.what} takes {FILES[args.what]}", fix=f"headway score {args.what} {FILES[args.what]}"
        )
    _refuse_foreign_options(args)
    if args.what == "captions":
        return files.score_captions(
            *given,
            tokenized=args.tokenized,
            per_image=args.per_image,
            allow_missing=args.allow_missing,
            allow_empty=args.allow_empty,
        )
    if args.what == "translation":
        return files.score_translation(given[0], given[1:], allow_empty=args.allow_empty)
    judge = files.score_ordinal if args.what == "ordinal" else files.score_classification
    return judge(*given, allow_missing=args.allow_missing)


def _refuse_foreign_options(args: argparse.Namespace) -> None:
    """An option that would be ignored is an error."""
    belongs = {
        "tokenized": ("captions",),
        "per_image": ("captions",),
        "allow_missing": ("captions", "ordinal", "classification"),
        "allow_empty": ("captions", "translation"),
    }
    for name, whats in belongs.items():
        if getattr(args, name) and args.what not in whats:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} is for {' and '.join(whats)}", fix=f"headway score {args.what} without {option}")
