"""`headway stop` and `headway down`: end a run. Stopped, it can go on; taken down, only its folder is left."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from headway.cli.bars import working
from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json
from headway.errors import FINISHED, LEFT_BEHIND

if TYPE_CHECKING:
    from headway.targets.base import Receipt, Target


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    return _stop(args) if args.verb == "stop" else _down(args)


def _stop(args: argparse.Namespace) -> int:
    from headway.cli.attached import first_of_all, how, recorded_kind, say
    from headway.launcher import reach

    hold = reach(locate(args.run), say=say)
    kind = recorded_kind(hold.folder)
    with working(f"stopping {hold.run}{first_of_all(kind)}"):
        outcome = hold.stop()
    left = outcome.receipt.left if outcome.receipt else ()
    state = outcome.status.state
    if args.json:
        print(as_json({"run": outcome.run, "state": state.value, "left": list(left), "resume": kind}))
    else:
        following = f"headway resume {outcome.run}" if state.resumable else f"headway status {outcome.run}"
        print("\n".join([f"{outcome.run} {state.value}", *how(kind, state), f"next: {following}"]))
    return LEFT_BEHIND if left else FINISHED


def _down(args: argparse.Namespace) -> int:
    from headway.cli.attached import say
    from headway.launcher import reach

    hold = reach(locate(args.run), say=say)
    with working(f"taking {hold.run} down"):
        receipt = hold.down()
    if args.json:
        print(as_json(asdict(receipt)))
    else:
        print(f"{receipt.run}: removed {', '.join(receipt.removed) or 'nothing: it was gone already'}")
        print(_looked_again(receipt))
        for line in still_billed(hold.target):
            print(f"still billed: {line}")
    return LEFT_BEHIND if receipt.left else FINISHED


def _looked_again(receipt: Receipt) -> str:
    if receipt.left:
        return f"LEFT BEHIND: {', '.join(receipt.left)}"
    if receipt.unverified:
        return f"nobody could be asked afterwards whether it is gone: {', '.join(receipt.unverified)}"
    return "looked again: nothing is left running"


def still_billed(target: Target) -> list[str]:
    """What goes on costing though no run is there, by the target's own word: a pool that does not shrink."""
    from headway.errors import HeadwayError

    ask = getattr(target, "still_billed", None)
    try:
        return list(ask()) if ask is not None else []
    except HeadwayError as error:  # the run is down: this is said besides
        return [f"could not be looked up: {error.problem.what}"]
