"""The verbs that set things up: `image infra ci prices`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import DEFAULT, add_json, add_run, load_job, locate
from headway.cli.render import progress_while
from headway.core.errors import BadInput, BadJob
from headway.core.format import as_json, table, usd

if TYPE_CHECKING:
    from headway.packaging.dockerfile import AnyImage
    from headway.pricing.quote import Quote
    from headway.spec import Job
    from headway.targets.docker.options import Options
    from headway.tools.terraform_gcp import InfraSpec


# `headway ci github|gitlab`: write the pipeline that trains on `!train!`. The other forms are its steps.


WORKFLOWS = {"github": ".github/workflows/headway.yml", "gitlab": ".gitlab-ci.yml"}


def ci_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="github|gitlab|…")
    for name, path in WORKFLOWS.items():
        own = verbs.add_parser(name, help=f"write {path} and Headway's wheel")
        own.add_argument("--on", default="vertex", metavar="TARGET", help="where to train (default: vertex)")
        own.add_argument("--force", action="store_true", help="overwrite existing files")
        if name == "github":
            own.add_argument(
                "--branch", default="main", metavar="B", help="the branch whose commits train (default: main)"
            )
    verbs.add_parser("trigger", help="print the jobs that $HEADWAY_MESSAGE requests")
    verbs.add_parser("identity", help="get Google credentials in a GitLab pipeline, without a key")
    comment = verbs.add_parser("comment", help="post a file as a comment on the GitLab merge request")
    comment.add_argument("file", metavar="FILE")
    train = verbs.add_parser("train", help="train every job that $CI_COMMIT_MESSAGE requests")
    train.add_argument("--on", default="vertex", metavar="TARGET")
    train.add_argument("--name", required=True, metavar="N", help="name of the run; later ones get a number")
    add_run(verbs.add_parser("summary", help="print a summary of a run in Markdown"))


def ci_command(args: argparse.Namespace) -> int:
    from headway.ci import trigger
    from headway.tools import ci

    if args.what in WORKFLOWS:
        return _write_pipeline(args)
    if args.what == "trigger":
        return trigger.main()
    if args.what == "identity":
        print(ci.identity(os.environ))
    elif args.what == "comment":
        print(ci.comment(args.file, os.environ))
    elif args.what == "train":
        return _train(args)
    else:
        from headway.launcher.lifecycle import open_run

        print(ci.summary(open_run(locate(args.run))))
    return 0


def _write_pipeline(args: argparse.Namespace) -> int:
    from headway.packaging.code import build_wheel, wheel_path
    from headway.tools import ci

    _pipeline_json(args.on, "target")
    path = Path(WORKFLOWS[args.what])
    if path.exists() and not args.force:
        raise BadInput(f"{path} already exists", fix=f"headway ci {args.what} --force")
    name, _ = build_wheel()
    if args.what == "github":
        text = ci.github(wheel=name, on=args.on, branch=_pipeline_json(args.branch, "branch"))
    else:
        text = ci.gitlab(wheel=name, on=args.on)
    folder = Path(ci.FOLDER)
    folder.mkdir(exist_ok=True)
    for former in folder.glob("headway-*.whl"):
        former.unlink()
    (folder / name).write_bytes(wheel_path(name).read_bytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {path} and {folder / name}\nnext: git add {path} {folder} && git commit")
    return 0


def _pipeline_json(text: str, what: str) -> str:
    """Return a name that is safe in a pipeline file, or raise BadInput."""
    import re

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", text):
        raise BadInput(f"{text!r} is not a valid {what} name here", fix="letters, digits, dots, slashes and dashes")
    return text


def _train(args: argparse.Namespace) -> int:
    """Train the jobs one after the other; return the exit code of the first that fails."""
    from headway.ci.trigger import job_files
    from headway.cli.dispatch import dispatch

    worst = 0
    files = job_files(os.environ.get("CI_COMMIT_MESSAGE", ""), Path.cwd())
    if not files:
        print("the commit message requests no training")
    for number, file in enumerate(files):
        name = args.name if number == 0 else f"{args.name}-{number + 1}"
        code = dispatch(["run", "-f", file, "--on", args.on, "--name", name, "--yes", "--no-rehearse"])
        worst = worst or code
    return worst


DOCKER, KUBERNETES = "docker", "kubernetes"


def image_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default=DEFAULT, metavar="FILE", help=f"the job file (default: {DEFAULT})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="override a key of the job file: --set image.base=python:3.12-slim")  # fmt: skip
    parser.add_argument("--on", default=DOCKER, metavar="TARGET",
                        help="a docker target: its command and platform (default: docker); or a Kubernetes target, "
                             "for the image of its supervisor")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", action="store_true", help="build it, unless it exists")
    what.add_argument("--push", action="store_true", help="build it and push it to image.repository")
    what.add_argument("--shell", action="store_true", help="build it and open a shell in it")
    what.add_argument("--out", metavar="DIR", help="write its build folder, to build it elsewhere")
    add_json(parser)
    parser.set_defaults(env=[], secret=[])


def image_command(args: argparse.Namespace) -> int:
    job = load_job(args)
    repository = _supervisor_repository(job, args.on)
    if repository and (args.push or args.build):
        return _make_supervisor(job, args.on, repository, push=args.push, json=args.json)
    options, image = _options(job, args.on), None
    if not job.image.uri:
        image = blueprint(job, options.platform)
    elif not args.shell:
        fix = "remove image.uri, or set it as image.base to build on it"
        raise BadInput(f"image.uri names an existing image ({job.image.uri}), so there is nothing to build", fix=fix)
    if args.shell:
        return _shell(job, options, image)
    assert image is not None
    if args.out:
        return _write_dockerfile(job, image, Path(args.out))
    if args.build or args.push:
        return _make(job, options, image, push=args.push, json=args.json)
    print(as_json({"name": image.name, "dockerfile": image.dockerfile()}) if args.json else image.dockerfile(), end="")
    return 0


def blueprint(job: Job, platform: str) -> AnyImage:
    """Return the image that would be built for this job. Makes no request to a daemon."""
    from headway._version import __version__
    from headway.packaging import dependencies, own_dockerfile, reference
    from headway.packaging.code import build_wheel, package
    from headway.packaging.dockerfile import image_of_job
    from headway.spec import dump

    problems = reference.problems(dump(job)["image"], job.name)
    problems += own_dockerfile.problems(job) if job.image.dockerfile else dependencies.problems(job)
    if problems:
        raise BadJob(problems)
    python = ".".join(map(str, sys.version_info[:3]))
    packed = package(job)
    job = replace(job, dependencies=dependencies.find(job))
    if job.image.dockerfile:
        job = own_dockerfile.with_content(job, packed)
    return image_of_job(dump(job), packed.sha256, build_wheel(), headway=__version__, python=python, platform=platform)


def _options(job: Job, on: str) -> Options:
    from headway import targets
    from headway.spec.loading import from_plain
    from headway.targets.docker.options import Options

    entry = targets.entry(job, on)
    if entry.kind != DOCKER:
        raise BadInput(
            f"{on} is a target of kind {entry.kind}", fix="choose a target of kind docker, or leave out --on"
        )
    return from_plain(entry.options, Options, where=f"options of {on}")


def _supervisor_repository(job: Job, on: str) -> str:
    """Return where the target wants the supervisor's own image, for a job whose image has no Headway inside."""
    from headway import targets
    from headway.packaging.supervisor_runtime import is_ready_image
    from headway.spec import dump

    entry = targets.entry(job, on)
    return str(entry.options.get("supervisor") or "") if entry.kind == KUBERNETES and is_ready_image(dump(job)) else ""


def _make_supervisor(job: Job, on: str, repository: str, *, push: bool, json: bool) -> int:
    from headway.packaging import supervisor_image
    from headway.packaging.engine import run
    from headway.planning import plan

    code = plan(job, on=on).code
    with progress_while(f"{'pushing' if push else 'building'} the supervisor's image"):
        make = supervisor_image.push if push else supervisor_image.build_image
        uri = make(run, DOCKER, repository, code)
    print(as_json({"uri": uri}) if json else f"{uri}\nnext: headway run --on {on}")
    return 0


def _make(job: Job, options: Options, image: AnyImage, *, push: bool, json: bool) -> int:
    from headway.packaging import build
    from headway.packaging.engine import run

    with progress_while(f"{'pushing' if push else 'building'} {image.name}"):
        make = build.push if push else build.build
        uri = make(run, options.command, image, job.outputs)
    if push:
        next_step = "new plans of this job and code use this digest\nnext: headway plan"
    else:
        next_step = "next: headway run --on docker"
    print(as_json({"uri": uri}) if json else f"{uri}\n{next_step}")
    return 0


def _write_dockerfile(job: Job, image: AnyImage, folder: Path) -> int:
    from headway.packaging import context

    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", fix="--out a new folder")
    context.write_context(image, job.outputs, folder)
    file, place = image.build_paths(str(folder))
    named = "" if file == f"{place}/Dockerfile" else f" --file {file}"
    print(f"{folder} is ready\nnext: docker build --platform {image.platform} --tag {image.name}{named} {place}")
    return 0


def _shell(job: Job, options: Options, image: AnyImage | None) -> int:
    from headway.packaging import build
    from headway.packaging.engine import not_installed, run

    if image is not None:
        name = build.build(run, options.command, image, job.outputs)
    else:
        name = str(job.image.uri)
        build.pull_image(run, options.command, name, job.image.platform or options.platform)
    terminal = ["--tty"] if sys.stdin.isatty() else []
    best = "command -v bash >/dev/null && exec bash; exec sh"
    who = ["--user", f"{os.getuid()}:{os.getgid()}"]
    words = [options.command, "run", "--rm", "--interactive", *terminal, *who, "--entrypoint", "sh", name, "-c", best]
    try:
        return subprocess.call(words)
    except FileNotFoundError:
        raise not_installed(options.command) from None


# `headway infra gcp`: print or write the Terraform module that sets up a cloud project. Nothing is applied.


def infra_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cloud", choices=["gcp"], help="which cloud")
    parser.add_argument("-f", "--file", metavar="FILE", help="a job file: values that no option gives come from it")
    parser.add_argument("--project", metavar="P", help="the project that is billed")
    parser.add_argument("--zone", metavar="Z", help="the zone of the machines (default: us-central1-a)")
    parser.add_argument("--name", metavar="N", help="prefix for the names of resources (default: headway)")
    parser.add_argument("--bucket", metavar="B", help="the bucket for runs (default: PROJECT-NAME)")
    parser.add_argument("--namespace", metavar="NS", help="the Kubernetes namespace for jobs (default: default)")
    parser.add_argument("--secret", action="append", metavar="S", help="create a secret in Secret Manager")
    parser.add_argument("--accelerator", metavar="A:N", help="GPUs per machine (default: T4:1)")
    parser.add_argument("--machine", metavar="M", help="of the GPU machines (default: the usual one)")
    parser.add_argument("--max-nodes", type=int, metavar="N", help="maximum number of GPU machines (default: 2)")
    parser.add_argument("--spot", action="store_true", default=None, help="use spot (preemptible) GPU machines")
    parser.add_argument("--billing-account", metavar="ID", help="billing account, for a budget alert")
    parser.add_argument(
        "--budget", type=float, metavar="USD", help="dollars per month for the budget alert (default: 50)"
    )
    parser.add_argument("--no-cluster", action="store_true", help="no Kubernetes cluster, Vertex AI only")
    parser.add_argument("--workbench", action="store_true", help="also create a notebook instance")
    parser.add_argument("--out", metavar="FOLDER", help="write the module there instead of printing it")


def infra_command(args: argparse.Namespace) -> int:
    from headway.tools.terraform_gcp import module_files, write_module

    spec = _infra_spec(args)
    if args.out:
        write_module(spec, Path(args.out))
        print(f"wrote {args.out}; nothing has been applied")
        print(f"next: cd {shlex.quote(args.out)} && terraform init && terraform plan")
        return 0
    for name, text in module_files(spec).items():
        print(f"# {name}\n{text}")
    print("nothing has been written or applied; --out FOLDER writes these files", file=sys.stderr)
    return 0


def _infra_spec(args: argparse.Namespace) -> InfraSpec:
    from headway.spec import Job
    from headway.tools.terraform_gcp import InfraSpec, job_values

    given = {
        "project": args.project,
        "zone": args.zone,
        "name": args.name,
        "bucket": args.bucket,
        "namespace": args.namespace,
        "secrets": tuple(dict.fromkeys(args.secret)) if args.secret else None,
        "accelerator": args.accelerator,
        "machine": args.machine,
        "max_nodes": None if args.max_nodes is None else max(1, args.max_nodes),
        "spot": args.spot,
        "billing_account": args.billing_account,
        "budget_usd": args.budget,
    }
    values = job_values(Job.load(args.file)) if args.file else {}
    values |= {name: value for name, value in given.items() if value is not None}
    if "project" not in values:
        raise BadInput("no project is given", fix="--project my-project, or -f a job file whose targets have one")
    kind, gpus, machine = _gpu(values.pop("accelerator", "T4:1"), values.pop("machine", None))
    return InfraSpec(
        accelerator=kind, gpus=gpus, machine=machine, cluster=not args.no_cluster, workbench=args.workbench, **values
    )


def _gpu(text: str, machine: str | None) -> tuple[str, int, str]:
    """Return Google's name of the accelerator, how many, and the machine type."""
    from headway.pricing.table import machine_for
    from headway.spec.units import BadUnit, parse_accelerator

    try:
        asked = parse_accelerator(text)
    except BadUnit as error:
        raise BadInput(f"--accelerator: {error}", fix="--accelerator T4:1") from None
    usual = machine_for(asked.kind, asked.count)
    if usual is None and not machine:
        raise BadInput(f"Google offers no machine with {text}", fix="headway prices   (lists the accelerators)")
    word = {"A100-80GB": "nvidia-a100-80gb", "H100": "nvidia-h100-80gb", "H100-MEGA": "nvidia-h100-mega-80gb",
            "H200": "nvidia-h200-141gb", "L4": "nvidia-l4", "B200": "nvidia-b200"}  # fmt: skip
    return word.get(asked.kind, f"nvidia-tesla-{asked.kind.lower()}"), asked.count, machine or usual or ""


# `headway prices T4`: list the price per hour of an accelerator with its machine, by region. Needs no credentials.


def prices_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("accelerator", nargs="?", metavar="KIND[:N]", help="T4, L4:2, A100:8, … (default: all)")
    parser.add_argument("--region", metavar="R", help="only this region or prefix: us, europe-west4")
    parser.add_argument("--machine", metavar="M", help="machine type (default: the usual one for the accelerator)")
    parser.add_argument("--vertex", action="store_true", help="include Vertex AI's management fee")
    parser.add_argument("--factor", type=float, metavar="F", help="the fee as a factor (default: 1.15)")
    parser.add_argument("--update", metavar="FILE", help="import a newer price table, for all later plans")
    add_json(parser)


def prices_command(args: argparse.Namespace) -> int:
    from headway.pricing.table import load, update

    if args.update:
        kept = update(Path(args.update))
        print(f"imported prices of {kept.dated} ({kept.source})")
        if not args.accelerator:
            return 0
    prices = load()
    rows = _rows(args)
    if args.json:
        print(as_json({"dated": prices.dated, "source": prices.source, "factor": _factor(args), "prices": rows}))
        return 0
    cells = [(*_names(row), usd(row["usd_per_hour"]), usd(row["spot_usd_per_hour"])) for row in rows]
    print(table(("ACCELERATOR", "MACHINE", "REGION", "ON DEMAND/h", "SPOT/h"), cells))
    fee = f", × {_factor(args):g} for Vertex's management" if _factor(args) != 1 else ""
    print(
        f"{prices.source}, {prices.dated}: machine and accelerator together{fee}. Disks, storage and traffic are extra."
    )
    return 0


def _names(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["accelerator"], row["machine"], row["region"]


def _factor(args: argparse.Namespace) -> float:
    from headway.pricing.quote import VERTEX_FACTOR

    if args.factor is not None:
        if args.factor <= 0:
            raise BadInput(f"--factor {args.factor:g} is not a positive number", fix="--factor 1.15")
        return float(args.factor)
    return VERTEX_FACTOR if args.vertex else 1.0


def _rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    from headway.pricing.quote import compare_regions

    if args.accelerator is None:
        found = _cheapest(args)
    else:
        kind, count = _asked(args.accelerator)
        found = compare_regions(kind, count, args.machine)
    found = [quote for quote in found if quote.region.startswith(args.region or "")]
    if not found:
        where = f" in {args.region}" if args.region else ""
        machine = f" with {args.machine}" if args.machine else ""
        raise BadInput(f"no price for {args.accelerator or 'anything'}{machine}{where}", fix="headway prices T4")
    factor = _factor(args)
    return [_price_json(quote, factor) for quote in found]


def _cheapest(args: argparse.Namespace) -> list[Quote]:
    """Return one accelerator of each kind, in its cheapest region."""
    from headway.pricing.quote import compare_regions
    from headway.pricing.table import ACCELERATOR, load

    prices = load()
    found = []
    for kind in prices.names(ACCELERATOR):
        fewest = min(row.count for row in prices.rows(ACCELERATOR, kind))
        quotes = [q for q in compare_regions(kind, fewest, args.machine) if q.region.startswith(args.region or "")]
        found += quotes[:1]
    return sorted(found, key=lambda quote: quote.price.usd)


def _asked(text: str) -> tuple[str, int]:
    from headway.spec.units import BadUnit, parse_accelerator

    try:
        asked = parse_accelerator(text.upper())
    except BadUnit as error:
        raise BadInput(f"{text!r} is not an accelerator: {error}", fix="headway prices   (lists them)") from None
    return asked.kind, asked.count


def _price_json(quote: Quote, factor: float) -> dict[str, Any]:
    kind, count = quote.accelerator or ("", 0)
    price = quote.price.times(factor)
    return {
        "accelerator": f"{kind}:{count}",
        "machine": quote.machine,
        "region": quote.region,
        "usd_per_hour": round(price.usd, 5),
        "spot_usd_per_hour": round(price.spot_usd, 5),
    }
