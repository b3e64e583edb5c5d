"""The command line. A verb's module is imported only when the verb is typed, so that `headway --help` is instant."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

__all__ = ["main"]

# The table of verbs: one line each, with the functions that implement it.


class Verb(NamedTuple):
    summary: str
    functions: str  # "module:name", which has `name_arguments(parser)` and `name_command(args) -> int`


VERBS = {
    "ci": Verb("write the pipeline that trains when a commit says !train!", "headway.cli.setup:ci"),
    "compare": Verb("compare runs: metrics with confidence intervals, settings, curves", "headway.cli.model:compare"),
    "completion": Verb("print the shell completion script", "headway.cli.dispatch:completion"),
    "data": Verb("prepare, inspect or verify a data set", "headway.cli.data:data"),
    "deploy": Verb("deploy a model to Cloud Run or Vertex AI, or remove it", "headway.cli.serve:deploy"),
    "doctor": Verb("check this machine and print the command for what is missing", "headway.cli.verify:doctor"),
    "down": Verb("stop a run and remove all it created, except its folder", "headway.cli.stop:stop"),
    "eval": Verb("evaluate a run's model on held-out data and write a report", "headway.cli.model:eval"),
    "export": Verb("export a bundle: all that is needed to use the model", "headway.cli.model:export"),
    "gc": Verb("find and remove what runs left behind, on all targets", "headway.cli.stop:gc"),
    "image": Verb("print, build or push the container image of a job", "headway.cli.setup:image"),
    "infra": Verb("write the Terraform that sets up a cloud project", "headway.cli.setup:infra"),
    "init": Verb("write a commented headway.yaml to start from", "headway.cli.run:init"),
    "logs": Verb("print a run's log", "headway.cli.follow:logs"),
    "notebook": Verb("open Jupyter on a run's machine in your browser", "headway.cli.inspect:notebook"),
    "plan": Verb("show what `run` would do, without doing it", "headway.cli.run:plan"),
    "plugins": Verb("list targets, recipes, stores, trackers and readers", "headway.cli.verify:plugins"),
    "predict": Verb("run a model on your own inputs", "headway.cli.model:predict"),
    "prices": Verb("list the hourly prices of accelerators, by region", "headway.cli.setup:prices"),
    "ps": Verb("list runs, newest first", "headway.cli.inspect:ps"),
    "pull": Verb("copy a run's folder, or part of it, to this machine", "headway.cli.inspect:pull"),
    "resume": Verb("resume a run from its last checkpoint", "headway.cli.run:resume"),
    "run": Verb("train on this machine or on a target of the job file", "headway.cli.run:run"),
    "score": Verb("score captions, grades, classes or translations in files", "headway.cli.model:score"),
    "serve": Verb("serve a model over HTTP, with a page to try it", "headway.cli.serve:serve"),
    "status": Verb("show a run's status", "headway.cli.inspect:status"),
    "stop": Verb("stop a run after a checkpoint, so that it can be resumed", "headway.cli.stop:stop"),
    "ui": Verb("show all runs in a browser: curves, logs, comparison", "headway.cli.inspect:ui"),
    "verify-resume": Verb("check that a killed and resumed run ends the same", "headway.cli.verify:verify_resume"),
    "watch": Verb("watch a run in the terminal: curves, speed, time left, cost", "headway.cli.follow:watch"),
    "why": Verb("explain why a run failed and how to fix it", "headway.cli.inspect:why"),
}

GROUPS = {
    "Start": ["init", "prices", "plan", "image", "run"],
    "Watch": ["ps", "status", "watch", "logs", "ui", "notebook", "why"],
    "Stop and resume": ["stop", "resume", "down", "gc"],
    "Use the model": ["eval", "compare", "export", "predict", "serve", "deploy", "pull"],
    "Data and scores": ["data", "score"],
    "Set up": ["infra", "ci"],
    "This machine": ["doctor", "plugins", "verify-resume", "completion"],
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing a user does ends in a traceback."""
    words = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what could come next
        from headway.cli.dispatch import complete

        complete()
    if not words or words[0] in ("-h", "--help", "help"):
        try:
            print(usage(), flush=True)
        except BrokenPipeError:  # `headway --help | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if words[0] in ("-V", "--version"):
        from headway._version import __version__

        print(f"headway {__version__}")
        return 0
    from headway.cli.dispatch import dispatch

    return dispatch(words)


def usage() -> str:
    """Return the text of `headway --help`: the verbs, grouped by task."""
    lines = ["usage: headway VERB …", "", "Train a model from one job file, here or anywhere.", ""]
    for title, names in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<14} {VERBS[name].summary}" for name in names), ""]
    lines += ["headway VERB --help explains a verb. A RUN is a name, a unique prefix, `last`, a folder or a URL.",
              "First time here?   headway init && headway run"]  # fmt: skip
    return "\n".join(lines)
