"""`headway stop` and `headway down`: end a run. Stopped, it can go on; taken down, only its folder is left."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json
from headway.errors import FINISHED, LEFT_BEHIND


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    return _stop(args) if args.verb == "stop" else _down(args)


def _stop(args: argparse.Namespace) -> int:
    from headway.cli.attached import say
    from headway.launcher import reach

    outcome = reach(locate(args.run), say=say).stop()
    left = outcome.receipt.left if outcome.receipt else ()
    if args.json:
        print(as_json({"run": outcome.run, "state": outcome.status.state.value, "left": list(left)}))
    else:
        state = outcome.status.state
        following = f"headway resume {outcome.run}" if state.resumable else f"headway status {outcome.run}"
        print(f"{outcome.run} {state.value}\nnext: {following}")
    return LEFT_BEHIND if left else FINISHED


def _down(args: argparse.Namespace) -> int:
    from headway.cli.attached import say
    from headway.launcher import reach

    receipt = reach(locate(args.run), say=say).down()
    if args.json:
        print(as_json(asdict(receipt)))
    else:
        print(f"{receipt.run}: removed {', '.join(receipt.removed) or 'nothing: it was gone already'}")
        print(f"LEFT BEHIND: {', '.join(receipt.left)}" if receipt.left else "looked again: nothing is left running")
    return LEFT_BEHIND if receipt.left else FINISHED
