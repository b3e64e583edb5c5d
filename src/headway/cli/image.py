"""`headway image`: the container image of a job, as a Dockerfile to read, or built, pushed, or with a shell in it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.bars import working
from headway.cli.jobs import DEFAULT, load_job
from headway.cli.runs import add_json
from headway.cli.show import as_json
from headway.errors import BadInput, BadJob

if TYPE_CHECKING:
    from headway.image.blueprint import Blueprint
    from headway.spec import Job
    from headway.targets.docker.options import Options

DOCKER = "docker"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="change a key for this once: --set image.base=python:3.12-slim")  # fmt: skip
    parser.add_argument("--on", default=DOCKER, metavar="TARGET",
                        help="a docker target of the job file: its command and platform (default: docker)")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", action="store_true", help="build it, unless it is there")
    what.add_argument("--push", action="store_true", help="build it and push it to image.repository")
    what.add_argument("--shell", action="store_true", help="build it and open a shell in it")
    what.add_argument("--out", metavar="DIR", help="write the folder it is built from, to build it elsewhere")
    add_json(parser)
    parser.set_defaults(env=[], secret=[])


def main(args: argparse.Namespace) -> int:
    job = load_job(args)
    options, image = _options(job, args.on), None
    if not job.image.uri:
        image = blueprint(job, options.platform)
    elif not args.shell:
        fix = "remove image.uri, or write it as image.base to build upon it"
        raise BadInput(f"the job names a ready image, so there is none to build: {job.image.uri}", fix=fix)
    if args.shell:
        return _shell(job, options, image)
    assert image is not None
    if args.out:
        return _write(job, image, Path(args.out))
    if args.build or args.push:
        return _make(job, options, image, push=args.push, json=args.json)
    print(as_json({"name": image.name, "dockerfile": image.dockerfile()}) if args.json else image.dockerfile(), end="")
    return 0


def blueprint(job: Job, platform: str) -> Blueprint:
    """What would be built for this job, by this Headway and this Python. Asks no daemon."""
    from headway.image import reference, requirements
    from headway.image.blueprint import of_parts
    from headway.planning.package import package
    from headway.planning.wheel import own_wheel
    from headway.spec import dump
    from headway.version import __version__

    problems = reference.problems(dump(job)["image"], job.name)
    if job.requirements:
        problems += requirements.problems(Path(job.root), job.requirements)
    if problems:
        raise BadJob(problems)
    python = ".".join(map(str, sys.version_info[:3]))
    sha256 = package(job).sha256
    return of_parts(dump(job), sha256, own_wheel(), headway=__version__, python=python, platform=platform)


def _options(job: Job, on: str) -> Options:
    from headway.spec.plain import from_plain
    from headway.targets import registry
    from headway.targets.docker.options import Options

    entry = registry.entry(job, on)
    if entry.kind != DOCKER:
        raise BadInput(f"{on} is a target of kind {entry.kind}", fix="--on a target of kind docker, or leave it out")
    return from_plain(entry.options, Options, where=f"options of {on}")


def _make(job: Job, options: Options, image: Blueprint, *, push: bool, json: bool) -> int:
    from headway.image import build
    from headway.image.engine import run

    with working(f"{'pushing' if push else 'building'} {image.name}"):
        make = build.push if push else build.build
        uri = make(run, options.command, image, job.outputs)
    if push:
        next_step = "plans of this very job and code name it by this digest from now on\nnext: headway plan"
    else:
        next_step = "next: headway run --on docker"
    print(as_json({"uri": uri}) if json else f"{uri}\n{next_step}")
    return 0


def _write(job: Job, image: Blueprint, folder: Path) -> int:
    from headway.image import context

    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", fix="--out a new folder")
    context.write(image, job.outputs, folder)
    print(f"{folder} is ready\nnext: docker build --platform {image.platform} --tag {image.name} {folder}")
    return 0


def _shell(job: Job, options: Options, image: Blueprint | None) -> int:
    from headway.image import build
    from headway.image.engine import not_installed, run

    if image is not None:
        name = build.build(run, options.command, image, job.outputs)
    else:
        name = str(job.image.uri)
        build.pull(run, options.command, name, options.platform)
    terminal = ["--tty"] if sys.stdin.isatty() else []
    best = "command -v bash >/dev/null && exec bash; exec sh"
    who = ["--user", f"{os.getuid()}:{os.getgid()}"]
    words = [options.command, "run", "--rm", "--interactive", *terminal, *who, "--entrypoint", "sh", name, "-c", best]
    try:
        return subprocess.call(words)
    except FileNotFoundError:
        raise not_installed(options.command) from None
