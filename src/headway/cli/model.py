"""The verbs that use a trained model: `eval compare export predict score`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import add_json, add_model, add_run, locate, model_choice
from headway.cli.render import progress_while
from headway.core.errors import BadInput, needs
from headway.core.format import as_json, duration, paint, size, table

if TYPE_CHECKING:
    from headway.artifacts.models import LoadedModel
    from headway.artifacts.predictor import Field

Answer = Callable[[Sequence[str]], list[dict[str, Any]]]


# `headway compare`: show runs side by side: metrics with confidence intervals, settings that differ, and curves.


_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 24  # characters of a curve


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names, folders or URLs; the first is the baseline")
    parser.add_argument("--page", metavar="FILE", help="write an HTML page with charts")
    add_json(parser)


def compare_command(args: argparse.Namespace) -> int:
    with needs("train", "compare"):
        from headway.artifacts.compare import compare, page, read_run

        found = compare([read_run(locate(text)) for text in args.runs])
    if args.page:
        Path(args.page).write_text(page(found), encoding="utf-8")
    if args.json:
        print(as_json(found))
        return 0
    for line in _comparison_text(found):
        print(line)
    if args.page:
        print(f"\npage: {args.page}")
    return 0


def _comparison_text(found: Mapping[str, Any]) -> list[str]:
    from headway.artifacts.compare import is_significant, metric_text

    names = [run["name"] for run in found["runs"]]
    metrics = [[name, *map(metric_text, values)] for name, values in found["metrics"].items()]
    lines = [table(["metric", *names], metrics)] if metrics else []
    if any(is_significant(entry) for values in found["metrics"].values() for entry in values):
        lines.append(paint("* differs significantly from the first run (95 % bootstrap interval)", "dim"))
    about = [
        ["measured on", *(run["measured"] for run in found["runs"])],
        ["steps", *(f"{run['steps']:,}" for run in found["runs"])],
        ["training", *("" if run["seconds"] is None else duration(run["seconds"]) for run in found["runs"])],
    ]
    lines += ["", table(["", *names], about)]
    if found["settings"]:
        rows = [[key, *(_short(value) for value in values)] for key, values in found["settings"].items()]
        lines += ["", table(["settings that differ", *names], rows)]
    curves = [
        [name, *(spark([y for _, y in points]) for points in each)]
        for name, each in found["curves"].items()
        if name == "loss" or name in found["metrics"]
    ]
    if curves:
        lines += ["", table(["curve", *names], curves)]
    return [*lines, *(f"note: {note}" for note in found["notes"])]


def spark(values: Sequence[float]) -> str:
    """Draw a curve in characters, from its first value to its last: 0.41 ▁▃▅▆▇█ 0.93."""
    if not values:
        return ""
    step = max(1.0, len(values) / _WIDE)
    some = [values[min(len(values) - 1, int(n * step))] for n in range(min(_WIDE, len(values)))]
    low, high = min(some), max(some)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    return f"{values[0]:.3g} {''.join(_BARS[round((value - low) * scale)] for value in some)} {values[-1]:.3g}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


# `headway eval`: score the model of a run or a bundle on held-out data. A run's report is written to its folder.


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--checkpoint", default="best", metavar="NAME",
                        help="best, last, a name such as phase2_best, or a step (default: best)")  # fmt: skip
    parser.add_argument("--data", metavar="DATA", help="other data: a prepared data set or a splits.json")
    parser.add_argument("--root", metavar="DIR|URL", help="the folder with the images of that splits.json")
    parser.add_argument("--split", default="test", help="default: test")
    add_model(parser)


def eval_command(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=True)
    with needs("train", "eval"):
        import headway.artifacts.checkpoint_model  # noqa: F401  imported late otherwise, without this message
        from headway.artifacts.evaluate import evaluate
    with progress_while(f"evaluating {args.run}"):
        report = evaluate(
            url, checkpoint=args.checkpoint, split=args.split, data=args.data, root=args.root, choice=model_choice(args)
        )
    if args.json:
        print(as_json(report))
        return 0
    own = report.get("validation", {})
    ends = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in report["intervals"].items()}
    rows = [
        (name, number(value), ends.get(name, ""), number(own.get(name))) for name, value in report["metrics"].items()
    ]
    print(table(("metric", args.split, "95 % interval", "validation"), rows))
    for name in report:
        if name.startswith("per_") and report[name]:
            print(f"\n{_detail(report[name])}")
    print(f"\n{report['count']:,} inputs of {report['data']}")
    if "run" in report:
        print(f"report: {url}/report.html")
    return 0


def _detail(records: list[Mapping[str, Any]]) -> str:
    """Format one row per class or grade."""
    head = list(records[0])
    return table(head, [[number(record[name]) for name in head] for record in records])


def number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)


# `headway export`: export a run's model as a bundle, or as ONNX, torch.export or `.pth` files.


BUNDLE = "bundle"
WEIGHTS = ("pth", "safetensors")
FORMATS = (BUNDLE, "onnx", "pt2", *WEIGHTS)


def export_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--as", dest="form", choices=FORMATS, default=BUNDLE,
                        help="bundle: for Headway; onnx and pt2: graphs for other runtimes, checked against "
                        "the model; pth and safetensors: the weights of any run (default: bundle)")  # fmt: skip
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="best, last, or a name (default: the one that the run exported)"
    )
    parser.add_argument("--to", metavar="URL",
                        help="for a bundle: also publish it here; else: the folder to write")  # fmt: skip
    add_model(parser)


def export_command(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=args.form != BUNDLE)
    if args.form != BUNDLE:
        return _files(args, url)
    with needs("train", "export"):
        import headway.artifacts.checkpoint_model  # noqa: F401  imported late otherwise, without this message
        from headway.artifacts.export import export_run
    with progress_while(f"exporting {args.run}"):
        bundle = export_run(url, checkpoint=args.checkpoint, to=args.to, choice=model_choice(args))
    print(as_json({"bundle": bundle}) if args.json else f"bundle: {bundle}\nnext: headway predict {bundle} INPUT…")
    return 0


def _files(args: argparse.Namespace, url: str) -> int:
    to = args.to or f"{url.rstrip('/').rsplit('/', 1)[-1]}-{args.form}"
    if args.form in WEIGHTS:
        return write_weight_files(url, args.form, to, checkpoint=args.checkpoint, json=args.json)
    with needs("train", f"export --as {args.form}"):
        from headway.artifacts.export import write_graphs
    with progress_while(f"exporting and checking {args.form}"):
        made = write_graphs(url, args.form, to, checkpoint=args.checkpoint or "best", choice=model_choice(args))
    if args.json:
        print(as_json(made))
        return 0
    for graph in made["graphs"]:
        inputs = ", ".join(f"{name}: {shape}" for name, shape in graph["inputs"].items())
        print(f"{to}/{graph['file']}  {size(graph['bytes'])}")
        print(f"  {inputs} -> {', '.join(graph['outputs'])}")
        print(f"  checked: differs from the model by at most {graph['largest_difference']:.1g} of its largest value")
    return 0


def write_weight_files(url: str, form: str, to: str, *, checkpoint: str | None, json: bool) -> int:
    """Write the weights of a run or a bundle, and print the files."""
    with needs("train", f"--as {form}"):
        from headway.artifacts.weights import write_weights
    with progress_while(f"writing {to}"):
        made = write_weights(url, form, to, checkpoint=checkpoint)
    if json:
        print(as_json({"to": to, "files": made.files, **({"notes": made.notes} if made.notes else {})}))
        return 0
    print("\n".join(f"{to}/{name}" for name in made.files))
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


# `headway predict`: run a model on your own inputs; without any, on the lines of standard input.


_BATCH_LINES = 64  # lines of a pipe per batch


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="files, texts, tables (CSV, JSON lines, Parquet), folders or globs (default: standard input)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write JSON lines or Parquet instead (.jsonl, .parquet); a repeated command goes on where it ended",
    )
    parser.add_argument("--shard", metavar="I/N", help="with --out: this process answers one of N parts (1/4)")
    add_model(parser)
    add_json(parser)


def predict_command(args: argparse.Namespace) -> int:
    url = locate(args.run, bundles=True)
    with needs("train", "predict"):
        from headway.artifacts.models import open_model

        model = open_model(url, model_choice(args))
    if args.out:
        return _predict_to_file(args, model)
    answer = model.answers
    if args.inputs:
        _show(answer, args.inputs, json=args.json)
    elif not takes_typed_text(model.service().fields):
        raise BadInput(f"{model.name} takes files or several values", fix=f"headway predict {args.run} INPUT")
    elif sys.stdin.isatty() and not args.json:
        _interactive(answer)
    else:
        _from_stdin(answer, sys.stdin, json=args.json)
    return 0


def _predict_to_file(args: argparse.Namespace, model: LoadedModel) -> int:
    from headway.artifacts.batch import predict_to_file, shard_of

    if not args.inputs:
        raise BadInput("--out needs inputs", fix="headway predict RUN FILE.csv --out answers.jsonl")
    shard = shard_of(args.shard)
    with progress_while(f"predicting to {args.out}"):
        done = predict_to_file(model, args.inputs, args.out, shard=shard)
    if args.json:
        print(as_json({"out": args.out, **asdict(done)}))
        return 0
    if done.complete:
        print(f"{done.samples:,} samples in {args.out}")
    else:
        print(f"{done.answered:,} of {done.samples:,} samples answered; {args.out} is written after the last shard")
    if done.refused:
        print(f"note: {done.refused:,} of them have an error instead of an answer", file=sys.stderr)
    return 0


def takes_typed_text(fields: Sequence[Field]) -> bool:
    """Whether each line of standard input is one input."""
    return [field.kind for field in fields if field.required] == ["text"]


def _show(answer: Answer, inputs: list[str], *, json: bool) -> None:
    answers = answer(inputs)
    if json:
        print(as_json(answers))
        return
    for answer_record in answers:
        print(f"{paint(answer_record['input'], 'dim')}  {answer_record['text']}")


def _interactive(answer: Answer) -> None:
    """Answer each line, until an empty line or the end of the input."""
    print(paint("Type a text and press Enter; an empty line quits.", "dim"))
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
        except BadInput as error:  # about this line only: continue with the next
            print(error)


def _from_stdin(answer: Answer, lines: Iterable[str], *, json: bool) -> None:
    """Print one line per input line, so that the two files stay aligned; with --json, one document."""
    texts = [line.rstrip("\n") for line in lines]
    if json:
        print(as_json(answer(texts)))
        return
    for first in range(0, len(texts), _BATCH_LINES):
        for prediction in answer(texts[first : first + _BATCH_LINES]):
            print(prediction["text"], flush=True)


FILES = {  # what -> names of its files in the usage
    "captions": "RESULTS.json REFERENCES.json",
    "classification": "PREDICTIONS [LABELS]",
    "ordinal": "PREDICTIONS [LABELS]",
    "translation": "HYPOTHESES REFERENCES…",
}


def score_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=sorted(FILES))
    parser.add_argument("files", nargs="+", metavar="FILE", help="; ".join(f"{k}: {v}" for k, v in FILES.items()))
    parser.add_argument("--tokenized", action="store_true", help="captions: the words are already tokenized")
    parser.add_argument("--per-image", action="store_true", help="captions: also print the scores of each image")
    parser.add_argument("--allow-missing", action="store_true", help="score only entries that are in both files")
    parser.add_argument(
        "--allow-empty", action="store_true", help="score empty captions and lines instead of rejecting them"
    )
    add_json(parser)


def score_command(args: argparse.Namespace) -> int:
    with needs("train", f"score {args.what}"):
        found = _score(args)
    if args.json:
        print(as_json(found))
        return 0
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else str(value)) for name, value in found.items()
            if isinstance(value, (int, float, str))]  # fmt: skip
    print(table(("score", args.what), rows))
    for note in found.get("notes", []):
        print(f"note: {note}")
    return 0


def _score(args: argparse.Namespace) -> dict[str, Any]:
    from headway.metrics import files

    given = args.files
    most = {"captions": 2, "translation": len(given)}.get(args.what, 2)
    least = 2 if args.what in ("captions", "translation") else 1
    if not least <= len(given) <= most:
        raise BadInput(
            f"score {args.what} takes {FILES[args.what]}", fix=f"headway score {args.what} {FILES[args.what]}"
        )
    _refuse_foreign_options(args)
    if args.what == "captions":
        return files.score_captions(
            *given,
            tokenized=args.tokenized,
            per_image=args.per_image,
            allow_missing=args.allow_missing,
            allow_empty=args.allow_empty,
        )
    if args.what == "translation":
        return files.score_translation(given[0], given[1:], allow_empty=args.allow_empty)
    judge = files.score_ordinal if args.what == "ordinal" else files.score_classification
    return judge(*given, allow_missing=args.allow_missing)


def _refuse_foreign_options(args: argparse.Namespace) -> None:
    """Raise BadInput for an option that would have no effect."""
    belongs = {
        "tokenized": ("captions",),
        "per_image": ("captions",),
        "allow_missing": ("captions", "ordinal", "classification"),
        "allow_empty": ("captions", "translation"),
    }
    for name, whats in belongs.items():
        if getattr(args, name) and args.what not in whats:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} applies only to {' and '.join(whats)}", fix=f"headway score {args.what} without {option}"
            )
