"""`headway init`: a commented job file to start from, and for `script` a short training script beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.errors import BadInput

TEMPLATES = Path(__file__).parents[1] / "spec" / "templates"


def kinds() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.yaml"))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", default="captioning", choices=kinds(), help="default: captioning")
    parser.add_argument("--to", default=".", metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--force", action="store_true", help="replace files that are there already")


def main(args: argparse.Namespace) -> int:
    folder = Path(args.to)
    texts = {folder / "headway.yaml": TEMPLATES / f"{args.kind}.yaml"}
    if args.kind == "script":
        texts[folder / "train.py"] = TEMPLATES / "train.py"
    taken = [path for path in texts if path.exists()]
    if taken and not args.force:
        raise BadInput(f"{taken[0]} is there already; nothing was written", fix="headway init --force, or --to DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in texts.items():
        path.write_text(template.read_text())
        print(f"wrote {path}")
    here = "" if folder == Path(".") else f" -f {folder / 'headway.yaml'}"
    print(f"next: headway plan{here}   shows what would happen\n      headway run{here}    trains it here")
    return 0
