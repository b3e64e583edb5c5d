"""`headway predict`: try a model on your own inputs."""

from __future__ import annotations

import argparse

from headway.cli.runs import add_json, add_run, locate
from headway.cli.show import as_json, paint
from headway.extras import needs


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="picture files")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=True)
    with needs("train", "predict"):
        from headway.predict import predict
    answers = predict(url, args.inputs)
    if args.json:
        print(as_json(answers))
        return 0
    for given, answer in zip(args.inputs, answers, strict=True):
        print(f"{paint(given, 'dim')}  {answer['text']}")
    return 0
