"""`headway export`: a run's model as a bundle, in its folder or published; or as ONNX, torch.export or `.pth` files."""

from __future__ import annotations

import argparse
from typing import Any

from headway.cli.bars import working
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, size
from headway.errors import BadInput
from headway.extras import needs

BUNDLE = "bundle"
FORMATS = (BUNDLE, "onnx", "pt2", "pth")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--as", dest="form", choices=FORMATS, default=BUNDLE,
                        help="bundle: all that Headway needs; onnx and pt2: graphs for other runtimes, checked against "
                        "the model; pth: state dicts (default: bundle)")  # fmt: skip
    parser.add_argument("--checkpoint", metavar="NAME", help="best, last, or a name (default: what the run exported)")
    parser.add_argument("--to", metavar="URL",
                        help="a bundle: publish it here too, atomically; else where the files go")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=args.form != BUNDLE)
    if args.form != BUNDLE:
        return _files(args, url)
    with needs("train", "export"):
        import headway.recipes.trained  # noqa: F401  which is loaded late, when no good word is left
        from headway.export import export_run
    with working(f"exporting {args.run}"):
        bundle = export_run(url, checkpoint=args.checkpoint, to=args.to)
    print(as_json({"bundle": bundle}) if args.json else f"bundle: {bundle}\nnext: headway predict {bundle} INPUT…")
    return 0


def _files(args: argparse.Namespace, url: str) -> int:
    with needs("train", f"export --as {args.form}"):
        from headway.formats import write_graphs, write_pth
    to = args.to or f"{url.rstrip('/').rsplit('/', 1)[-1]}-{args.form}"
    if args.form == "pth":
        if args.checkpoint:
            raise BadInput("--as pth writes every named checkpoint", fix="leave out --checkpoint")
        with working(f"writing {to}"):
            files = write_pth(url, to)
        return told({"to": to, "files": files}, args.json)
    with working(f"exporting and checking {args.form}"):
        made = write_graphs(url, args.form, to, checkpoint=args.checkpoint or "best")
    if args.json:
        print(as_json(made))
        return 0
    for graph in made["graphs"]:
        inputs = ", ".join(f"{name}: {shape}" for name, shape in graph["inputs"].items())
        print(f"{to}/{graph['file']}  {size(graph['bytes'])}")
        print(f"  {inputs} -> {', '.join(graph['outputs'])}")
        print(f"  checked: differs from the model by at most {graph['largest_difference']:.1g} of its largest value")
    return 0


def told(made: dict[str, Any], json: bool) -> int:
    print(as_json(made) if json else "\n".join(f"{made['to']}/{name}" for name in made["files"]))
    return 0
