"""The table of verbs: one line each, with the functions that implement it."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    summary: str
    functions: str  # "module:name", which has `name_arguments(parser)` and `name_command(args) -> int`


VERBS = {
    "ci": Verb("write the pipeline that trains when a commit says !train!", "headway.cli.setup:ci"),
    "compare": Verb("runs side by side: metrics with intervals, settings, curves", "headway.cli.model:compare"),
    "completion": Verb("print the shell completion script", "headway.cli.dispatch:completion"),
    "data": Verb("prepare a data set, look into it, verify it", "headway.cli.data:data"),
    "deploy": Verb("put a model on Cloud Run or Vertex AI: show it, do it, end it", "headway.cli.serve:deploy"),
    "doctor": Verb("check this machine, and say what to type for what is missing", "headway.cli.verify:doctor"),
    "down": Verb("stop a run and remove all it made, except its folder", "headway.cli.stop:stop"),
    "eval": Verb("score a run's model on held-out data and write its report", "headway.cli.model:eval"),
    "export": Verb("make a bundle: all that is needed to use the model", "headway.cli.model:export"),
    "gc": Verb("find and remove what runs left behind, everywhere", "headway.cli.stop:gc"),
    "image": Verb("print, build or push the container image of a job", "headway.cli.setup:image"),
    "infra": Verb("print the Terraform that sets up a cloud project", "headway.cli.setup:infra"),
    "init": Verb("write a commented headway.yaml to start from", "headway.cli.run:init"),
    "logs": Verb("what a run printed", "headway.cli.follow:logs"),
    "notebook": Verb("Jupyter on the machine of a run, in your browser", "headway.cli.inspect:notebook"),
    "plan": Verb("what `run` would do, without doing it", "headway.cli.run:plan"),
    "predict": Verb("try a model on your own inputs", "headway.cli.model:predict"),
    "prices": Verb("what accelerators cost an hour, by region", "headway.cli.setup:prices"),
    "ps": Verb("list runs, newest first", "headway.cli.inspect:ps"),
    "pull": Verb("copy a run's folder, or part of it, to this machine", "headway.cli.inspect:pull"),
    "resume": Verb("go on with a run where it was left", "headway.cli.run:resume"),
    "run": Verb("train: here, or on a target of the job file", "headway.cli.run:run"),
    "score": Verb("score captions, grades, classes or translations in files", "headway.cli.model:score"),
    "serve": Verb("answer requests with a model, and try it in a browser", "headway.cli.serve:serve"),
    "status": Verb("how a run is doing", "headway.cli.inspect:status"),
    "stop": Verb("checkpoint, end the billing, stay resumable", "headway.cli.stop:stop"),
    "ui": Verb("all runs in a browser: curves, logs, comparison", "headway.cli.inspect:ui"),
    "verify-resume": Verb("prove that your job, killed and resumed, ends the same", "headway.cli.verify:verify_resume"),
    "watch": Verb("a run live in this terminal: curves, speed, time left, cost", "headway.cli.follow:watch"),
    "why": Verb("why a run failed, the line that shows it, and what to type", "headway.cli.inspect:why"),
}

GROUPS = {
    "Start": ["init", "prices", "plan", "image", "run"],
    "Watch": ["ps", "status", "watch", "logs", "ui", "notebook", "why"],
    "Stop and go on": ["stop", "resume", "down", "gc"],
    "Use the model": ["eval", "compare", "export", "predict", "serve", "deploy", "pull"],
    "Data and scores": ["data", "score"],
    "Set up": ["infra", "ci"],
    "This machine": ["doctor", "verify-resume", "completion"],
}
