"""`headway eval`: score a run's model, or a bundle's, on held-out data; a run's report goes into its folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from headway.cli.bars import working
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, table
from headway.extras import needs


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--checkpoint", default="best", metavar="NAME",
                        help="best, last, a name such as phase2_best, or a step (default: best)")  # fmt: skip
    parser.add_argument("--data", metavar="DATA", help="other data: what `data prepare` made, or a splits.json")
    parser.add_argument("--root", metavar="DIR|URL", help="where the pictures of that splits.json are")
    parser.add_argument("--split", default="test", help="default: test")


def main(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=True)
    with needs("train", "eval"):
        import headway.recipes.trained  # noqa: F401  which is loaded late, when no good word is left
        from headway.evaluate import evaluate
    with working(f"measuring {args.run}"):
        report = evaluate(url, checkpoint=args.checkpoint, split=args.split, data=args.data, root=args.root)
    if args.json:
        print(as_json(report))
        return 0
    own = report.get("validation", {})
    rows = [(name, number(value), number(own.get(name))) for name, value in report["metrics"].items()]
    print(table(("metric", args.split, "validation"), rows))
    for name in report:
        if name.startswith("per_") and report[name]:
            print(f"\n{_detail(report[name])}")
    print(f"\n{report['count']:,} inputs of {report['data']}")
    if "run" in report:
        print(f"report: {url}/report.html")
    return 0


def _detail(records: list[Mapping[str, Any]]) -> str:
    """A row for each class or grade."""
    head = list(records[0])
    return table(head, [[number(record[name]) for name in head] for record in records])


def number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
