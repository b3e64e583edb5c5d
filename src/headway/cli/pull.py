"""`headway pull`: a run's folder, or parts of it, copied to this machine."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from headway.cli.bars import working
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, size
from headway.errors import BadInput, UnknownRun
from headway.ongoing import Report

PARTS = ("checkpoints", "events", "export", "files", "logs", "metrics", "samples")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--to", metavar="DIR", help="default: a folder with the run's name, here")
    parser.add_argument("--as", dest="form", choices=("pth",),
                        help="its named checkpoints and best weights as torch's own files instead")  # fmt: skip
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be given several times")


def main(args: argparse.Namespace) -> int:
    from headway.storage import local_path, open_store, require_url
    from headway.storage.transfer import fetch_file

    url = locate(args.run)
    require_url(args.to or "")
    to = Path(args.to or url.rstrip("/").rsplit("/", 1)[-1]).resolve()
    if local_path(url) == to:
        raise BadInput(f"{to} is the run's own folder: it is here already", fix="headway pull RUN --to DIR")
    if args.form:
        return _as_pth(args, url, str(to))
    store = open_store(url)
    wanted = [e for e in store.list() if not e.key.startswith(("docker/", "local/")) and _chosen(e.key, args.only)]
    if not wanted:
        raise UnknownRun(f"there is nothing to copy in {url}", fix="headway status RUN")
    total, doing = sum(entry.size for entry in wanted), f"copying to {to}"
    with working(doing) as tell:
        done = 0
        for entry in wanted:
            target, before = to / entry.key, done
            if not target.exists() or target.stat().st_size != entry.size:
                fetch_file(store, entry.key, target, progress=partial(_told, tell, doing, before, total))
            done += entry.size
    said = {"to": str(to), "files": len(wanted), "bytes": total}
    print(as_json(said) if args.json else f"{len(wanted)} files, {size(total)} in {to}")
    return 0


def _told(tell: Report, doing: str, before: int, total: int, got: int, of: int) -> None:
    tell(doing, before + got, total)


def _as_pth(args: argparse.Namespace, url: str, to: str) -> int:
    from headway.cli.export import told
    from headway.extras import needs

    if args.only:
        raise BadInput("--as pth says already what is copied", fix="leave out --only")
    with needs("train", "pull --as pth"):
        from headway.formats import write_pth
    with working(f"writing {to}"):
        files = write_pth(url, to)
    return told({"to": to, "files": files}, args.json)


def _chosen(key: str, only: list[str] | None) -> bool:
    return not only or key.partition("/")[0] in only
