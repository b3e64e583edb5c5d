"""`headway ci github|gitlab`: write the pipeline that trains on `!train!`; and the steps that it calls."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from headway.cli.runs import add_run, locate
from headway.errors import BadInput

WORKFLOWS = {"github": ".github/workflows/headway.yml", "gitlab": ".gitlab-ci.yml"}


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="github|gitlab|…")
    for name, path in WORKFLOWS.items():
        own = verbs.add_parser(name, help=f"write {path}, and Headway's wheel beside it")
        own.add_argument("--on", default="vertex", metavar="TARGET", help="where to train (default: vertex)")
        own.add_argument("--force", action="store_true", help="overwrite what is there")
        if name == "github":
            own.add_argument("--branch", default="main", metavar="B", help="whose commits train (default: main)")
    verbs.add_parser("trigger", help="which jobs $HEADWAY_MESSAGE asks for")
    verbs.add_parser("identity", help="Google's credentials of a GitLab pipeline, without a key")
    comment = verbs.add_parser("comment", help="put a file on GitLab's merge request")
    comment.add_argument("file", metavar="FILE")
    train = verbs.add_parser("train", help="train every job that $CI_COMMIT_MESSAGE asks for")
    train.add_argument("--on", default="vertex", metavar="TARGET")
    train.add_argument("--name", required=True, metavar="N", help="of the run; later ones add a number")
    add_run(verbs.add_parser("summary", help="how a run went, in Markdown"))


def main(args: argparse.Namespace) -> int:
    from headway.ci import steps, trigger

    if args.what in WORKFLOWS:
        return _write(args)
    if args.what == "trigger":
        return trigger.main()
    if args.what == "identity":
        print(steps.identity(os.environ))
    elif args.what == "comment":
        print(steps.comment(args.file, os.environ))
    elif args.what == "train":
        return _train(args)
    else:
        from headway.launcher import reach

        print(steps.summary(reach(locate(args.run))))
    return 0


def _write(args: argparse.Namespace) -> int:
    from headway.ci import workflows
    from headway.planning.wheel import own_wheel, wheel_path

    _plain(args.on, "target")
    path = Path(WORKFLOWS[args.what])
    if path.exists() and not args.force:
        raise BadInput(f"{path} is there already", fix=f"headway ci {args.what} --force")
    name, _ = own_wheel()
    if args.what == "github":
        text = workflows.github(wheel=name, on=args.on, branch=_plain(args.branch, "branch"))
    else:
        text = workflows.gitlab(wheel=name, on=args.on)
    folder = Path(workflows.FOLDER)
    folder.mkdir(exist_ok=True)
    for former in folder.glob("headway-*.whl"):
        former.unlink()
    (folder / name).write_bytes(wheel_path(name).read_bytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {path} and {folder / name}\nnext: git add {path} {folder} && git commit")
    return 0


def _plain(text: str, what: str) -> str:
    """It goes into a file that a pipeline runs."""
    import re

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", text):
        raise BadInput(f"{text!r} cannot name a {what} here", fix="letters, digits, dots, slashes and dashes")
    return text


def _train(args: argparse.Namespace) -> int:
    """One after the other: the exit code is that of the first that does not end well."""
    from headway.ci.trigger import job_files
    from headway.cli.dispatch import dispatch

    worst = 0
    files = job_files(os.environ.get("CI_COMMIT_MESSAGE", ""), Path.cwd())
    if not files:
        print("the commit's message asks for no training")
    for number, file in enumerate(files):
        name = args.name if number == 0 else f"{args.name}-{number + 1}"
        code = dispatch(["run", "-f", file, "--on", args.on, "--name", name, "--yes", "--no-rehearse"])
        worst = worst or code
    return worst
