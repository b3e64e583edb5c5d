"""The model server's routes.

They are Vertex AI's contract, KServe's two protocols, uploads, health, Prometheus metrics and the pages.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from headway.artifacts.predictor import MEDIA_TYPE as PROBLEM
from headway.artifacts.predictor import PredictionError, PredictionService, bad_request
from headway.serving import openapi
from headway.serving.batching import Batcher
from headway.serving.fetching import Fetch
from headway.serving.inputs import Limits, Reader
from headway.serving.openapi import describe_openapi, page

# Prometheus metrics


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServingMetrics:
    """Prometheus metrics, in their own registry, so that two servers in one process do not share them."""

    def __init__(self) -> None:
        self._registry = made = CollectorRegistry()
        self.requests = Counter("headway_requests", "Requests", ["route", "status"], registry=made)
        self.seconds = Histogram(
            "headway_request_seconds", "Request duration", ["route"], registry=made, buckets=_SECONDS
        )
        self.batches = Histogram("headway_batch_instances", "Instances per batch", registry=made, buckets=_BATCHES)
        self.model_seconds = Histogram("headway_model_seconds", "Model time per batch", registry=made, buckets=_SECONDS)
        self.waiting = Gauge("headway_waiting_instances", "Instances in the queue", registry=made)
        self.ready = Gauge("headway_ready", "1 if the server accepts requests", registry=made)

    def batch(self, instances: int, seconds: float) -> None:
        self.batches.observe(instances)
        self.model_seconds.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)


# Files of the demo page


STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = STATIC / "index.html"


log = logging.getLogger("headway.serve")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server, apart from the model."""

    name: str
    card: Mapping[str, Any] = field(default_factory=dict)  # shown on the demo page
    limits: Limits = field(default_factory=Limits)
    predict_route: str = "/predict"
    health_route: str = "/health"
    token: str | None = None
    hosts: frozenset[str] | None = None  # names of this server in the Host header (DNS rebinding); None: any
    fetch: Fetch | None = None


class Server:
    """One model with its queue and its state: loading, ready or draining."""

    def __init__(self, service: PredictionService, settings: Settings) -> None:
        self.settings, self.service, self.gauges = settings, service, ServingMetrics()
        self.draining = False
        self._reader = Reader(service.fields, settings.limits, settings.fetch)
        self._batcher: Batcher | None = None
        self.gauges.waiting.set_function(lambda: self._batcher.waiting if self._batcher else 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        limits = self.settings.limits
        self._batcher = Batcher(
            lambda prepared, explain: self.service.answer(prepared, explain=explain),
            batch=limits.batch,
            queue=limits.queue,
            on_batch=self.gauges.batch,
        )
        self._batcher.start()
        self.gauges.ready.set(1)
        try:
            yield
        finally:
            self.gauges.ready.set(0)
            await self._batcher.stop()
            self._batcher = None

    @property
    def ready(self) -> bool:
        return self._batcher is not None and not self.draining

    async def predictions(self, body: Any) -> list[dict[str, Any]]:
        """Read, prepare and answer everything in `{"instances": […], "parameters": {…}}` within the time limit."""
        instances = self._reader.instances_of(body)
        explain = _explain(body.get("parameters"))
        if self._batcher is None:
            raise PredictionError(503, "the server is not ready", headers={"Retry-After": "1"})
        waited = asyncio.wait_for(self._predict(self._batcher, instances, explain), self.settings.limits.seconds)
        try:
            return await waited
        except asyncio.TimeoutError:
            detail = f"the request took longer than {self.settings.limits.seconds:g} seconds"
            raise PredictionError(504, detail, headers={"Retry-After": "5"}) from None

    async def _predict(
        self, batcher: Batcher, instances: Sequence[Mapping[str, Any]], explain: bool
    ) -> list[dict[str, Any]]:
        with batcher.reserve(len(instances)):
            prepared = await asyncio.to_thread(self._prepare_all, instances)
        return await batcher.predict(prepared, explain=explain)

    def _prepare_all(self, instances: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [self._prepare(each, f"/instances/{number}") for number, each in enumerate(instances)]

    def _prepare(self, instance: Mapping[str, Any], at: str) -> Any:
        read = self._reader.read(instance, at)
        try:
            return self.service.prepare(read)
        except PredictionError as refusal:
            refusal.at = refusal.at or at  # a recipe does not know the instance's index
            raise


def application(server: Server) -> Starlette:
    """Build the ASGI application with all routes. It accepts requests from start-up to shutdown."""
    handle = _Handlers(server)
    name, settings = server.settings.name, server.settings

    def route(path: str, handler: Handler, *methods: str, open_: bool = False, page: bool = False) -> Route:
        guarded = _with_error_handling(server, path, handler, _Gate(settings=settings, open_=open_, page=page))
        return Route(path, guarded, methods=list(methods))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with server.running():
            yield

    routes = [
        route(settings.predict_route, handle.predict, "POST"),
        route(f"/v1/models/{name}:predict", handle.predict, "POST"),
        route("/v1/models", handle.models, "GET"),
        route(f"/v1/models/{name}", handle.model, "GET"),
        route("/v2", handle.about, "GET"),
        route("/v2/health/live", handle.live, "GET", open_=True),
        route("/v2/health/ready", handle.ready, "GET", open_=True),
        route(f"/v2/models/{name}", handle.tensors, "GET"),
        route(f"/v2/models/{name}/ready", handle.ready, "GET", open_=True),
        route(f"/v2/models/{name}/infer", handle.infer, "POST"),
        route(settings.health_route, handle.ready, "GET", open_=True),
        route("/live", handle.live, "GET", open_=True),
        route("/ready", handle.ready, "GET", open_=True),
        route("/metrics", handle.metrics, "GET"),
        route("/openapi.json", handle.openapi, "GET"),
        route("/docs", handle.docs, "GET", page=True),
        route("/about", handle.about, "GET"),
        route("/", handle.index, "GET", page=True),
        route("/static/{name:path}", handle.static, "GET"),
    ]
    handlers = {404: _not_found, 405: _not_found}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class _Handlers:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._openapi = describe_openapi(server.settings, server.service.fields)
        self._static = StaticFiles(directory=STATIC)

    async def predict(self, request: Request) -> Response:
        body = await _body(request, self._server.settings.limits)
        return JSONResponse({"predictions": await self._server.predictions(body)})

    async def infer(self, request: Request) -> Response:
        body = await _json(request, self._server.settings.limits)
        asked = openapi.instances_of(body, self._server.service.fields)
        predictions = await self._server.predictions(asked)
        return JSONResponse(openapi.answer(self._server.settings.name, predictions, body.get("id")))

    async def models(self, _: Request) -> Response:
        return JSONResponse({"models": [self._server.settings.name]})

    async def model(self, _: Request) -> Response:
        return JSONResponse({"name": self._server.settings.name, "ready": self._server.ready})

    async def tensors(self, _: Request) -> Response:
        return JSONResponse(openapi.describe_kserve(self._server.settings.name, self._server.service.fields, ("text",)))

    async def about(self, _: Request) -> Response:
        from headway._version import __version__

        inputs = [{"name": each.name, "kind": each.kind, "summary": each.summary, "required": each.required}
                  for each in self._server.service.fields]  # fmt: skip
        settings = self._server.settings
        metadata = {"name": settings.name, "version": __version__, "extensions": [], "predict": settings.predict_route}
        return JSONResponse({**metadata, "inputs": inputs, **settings.card})

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        return JSONResponse({"ready": self._server.ready}, status_code=200 if self._server.ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._server.gauges.page(), media_type=MEDIA_TYPE)

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(self._openapi)

    async def docs(self, _: Request) -> Response:
        return Response(page(self._openapi), media_type="text/html", headers=_PAGE)

    async def static(self, request: Request) -> Response:
        try:
            return await self._static.get_response(request.path_params["name"], request.scope)
        except HTTPException:
            raise PredictionError(404, "not found") from None

    async def index(self, _: Request) -> Response:
        return Response(INDEX.read_bytes(), media_type="text/html", headers=_PAGE)


# Pages run only the server's own scripts, cannot be framed, and send nothing to other sites.
_PAGE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gate:
    """Which requests a route accepts: with this server's name and token, unless it is a health check (`open_`)."""

    settings: Settings
    open_: bool = False
    page: bool = False  # a browser may ask its user for the token

    def check(self, request: Request) -> None:
        if self.open_:
            return
        hosts, token = self.settings.hosts, self.settings.token
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).lower()
        if hosts is not None and host not in hosts and not (hosts & _ALL_ADDRESSES and _is_address(host)):
            fix = f"add --allow-host {host} to `headway serve`" if _HOST_NAME.fullmatch(host) else "name the server"
            raise PredictionError(421, f"this server does not have the name in the Host header; {fix}")
        if token is not None and not _has_token(request.headers.get("authorization", ""), token):
            ways = "Bearer" + (', Basic realm="the token, as the password"' if self.page else "")
            detail = "send the server's token: Authorization: Bearer …"
            raise PredictionError(401, detail, headers={"WWW-Authenticate": ways})
        if request.method == "POST" and request.headers.get("sec-fetch-site") == "cross-site":
            raise PredictionError(403, "pages of other sites may not send requests to this server")


_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})


def _is_address(host: str) -> bool:
    """Return whether this is an IP address, which unlike a name cannot be made to point elsewhere."""
    try:
        return bool(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return False


_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,252}")


def _has_token(authorization: str, token: str) -> bool:
    """Compare the token in constant time. It may be a Basic login's password, from a browser or `curl -u :TOKEN`."""
    scheme, _, given = authorization.partition(" ")
    given = given.strip()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token.encode())


def _with_error_handling(server: Server, path: str, handler: Handler, gate: _Gate) -> Handler:
    """Wrap a handler: check who asks, map errors to responses, count and log the request."""

    async def guarded(request: Request) -> Response:
        began = time.perf_counter()
        try:
            gate.check(request)
            response = await handler(request)
        except PredictionError as refusal:
            response = _problem(refusal)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:  # a bug must not drop the connection without an answer
            log.exception("%s failed", path)
            response = _problem(PredictionError(500, "internal error; see the server's log"))
        seconds = time.perf_counter() - began
        server.gauges.requests.labels(path, str(response.status_code)).inc()
        server.gauges.seconds.labels(path).observe(seconds)
        fields = {"method": request.method, "path": path, "status": response.status_code}
        log.info("request", extra={"request_fields": {**fields, "ms": round(seconds * 1000, 1)}})
        return response

    return guarded


def _problem(refusal: PredictionError) -> Response:
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers, media_type=PROBLEM)


async def _not_found(request: Request, error: Any) -> Response:
    if error.status_code == 405:
        return _problem(
            PredictionError(405, f"{request.method} is not allowed for this path", headers=dict(error.headers or {}))
        )
    return _problem(PredictionError(404, "not found; /docs lists the paths"))


async def _body(request: Request, limits: Limits) -> Any:
    """Read JSON, or a multipart form whose files and fields are one instance."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        return await _json(request, limits)
    return await _form(request, await _bytes(request, limits))


async def _json(request: Request, limits: Limits) -> Any:
    try:
        return json.loads(await _bytes(request, limits), parse_constant=_reject_nan)
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None


def _reject_nan(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


async def _bytes(request: Request, limits: Limits) -> bytes:
    """Read the body; stop as soon as it exceeds the limit, whatever Content-Length says."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body:
            raise PredictionError(
                413, f"the body is larger than {limits.body:,} bytes", headers={"Connection": "close"}
            )
        parts.append(part)
    return b"".join(parts)


async def _form(request: Request, body: bytes) -> Any:
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def once() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, once(), max_files=8, max_fields=16, max_part_size=len(body) + 1)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise bad_request(f"the form is invalid: {error.message}") from None
    except KeyError:
        raise bad_request("the form is invalid: its boundary is missing") from None
    instance: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name == "explain" and isinstance(value, str):
            parameters["explain"] = value in ("1", "true", "on")
        elif name in instance:
            raise bad_request(f"{name!r} is in the form twice")
        else:
            instance[name] = value if isinstance(value, str) else await value.read()
    await form.close()
    return {"instances": [instance], "parameters": parameters}


def _explain(parameters: Any) -> bool:
    if parameters is None:
        return False
    if not isinstance(parameters, dict) or not isinstance(parameters.get("explain", False), bool):
        raise bad_request('parameters must be an object such as {"explain": true}', "/parameters")
    unknown = sorted(set(parameters) - {"explain"})
    if unknown:
        raise bad_request(f'unknown parameter {unknown[0]!r}; the only parameter is "explain"', "/parameters")
    return bool(parameters.get("explain", False))
