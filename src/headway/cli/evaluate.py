"""`headway eval`: score a run's model on held-out data, and write report.json and report.html into its folder."""

from __future__ import annotations

import argparse

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, table
from headway.extras import needs


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--checkpoint", default="best", metavar="NAME", help="best, last, or a name (default: best)")
    parser.add_argument("--split", default="test", help="default: test")


def main(args: argparse.Namespace) -> int:
    url = locate(args.run)
    with needs("train", "eval"):
        from headway.evaluate import evaluate_run
    report = evaluate_run(url, checkpoint=args.checkpoint, split=args.split)
    if args.json:
        print(as_json(report))
        return 0
    own = report.get("validation", {})
    rows = [(name, number(value), number(own.get(name))) for name, value in report["metrics"].items()]
    print(table(("metric", args.split, "validation"), rows))
    print(f"\nreport: {url}/report.html")
    return 0


def number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
