"""`headway deploy`: a model on Cloud Run or Vertex AI. Shows what it would ask for and cost; does it on request."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.runs import add_json, locate
from headway.cli.show import as_json, paint
from headway.errors import FINISHED, LEFT_BEHIND, BadInput, BadJob

if TYPE_CHECKING:
    from headway.bundle import Record
    from headway.deploy.image import ServingImage
    from headway.deploy.model import Deployment

CLOUD_RUN, VERTEX = "cloud-run", "vertex"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="BUNDLE|RUN", help="what is served; not needed with --down")
    parser.add_argument("--to", required=True, choices=[CLOUD_RUN, VERTEX], help="where")
    parser.add_argument("--project", required=True, metavar="P", help="the project that is billed")
    parser.add_argument("--region", default="us-central1", metavar="R", help="default: us-central1")
    parser.add_argument("--name", metavar="N", help="of the service or endpoint (default: the bundle's)")
    default = "REGION-docker.pkg.dev/PROJECT/headway/NAME"
    parser.add_argument("--repository", metavar="REPO", help=f"where its image is pushed (default: {default})")
    parser.add_argument("--image", metavar="URI", help="a ready image instead, as `headway serve --image` makes it")
    parser.add_argument("--machine", default="n1-standard-4", metavar="M", help="vertex: default n1-standard-4")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="cloud-run: of an instance (default: 2)")
    parser.add_argument("--memory", default="4GiB", metavar="SIZE", help="cloud-run: of an instance (default: 4GiB)")
    parser.add_argument("--accelerator", metavar="KIND[:N]", help="a GPU for each: L4, T4:1")
    parser.add_argument("--min", type=int, metavar="N", help="kept ready (default: 0; vertex: 1)")
    parser.add_argument("--max", type=int, default=3, metavar="N", help="at most, under load (default: 3)")
    parser.add_argument("--public", action="store_true", help="cloud-run: anybody may ask; else Google's credentials")
    parser.add_argument("--token", metavar="REF", help="cloud-run: ask for this token: gcp-sm://NAME")
    parser.add_argument("--service-account", metavar="A", help="who the server is, where it reads the bundle")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--render", metavar="DIR", help="write the requests, the image's folder and a script there")
    what.add_argument("--submit", action="store_true", help="build and push the image, and do it")
    what.add_argument(
        "--down", action="store_true", help="remove the service or endpoint of that name, with its models"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="without asking")
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    from headway.deploy import cloud_run, vertex

    if args.down:
        return _down(args)
    if not args.model:
        raise BadInput("no model is named", fix="headway deploy RUN --to cloud-run --project P")
    url, record = _bundle(args.model)
    d = _deployment(args, url, record)
    place = cloud_run if d.to == CLOUD_RUN else vertex
    problems = list(place.problems(d))
    if problems:
        raise BadJob(problems)
    image = None if args.image else _image(args, d, record)
    told = _described(d, image, record)
    if args.json and not args.submit:
        asks = [{"file": r.file, "method": r.method, "url": r.url, "body": r.body} for r in place.requests(d)]
        print(as_json({"requests": asks, "price": place.bill(d).as_json(), "image": image.name if image else d.image}))
    elif not args.json:
        print(told)
    if args.render:
        _render(d, image, url, Path(args.render))
    elif args.submit:
        return _submit(args, d, image, url)
    elif not args.json:
        print("next: the same with --submit, or --render DIR to read it first")
    return FINISHED


def _bundle(named: str) -> tuple[str, Record]:
    from headway.bundle import read_record
    from headway.predict import bundle_of
    from headway.recipes.registry import require_recipe
    from headway.storage import open_store

    url = bundle_of(locate(named, bundles=True))
    record = read_record(open_store(url), url)
    require_recipe(record.recipe, where=url)
    return url, record


def _deployment(args: argparse.Namespace, url: str, record: Record) -> Deployment:
    from headway.cli.serve import size_of
    from headway.deploy.model import IMAGE, Deployment, service_name

    afar = url if url.startswith("gs://") else None
    if args.name and args.name != service_name(args.name):
        raise BadInput(f"{args.name!r} cannot name a service", fix=f"--name {service_name(args.name)}")
    return Deployment(
        to=args.to,
        name=args.name or service_name(record.name),
        project=args.project,
        region=args.region,
        recipe=record.recipe,
        image=args.image or IMAGE,
        model=afar,
        machine=args.machine,
        cpus=args.cpus,
        memory_gib=max(1, round(size_of("--memory", args.memory) / 2**30)),
        accelerator=_accelerator(args.accelerator),
        least=args.min if args.min is not None else 0 if args.to == CLOUD_RUN else 1,
        most=args.max,
        public=args.public,
        token=_secret(args.token),
        account=args.service_account,
    )


def _accelerator(text: str | None) -> tuple[str, int] | None:
    from headway.spec.units import BadUnit, accelerator

    if text is None:
        return None
    try:
        asked = accelerator(text.upper())
    except BadUnit as error:
        raise BadInput(f"--accelerator: {error}", fix="--accelerator L4") from None
    return asked.kind, asked.count


def _secret(ref: str | None) -> str | None:
    if ref is None:
        return None
    if not ref.startswith("gcp-sm://"):
        raise BadInput("a token of a deployed server lies in Secret Manager", fix="--token gcp-sm://NAME")
    return ref.removeprefix("gcp-sm://")


def _image(args: argparse.Namespace, d: Deployment, record: Record) -> ServingImage:
    from headway.deploy.image import serving_image
    from headway.image import reference

    repository = args.repository or f"{d.region}-docker.pkg.dev/{d.project}/headway/{d.name}"
    problems = reference.problems({"repository": repository}, d.name)
    if problems:
        raise BadJob(problems)
    return serving_image(record, bundled=d.model is None, gpu=d.accelerator is not None, repository=repository)


def _described(d: Deployment, image: ServingImage | None, record: Record) -> str:
    from headway.deploy import cloud_run, vertex
    from headway.deploy.model import take_down

    place = cloud_run if d.to == CLOUD_RUN else vertex
    bill = place.bill(d)
    who = "anybody" if d.public else "whoever has Google's credentials and the role " + (
        "roles/run.invoker" if d.to == CLOUD_RUN else "roles/aiplatform.user"
    )  # fmt: skip
    rows = {
        "serves": f"{record.name} ({record.recipe})",
        "model": f"read from {d.model} at the start" if d.model else "inside the image",
        "image": f"{image.name}, built and pushed" if image else f"{d.image}, as it is",
        "instances": f"{d.least} to {d.most}, in {d.region}",
        "may ask": who + (f", with the token of gcp-sm://{d.token}" if d.token else ""),
        "price": bill.told,
        "besides": ", ".join(bill.besides),
        "asks for": ", ".join(f"{each.method} {each.url}" for each in place.requests(d)),
        "ends with": take_down(d),
    }
    head = paint(f"{d.name} on {'Cloud Run' if d.to == CLOUD_RUN else 'Vertex AI'}, {d.project}", "bold")
    return "\n".join([head, *(f"  {key:<9} {text}" for key, text in rows.items() if text)])


def _render(d: Deployment, image: ServingImage | None, url: str, folder: Path) -> None:
    import yaml

    from headway.bundle import Bundle
    from headway.deploy import cloud_run, vertex
    from headway.deploy.image import write
    from headway.deploy.model import take_down

    place = cloud_run if d.to == CLOUD_RUN else vertex
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", fix="--render a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    d = _with_image(d, image.name) if image else d
    for request in place.requests(d):
        text = as_json(request.body) + "\n"
        if request.file.endswith(".yaml"):
            text = yaml.safe_dump(dict(request.body), sort_keys=False)
        (folder / request.file).write_text(text)
    lines = ["#!/bin/sh", "# What `headway deploy --submit` does, by hand. Run it in this folder.", "set -eu"]
    if image is not None:
        write(image, Bundle.open(url), folder / "image")
        lines += [f"docker build --platform {image.platform} --tag {image.name} image", f"docker push {image.name}"]
    lines += [place.script(d), f"# To end it, and what it costs: {take_down(d)}"]
    (folder / "deploy.sh").write_text("\n".join(lines) + "\n")
    (folder / "deploy.sh").chmod(0o755)
    print(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}", file=sys.stderr)


def _with_image(d: Deployment, uri: str) -> Deployment:
    from dataclasses import replace

    return replace(d, image=uri)


def _submit(args: argparse.Namespace, d: Deployment, image: ServingImage | None, url: str) -> int:
    from headway.bundle import Bundle
    from headway.deploy import cloud_run, google, vertex
    from headway.deploy.image import push
    from headway.deploy.model import take_down
    from headway.image.engine import run

    place = cloud_run if d.to == CLOUD_RUN else vertex
    _agree(f"deploy {d.name} in {d.project}?", args.yes)
    if image is not None:
        d = _with_image(d, push(run, "docker", image, Bundle.open(url)))
    cloud = google.Cloud(d.project)
    if d.to == CLOUD_RUN:
        address = google.run_service(cloud, d, place.requests(d), _say)
    else:
        address = google.deploy_model(cloud, d, _say)
    end = take_down(d)
    if args.json:
        print(as_json({"address": address, "image": d.image, "price": place.bill(d).as_json(), "down": end}))
        return FINISHED
    print(f"{paint(d.name, 'bold')} answers at {address}")
    print(f"  stays billed  {place.bill(d).told}")
    print(f"  to end it     {end}")
    return FINISHED


def _down(args: argparse.Namespace) -> int:
    from headway.deploy import google
    from headway.deploy.model import Deployment, service_name

    name = args.name or (service_name(_bundle(args.model)[1].name) if args.model else None)
    if name is None:
        raise BadInput("nothing is named", fix="headway deploy --down --name N, as it was deployed")
    d = Deployment(to=args.to, name=name, project=args.project, region=args.region, recipe="", least=1)
    _agree(f"remove {name} from {args.project}?", args.yes)
    cloud = google.Cloud(d.project)
    removed, left = (google.remove_service if d.to == CLOUD_RUN else google.remove_endpoint)(cloud, d)
    if args.json:
        print(as_json({"removed": removed, "left": left}))
    else:
        print("\n".join([f"removed {each}" for each in removed] or [f"nothing called {name} is there"]))
        for each in left:
            print(f"still there, and perhaps billed: {each}", file=sys.stderr)
    return LEFT_BEHIND if left else FINISHED


def _agree(question: str, yes: bool) -> None:
    """BadInput where nobody can answer, and on a no: nothing has been done."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("this changes what is billed, and nobody is here to say yes", fix="the same with -y")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if not sys.stdin.readline().strip().lower().startswith("y"):
        raise BadInput("not done: nothing was changed", fix="the same again, and answer y")


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)
