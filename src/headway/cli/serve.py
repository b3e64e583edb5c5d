"""`headway serve`: a model behind HTTP, made from a bundle alone."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.runs import locate
from headway.cli.show import paint
from headway.errors import FINISHED, BadInput
from headway.extras import needs

if TYPE_CHECKING:
    from headway.bundle import Bundle
    from headway.serve.limits import Limits


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="BUNDLE|RUN", help="default: $AIP_STORAGE_URI, as Vertex AI sets it"
    )
    parser.add_argument("--host", help="default: 127.0.0.1; 0.0.0.0 where $AIP_HTTP_PORT or $PORT is set")
    parser.add_argument("--port", type=int, help="default: $AIP_HTTP_PORT, $PORT or 8080; 0: any that is free")
    parser.add_argument("--token", metavar="REF", help="ask for this token, a secret reference: env:NAME")
    parser.add_argument(
        "--allow-urls", action="store_true", help="fetch pictures from public addresses that clients name"
    )
    parser.add_argument(
        "--batch", type=int, default=32, metavar="N", help="instances for the model at once (default: 32)"
    )
    parser.add_argument("--queue", type=int, default=256, metavar="N", help="that may wait, then 429 (default: 256)")
    parser.add_argument("--timeout", type=float, default=30, metavar="S", help="of a request, in seconds (default: 30)")
    parser.add_argument("--max-body", default="20MB", metavar="SIZE", help="of a request (default: 20MB)")
    parser.add_argument("--drain", type=float, default=0, metavar="S", help="seconds to be not ready before closing")
    parser.add_argument(
        "--engine",
        choices=["auto", "torch", "onnx"],
        default="auto",
        help="onnx: ONNX Runtime, whose graph is made once; auto: where there is one and it is faster",
    )
    parser.add_argument("--quiet", action="store_true", help="log no requests")
    parser.add_argument(
        "--image", action="store_true", help="do not serve: print the Dockerfile of a container that does"
    )
    parser.add_argument("--build", action="store_true", help="with --image: build it, unless it is there")
    parser.add_argument("--out", metavar="DIR", help="with --image: write the folder it is built from")
    parser.add_argument("--base", metavar="IMAGE", help="with --image: to build upon (default: python:3.N-slim)")
    parser.add_argument("--no-bundle", action="store_true", help="with --image: for any bundle, by $AIP_STORAGE_URI")
    parser.add_argument("--gpu", action="store_true", help="with --image: with torch for GPUs")


def main(args: argparse.Namespace) -> int:
    named = args.model or os.environ.get("AIP_STORAGE_URI")
    if not named:
        raise BadInput("no model is named", fix="headway serve RUN, or the folder or URL of a bundle")
    if args.image:
        return _image(args, named)
    for flag in ("build", "out", "base", "no_bundle", "gpu"):
        if getattr(args, flag):
            raise BadInput(f"--{flag.replace('_', '-')} is about the container", fix="add --image")
    limits = _limits(args)
    from headway.serve.threads import wait_briefly

    wait_briefly()
    with needs("serve", "serve"):
        from headway.bundle import Bundle
        from headway.predict import bundle_of
        from headway.serve.run import Address, listen, log_to_stderr, port_of, serve
    placed = any(os.environ.get(name) for name in ("AIP_HTTP_PORT", "PORT"))
    host = args.host or ("0.0.0.0" if placed else "127.0.0.1")
    address = Address(host=host, port=port_of() if args.port is None else args.port, drain=args.drain)
    taken = listen(address)
    with taken:
        bundle = Bundle.open(bundle_of(locate(named, bundles=True)))
        server = _server(args, bundle, limits)
        log_to_stderr(args.quiet)
        serve(server, taken, address, lambda port: _say(bundle, host, port, server.settings.predict_route))
    return FINISHED


def _image(args: argparse.Namespace, named: str) -> int:
    """The container's Dockerfile, its folder, or itself. Needs neither torch nor what serving needs."""
    from headway.bundle import Bundle, read_record
    from headway.deploy.image import build, serving_image, write
    from headway.image.engine import run
    from headway.predict import bundle_of
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
    from headway.serve.limits import Limits

    for name in ("batch", "queue", "timeout"):
        if getattr(args, name) <= 0:
            raise BadInput(f"--{name} must be more than 0")
    return Limits(body=size_of("--max-body", args.max_body), batch=args.batch, queue=args.queue, seconds=args.timeout)


def size_of(flag: str, text: str) -> int:
    """Bytes, or a BadInput that names the flag."""
    from headway.spec.units import BadUnit, size

    try:
        return size(text)
    except BadUnit as error:
        raise BadInput(f"{flag}: {error.what}", fix=error.fix) from None


def _server(args: argparse.Namespace, bundle: Bundle, limits: Limits) -> Any:
    from headway.secrets import resolve
    from headway.serve import threads
    from headway.serve.app import Server, Settings
    from headway.serve.engine import choose
    from headway.serve.service import service_of
    from headway.serve.urls import fetcher

    settings = Settings(
        name=bundle.name,
        card={"recipe": bundle.recipe, "metrics": dict(bundle.metrics)},
        limits=limits,
        predict_route=_route("AIP_PREDICT_ROUTE", "/predict"),
        health_route=_route("AIP_HEALTH_ROUTE", "/health"),
        token=resolve(args.token) if args.token else None,
        fetch=fetcher(limits.body) if args.allow_urls else None,
    )
    service = service_of(bundle)
    print(f"engine: {choose(service, bundle, args.engine)}", file=sys.stderr)
    print(f"threads: {threads.choose(service)}", file=sys.stderr)
    return Server(service, settings)


def _route(variable: str, default: str) -> str:
    path = os.environ.get(variable) or default
    if not path.startswith("/") or "{" in path:
        raise BadInput(f"{variable}={path} is no path", fix=f"unset it, or write one such as {default}")
    return path


def _say(bundle: Bundle, host: str, port: int, predict: str) -> None:
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::") else host
    base = f"http://{shown}:{port}"
    print(f"{paint(bundle.name, 'bold')} ({bundle.recipe}) answers at {base}{predict}")
    print(f"  try it in a browser  {base}/")
    print(f"  how to ask           {base}/docs")
    print("  Ctrl-C ends it")
    sys.stdout.flush()
