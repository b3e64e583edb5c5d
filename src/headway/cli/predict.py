"""`headway predict`: try a model on your own inputs. Without any, what is typed or piped in is asked line by line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, paint
from headway.errors import BadInput
from headway.extras import needs

if TYPE_CHECKING:
    from headway.predict import Answer

_AT_ONCE = 64  # lines of a pipe that are asked together


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="picture files, or texts (default: what is typed)")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=True)
    with needs("train", "predict"):
        from headway.predict import open_predictor

        recipe, answer = open_predictor(url)
    if args.inputs:
        _show(answer, args.inputs, json=args.json)
    elif recipe.takes != "text":
        raise BadInput(f"{recipe.name} is asked about picture files", fix=f"headway predict {args.run} picture.png")
    elif sys.stdin.isatty() and not args.json:
        _converse(answer)
    else:
        _piped(answer, sys.stdin, json=args.json)
    return 0


def _show(answer: Answer, inputs: list[str], *, json: bool) -> None:
    answers = answer(inputs)
    if json:
        print(as_json(answers))
        return
    for given, said in zip(inputs, answers, strict=True):
        print(f"{paint(given, 'dim')}  {said['text']}")


def _converse(answer: Answer) -> None:
    """One line, one answer, until an empty line or the end of the input."""
    print(paint("Type a text and press Enter; an empty line ends.", "dim"))
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not text:
            return
        try:
            print(answer([text])[0]["text"])
        except BadInput as error:  # of this line alone: the next one may be better
            print(error)


def _piped(answer: Answer, lines: Iterable[str], *, json: bool) -> None:
    """A line out for each line in, so that the two files stay aligned; all together as JSON."""
    texts = [line.rstrip("\n") for line in lines]
    if json:
        print(as_json(answer(texts)))
        return
    for first in range(0, len(texts), _AT_ONCE):
        for said in answer(texts[first : first + _AT_ONCE]):
            print(said["text"], flush=True)
