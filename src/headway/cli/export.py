"""`headway export`: the bundle of a run's best checkpoint, or of another one, in its folder or published elsewhere."""

from __future__ import annotations

import argparse

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json
from headway.extras import needs


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--checkpoint", metavar="NAME", help="best, last, or a name (default: what the run exported)")
    parser.add_argument("--to", metavar="URL", help="publish it here too, atomically")


def main(args: argparse.Namespace) -> int:
    url = locate(args.run)
    with needs("train", "export"):
        from headway.export import export_run
    bundle = export_run(url, checkpoint=args.checkpoint, to=args.to)
    print(as_json({"bundle": bundle}) if args.json else f"bundle: {bundle}\nnext: headway predict {bundle} INPUT…")
    return 0
