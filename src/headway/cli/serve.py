"""The verbs `serve` and `deploy`: answer requests with a model here, on Cloud Run or on Vertex AI."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import add_json, add_model, locate, model_choice
from headway.core.errors import FINISHED, LEFT_BEHIND, BadInput, BadJob, needs
from headway.core.format import as_json, paint

if TYPE_CHECKING:
    from headway.artifacts.models import LoadedModel
    from headway.bundle.format import Record
    from headway.serving.deploy.image import ServingImage
    from headway.serving.deploy.model import Deployment
    from headway.serving.inputs import Limits


# `headway deploy`: deploy a model to Cloud Run or Vertex AI. Shows requests and price; deploys with --submit.


CLOUD_RUN, VERTEX = "cloud-run", "vertex"


def deploy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="BUNDLE|RUN", help="the model to deploy; not needed with --down")
    parser.add_argument("--to", required=True, choices=[CLOUD_RUN, VERTEX], help="where")
    parser.add_argument("--project", required=True, metavar="P", help="the project that is billed")
    parser.add_argument("--region", default="us-central1", metavar="R", help="default: us-central1")
    parser.add_argument("--name", metavar="N", help="name of the service or endpoint (default: the bundle's)")
    default = "REGION-docker.pkg.dev/PROJECT/headway/NAME"
    parser.add_argument(
        "--repository", metavar="REPO", help=f"the repository its image is pushed to (default: {default})"
    )
    parser.add_argument("--image", metavar="URI", help="an existing image, built with `headway serve --image`")
    parser.add_argument("--machine", default="n1-standard-4", metavar="M", help="vertex: default n1-standard-4")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="cloud-run: CPUs per instance (default: 2)")
    parser.add_argument(
        "--memory", default="4GiB", metavar="SIZE", help="cloud-run: memory per instance (default: 4GiB)"
    )
    parser.add_argument("--accelerator", metavar="KIND[:N]", help="GPUs per instance: L4, T4:1")
    parser.add_argument("--min", type=int, metavar="N", help="minimum number of instances (default: 0; vertex: 1)")
    parser.add_argument("--max", type=int, default=3, metavar="N", help="maximum number of instances (default: 3)")
    parser.add_argument("--public", action="store_true", help="cloud-run: allow unauthenticated requests")
    parser.add_argument("--token", metavar="REF", help="cloud-run: require this token: gcp-sm://NAME")
    parser.add_argument("--service-account", metavar="A", help="the service account that the server runs as")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--render", metavar="DIR", help="write the requests, the image's folder and a script to DIR")
    what.add_argument("--submit", action="store_true", help="build and push the image, then deploy")
    what.add_argument(
        "--down", action="store_true", help="remove the service or endpoint with this name, and its models"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    add_json(parser)


def deploy_command(args: argparse.Namespace) -> int:
    from headway.serving.deploy import cloud_run, vertex

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
    image = None if args.image else _deploy_image(args, d, record)
    text = _described(d, image, record)
    if args.json and not args.submit:
        asks = [{"file": r.file, "method": r.method, "url": r.url, "body": r.body} for r in place.requests(d)]
        print(as_json({"requests": asks, "price": place.bill(d).as_json(), "image": image.name if image else d.image}))
    elif not args.json:
        print(text)
    if args.render:
        _render(d, image, url, Path(args.render))
    elif args.submit:
        return _submit(args, d, image, url)
    elif not args.json:
        print("next: add --submit to deploy, or --render DIR to write the requests to files")
    return FINISHED


def _bundle(bundle_ref: str) -> tuple[str, Record]:
    from headway.artifacts.evaluate import bundle_of
    from headway.bundle.format import read_record
    from headway.plugins import require_recipe
    from headway.storage import open_store

    url = bundle_of(locate(bundle_ref, bundles=True))
    record = read_record(open_store(url), url)
    require_recipe(record.recipe, where=url)
    return url, record


def _deployment(args: argparse.Namespace, url: str, record: Record) -> Deployment:
    from headway.serving.deploy.model import IMAGE, Deployment, service_name

    afar = url if url.startswith("gs://") else None
    if args.name and args.name != service_name(args.name):
        raise BadInput(f"{args.name!r} is not a valid service name", fix=f"--name {service_name(args.name)}")
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
        min_instances=args.min if args.min is not None else 0 if args.to == CLOUD_RUN else 1,
        max_instances=args.max,
        public=args.public,
        token=_secret(args.token),
        account=args.service_account,
    )


def _accelerator(text: str | None) -> tuple[str, int] | None:
    from headway.spec.units import BadUnit, parse_accelerator

    if text is None:
        return None
    try:
        asked = parse_accelerator(text.upper())
    except BadUnit as error:
        raise BadInput(f"--accelerator: {error}", fix="--accelerator L4") from None
    return asked.kind, asked.count


def _secret(ref: str | None) -> str | None:
    if ref is None:
        return None
    if not ref.startswith("gcp-sm://"):
        raise BadInput("the token of a deployed server must be in Secret Manager", fix="--token gcp-sm://NAME")
    return ref.removeprefix("gcp-sm://")


def _deploy_image(args: argparse.Namespace, d: Deployment, record: Record) -> ServingImage:
    from headway.packaging import reference
    from headway.serving.deploy.image import serving_image

    repository = args.repository or f"{d.region}-docker.pkg.dev/{d.project}/headway/{d.name}"
    problems = reference.problems({"repository": repository}, d.name)
    if problems:
        raise BadJob(problems)
    return serving_image(record, bundled=d.model is None, gpu=d.accelerator is not None, repository=repository)


def _described(d: Deployment, image: ServingImage | None, record: Record) -> str:
    from headway.serving.deploy import cloud_run, vertex
    from headway.serving.deploy.model import take_down

    place = cloud_run if d.to == CLOUD_RUN else vertex
    bill = place.bill(d)
    who = "anybody" if d.public else "anyone with Google credentials and the role " + (
        "roles/run.invoker" if d.to == CLOUD_RUN else "roles/aiplatform.user"
    )  # fmt: skip
    rows = {
        "serves": f"{record.name} ({record.recipe})",
        "model": f"read from {d.model} at startup" if d.model else "inside the image",
        "image": f"{image.name}, built and pushed" if image else f"{d.image}, existing",
        "instances": f"{d.min_instances} to {d.max_instances}, in {d.region}",
        "may ask": who + (f", with the token of gcp-sm://{d.token}" if d.token else ""),
        "price": bill.text,
        "besides": ", ".join(bill.besides),
        "asks for": ", ".join(f"{each.method} {each.url}" for each in place.requests(d)),
        "ends with": take_down(d),
    }
    head = paint(f"{d.name} on {'Cloud Run' if d.to == CLOUD_RUN else 'Vertex AI'}, {d.project}", "bold")
    return "\n".join([head, *(f"  {key:<9} {text}" for key, text in rows.items() if text)])


def _render(d: Deployment, image: ServingImage | None, url: str, folder: Path) -> None:
    import yaml

    from headway.bundle.format import Bundle
    from headway.serving.deploy import cloud_run, vertex
    from headway.serving.deploy.image import write
    from headway.serving.deploy.model import take_down

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
    lines = ["#!/bin/sh", "# Does by hand what `headway deploy --submit` does. Run it in this folder.", "set -eu"]
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
    from headway.bundle.format import Bundle
    from headway.packaging.engine import run
    from headway.serving.deploy import client, cloud_run, vertex
    from headway.serving.deploy.image import push
    from headway.serving.deploy.model import take_down

    place = cloud_run if d.to == CLOUD_RUN else vertex
    _confirm(f"deploy {d.name} in {d.project}?", args.yes)
    if image is not None:
        d = _with_image(d, push(run, "docker", image, Bundle.open(url)))
    cloud = client.cloud_for(d)
    if d.to == CLOUD_RUN:
        address = client.run_service(cloud, d, place.requests(d), _say_deployed)
    else:
        address = client.deploy_model(cloud, d, _say_deployed)
    end = take_down(d)
    if args.json:
        print(as_json({"address": address, "image": d.image, "price": place.bill(d).as_json(), "down": end}))
        return FINISHED
    print(f"{paint(d.name, 'bold')} is serving at {address}")
    print(f"  billed        {place.bill(d).text}")
    print(f"  to remove it  {end}")
    return FINISHED


def _down(args: argparse.Namespace) -> int:
    from headway.serving.deploy import client
    from headway.serving.deploy.model import Deployment, service_name

    name = args.name or (service_name(_bundle(args.model)[1].name) if args.model else None)
    if name is None:
        raise BadInput(
            "--name is missing",
            fix="headway deploy --down --name N, with the --to, --project and --region it was deployed with",
        )
    d = Deployment(to=args.to, name=name, project=args.project, region=args.region, recipe="", min_instances=1)
    _confirm(f"remove {name} from {args.project}?", args.yes)
    cloud = client.cloud_for(d)
    removed, left = (client.remove_service if d.to == CLOUD_RUN else client.remove_endpoint)(cloud, d)
    if args.json:
        print(as_json({"removed": removed, "left": left}))
    else:
        print("\n".join([f"removed {each}" for each in removed] or [f"{name} does not exist"]))
        for each in left:
            print(f"not removed, may still be billed: {each}", file=sys.stderr)
    return LEFT_BEHIND if left else FINISHED


def _confirm(question: str, yes: bool) -> None:
    """Ask for confirmation. Raises BadInput if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("this changes what is billed, and there is no terminal to confirm it", fix="add -y")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if not sys.stdin.readline().strip().lower().startswith("y"):
        raise BadInput("not confirmed: nothing was changed", fix="run the command again and answer y")


def _say_deployed(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="BUNDLE|RUN", help="default: $AIP_STORAGE_URI, which Vertex AI sets"
    )
    add_model(parser)
    parser.add_argument("--host", help="default: 127.0.0.1; 0.0.0.0 if $AIP_HTTP_PORT or $PORT is set")
    parser.add_argument("--port", type=int, help="default: $AIP_HTTP_PORT, $PORT or 8080; 0: any free port")
    parser.add_argument("--token", metavar="REF", help="require this token, a secret reference: env:NAME")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that clients use for this server"
    )
    parser.add_argument("--allow-urls", action="store_true", help="fetch images from public URLs that clients send")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="instances per batch (default: 32)")
    parser.add_argument(
        "--queue", type=int, default=256, metavar="N", help="instances that may wait; above that, 429 (default: 256)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30, metavar="S", help="time limit of a request, in seconds (default: 30)"
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=2048,
        metavar="N",
        help="open connections; idle ones make room (default: 2048)",
    )
    parser.add_argument("--max-body", default="20MB", metavar="SIZE", help="largest request body (default: 20MB)")
    parser.add_argument(
        "--drain", type=float, default=0, metavar="S", help="seconds to report not ready before shutting down"
    )
    parser.add_argument(
        "--engine",
        choices=["auto", "torch", "onnx"],
        default="auto",
        help="onnx: ONNX Runtime (the graph is exported once); auto: ONNX Runtime if exported and faster",
    )
    parser.add_argument("--quiet", action="store_true", help="do not log requests")
    parser.add_argument(
        "--image", action="store_true", help="print the Dockerfile of a serving container instead of serving"
    )
    parser.add_argument("--build", action="store_true", help="with --image: build it, unless it exists")
    parser.add_argument("--out", metavar="DIR", help="with --image: write its build folder")
    parser.add_argument("--base", metavar="IMAGE", help="with --image: base image (default: python:3.N-slim)")
    parser.add_argument(
        "--no-bundle", action="store_true", help="with --image: read the bundle from $AIP_STORAGE_URI at startup"
    )
    parser.add_argument("--gpu", action="store_true", help="with --image: with torch for GPUs")


def serve_command(args: argparse.Namespace) -> int:
    named = args.model or os.environ.get("AIP_STORAGE_URI")
    if not named:
        raise BadInput("no model is named", fix="headway serve RUN, or the folder or URL of a bundle")
    if args.image:
        return _write_image(args, named)
    for flag in ("build", "out", "base", "no_bundle", "gpu"):
        if getattr(args, flag):
            raise BadInput(f"--{flag.replace('_', '-')} applies only to --image", fix="add --image")
    limits = _limits(args)
    from headway.serving.batching import wait_briefly

    wait_briefly()
    with needs("serve", "serve"):
        from headway.artifacts.models import open_model
        from headway.serving.server import Address, host_names, listen, log_to_stderr, port_of, serve
    platform = next((name for name in ("AIP_HTTP_PORT", "PORT") if os.environ.get(name)), None)
    host = args.host or ("0.0.0.0" if platform else "127.0.0.1")
    _warn_if_open(host, None if args.host else platform, has_token=bool(args.token))
    address = Address(host=host, port=port_of() if args.port is None else args.port, drain=args.drain)
    taken = listen(address)
    with taken:
        model = open_model(locate(named, bundles=True), model_choice(args))
        server = _server(args, model, limits, host_names(host, args.allow_host, routed=platform is not None))
        log_to_stderr(args.quiet)
        serve(server, taken, address, lambda port: _say_served(model, host, port, server.settings.predict_route))
    return FINISHED


def _write_image(args: argparse.Namespace, named: str) -> int:
    """Print the Dockerfile, write its build folder, or build the image. Needs neither torch nor the serve extra."""
    from headway.artifacts.evaluate import bundle_of
    from headway.bundle.format import Bundle, read_record
    from headway.packaging.engine import run
    from headway.serving.deploy.image import build, serving_image, write
    from headway.storage import open_store

    url = bundle_of(locate(named, bundles=True))
    image = serving_image(read_record(open_store(url), url), bundled=not args.no_bundle, gpu=args.gpu, base=args.base)
    if args.out:
        folder = Path(args.out)
        if folder.exists() and any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty", fix="--out a new folder")
        write(image, Bundle.open(url), folder)
        print(f"{folder} is ready\nnext: docker build --platform {image.platform} --tag {image.name} {folder}")
    elif args.build:
        name = build(run, "docker", image, Bundle.open(url))
        bundle = f" -e AIP_STORAGE_URI={url}" if args.no_bundle else ""
        print(f"{name}\nnext: docker run --rm -p 8080:8080{bundle} {name}")
    else:
        print(image.dockerfile(), end="")
    return FINISHED


def _limits(args: argparse.Namespace) -> Limits:
    from headway.serving.inputs import Limits

    for name in ("batch", "queue", "timeout", "connections"):
        if getattr(args, name) <= 0:
            raise BadInput(f"--{name} must be more than 0")
    body = size_of("--max-body", args.max_body)
    in_all = max(200_000_000, 10 * body)
    return Limits(
        body=body,
        bytes_in_all=in_all,
        batch=args.batch,
        queue=args.queue,
        seconds=args.timeout,
        connections=args.connections,
    )


def size_of(flag: str, text: str) -> int:
    """Parse a size to bytes. Raises BadInput that names the flag."""
    from headway.spec.units import BadUnit, parse_size

    try:
        return parse_size(text)
    except BadUnit as error:
        raise BadInput(f"{flag}: {error.what}", fix=error.fix) from None


def _warn_if_open(host: str, variable: str | None, *, has_token: bool) -> None:
    """Warn if other machines can send requests without a token."""
    from headway.serving.server import is_loopback

    if has_token or is_loopback(host):
        return
    why = f" because ${variable} is set" if variable else ""
    print(
        f"warning: the server listens on {host}{why} and asks for no token: "
        "whoever reaches its port can use the model\n"
        "  next: add --token env:NAME, or --host 127.0.0.1 for this machine alone",
        file=sys.stderr,
    )


def _server(args: argparse.Namespace, model: LoadedModel, limits: Limits, hosts: frozenset[str] | None) -> Any:
    from headway.artifacts.predictor import choose_engine
    from headway.serving import batching
    from headway.serving.app import Server, Settings
    from headway.serving.fetching import fetcher
    from headway.storage.secrets import resolve

    settings = Settings(
        name=model.name,
        card=_card(model),
        limits=limits,
        predict_route=_route("AIP_PREDICT_ROUTE", "/predict"),
        health_route=_route("AIP_HEALTH_ROUTE", "/health"),
        token=resolve(args.token) if args.token else None,
        hosts=hosts,
        warm=True,
        fetch=fetcher(limits.body) if args.allow_urls else None,
    )
    service = model.service()
    print(f"engine: {choose_engine(service, model.bundle, args.engine)}", file=sys.stderr)
    print(f"threads: {batching.choose_thread_count(service)}", file=sys.stderr)
    return Server(service, settings)


def _card(model: LoadedModel) -> dict[str, Any]:
    """Return what the try-out page shows besides the inputs."""
    from headway.artifacts.report import metric_name

    names = {name: metric_name(name) for name in model.metrics}
    return {
        "recipe": model.kind,
        "metrics": dict(model.metrics),
        "metric_names": names,
        "outputs": list(model.outputs),
        "verb": model.verb,
    }


def _route(variable: str, default: str) -> str:
    path = os.environ.get(variable) or default
    if not path.startswith("/") or "{" in path:
        raise BadInput(f"{variable}={path} is not a path", fix=f"unset it, or use a path such as {default}")
    return path


def _say_served(model: LoadedModel, host: str, port: int, predict: str) -> None:
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::") else host
    base = f"http://{shown}:{port}"
    print(f"{paint(model.name, 'bold')} ({model.kind}) is serving at {base}{predict}")
    print(f"  try it in a browser  {base}/")
    print(f"  API documentation    {base}/docs")
    print("  Ctrl-C stops it")
    sys.stdout.flush()
