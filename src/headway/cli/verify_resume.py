"""`headway verify-resume`: train a few steps twice, once killed and resumed, and say whether the weights agree."""

from __future__ import annotations

import argparse
import signal
from types import FrameType
from typing import TYPE_CHECKING

from headway.cli.jobs import DEFAULT, load_job
from headway.cli.runs import add_json
from headway.cli.show import as_json, paint
from headway.errors import FAILED, FINISHED

if TYPE_CHECKING:
    from headway.verify import Proof

STEPS = 30
SHOWN = 5  # suspicious lines, and parts that differ


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="change a key for this once: --set config.batch=8")  # fmt: skip
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"how many (default: {STEPS})")
    add_json(parser)
    parser.set_defaults(env=[], secret=[])


def main(args: argparse.Namespace) -> int:
    """0 only when every bit is the same."""
    from headway.cli.attached import say
    from headway.extras import needs
    from headway.verify import prove

    signal.signal(signal.SIGTERM, _interrupted)
    with needs("train", "verify-resume"):
        proof = prove(load_job(args), steps=args.steps, say=say)
    print(as_json(proof.to_dict()) if args.json else describe(proof))
    return FINISHED if proof.exact else FAILED


def _interrupted(number: int, frame: FrameType | None) -> None:
    """As for Ctrl-C: what was started is taken down on the way out."""
    raise KeyboardInterrupt


def describe(proof: Proof) -> str:
    compared = proof.compared
    ranks = "its rank" if proof.ranks == 1 else f"all {proof.ranks} ranks"
    identical = not compared.differing
    amount = (
        "0, bit-identical"
        if identical
        else f"{compared.largest:.3g}" + (f" in {compared.where}" if compared.where else "")
    )
    rows = [
        f"{proof.steps} steps; {ranks} killed after step {proof.killed_after}, resumed from step {proof.resumed_from}",
        f"weights and other tensors ({compared.tensors}), largest difference: {amount}",
        _metrics(proof),
    ]
    if proof.exact:
        return "\n".join([paint("exact: killed and resumed is the same as never killed", "green"), *_indented(rows)])
    return "\n".join([paint("NOT exact", "red"), *_indented([*rows, *_first(proof), *_why(proof)])])


def _metrics(proof: Proof) -> str:
    found = proof.histories
    aside = f" (but for {', '.join(found.clocks)}, which differs in any two runs)" if found.clocks else ""
    if not found.records:
        return "metrics: none were logged"
    if found.first_step is None:
        return f"metrics of {found.records} steps: equal{aside}"
    one, other = found.values
    return f"metrics: {found.names[0]} differs from step {found.first_step} on: {one} ≠ {other}{aside}"


def _first(proof: Proof) -> list[str]:
    first, compared = proof.compared.first, proof.compared
    if first is None:
        return []
    size = first.words if first.amount is None else f"by {first.amount:.3g}"
    looked = ", ".join(map(str, compared.steps))
    more = len(compared.differing) - SHOWN
    parts = ", ".join(compared.differing[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [
        f"differs first: {first.part}, {size}, at step {first.step} (looked at {looked})",
        f"differ at the end: {parts}",
    ]


def _why(proof: Proof) -> list[str]:
    cause = proof.cause
    if cause is None:
        return []
    lines = [f"  {suspect.where}: {suspect.code}" for suspect in cause.look_at[:SHOWN]]
    return [f"likely cause: {cause.words}", *lines, f"fix: {cause.fix}"]


def _indented(rows: list[str]) -> list[str]:
    return [f"  {row}" for row in rows]
