"""`headway resume`: go on with a run where it was left, with the code it was started with."""

from __future__ import annotations

import argparse

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-d", "--detach", action="store_true", help="start it and return; it survives this terminal")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.cli.attached import attach, say
    from headway.intent import now
    from headway.launcher import resume

    url, since = locate(args.run), now()
    launched = resume(url, say=say)
    if not args.detach:
        return attach(launched, since=since, json=args.json)
    found = {"run": launched.run, "url": launched.url}
    print(as_json(found) if args.json else f"{launched.run} goes on\nnext: headway logs {launched.run} -f")
    return 0
