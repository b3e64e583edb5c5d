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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from headway.artifacts.predictor import MEDIA_TYPE as PROBLEM
from headway.artifacts.predictor import PredictionError, PredictionService, bad_request
from headway.serving import openapi
from headway.serving.admission import Budget, Share
from headway.serving.batching import Batcher
from headway.serving.connections import Connections, Deadlines
from headway.serving.decoding import SMALL_PIXELS, DecoderPool, Encoded
from headway.serving.fetching import FETCH_S, Fetch
from headway.serving.forms import parse_form
from headway.serving.inputs import Limits, Reader, Unfetched, Value, check_image, pixels_of
from headway.serving.openapi import describe_openapi, page
from headway.serving.streaming import (
    StreamingService,
    can_stream,
    completion,
    completion_events,
    events,
    instance_of_completion,
)

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
        self.held_bytes = Gauge("headway_held_bytes", "Bytes of large bodies being received or decoded", registry=made)
        self.held_pixels = Gauge("headway_held_pixels", "Pixels of large images being decoded", registry=made)
        self.connections = Gauge("headway_connections", "Open connections", registry=made)
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
_T = TypeVar("_T")


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
    warm: bool = False  # start the decoder processes at once


class Server:
    """One model with its queue and its state: loading, ready or draining."""

    def __init__(self, service: PredictionService, settings: Settings) -> None:
        self.settings, self.service, self.gauges = settings, service, ServingMetrics()
        self.draining = False
        limits = settings.limits
        self.bytes_, self.pixels = Budget(limits.bytes_in_all), Budget(limits.pixels_in_all)
        self.connections = Connections(limits.connections, Deadlines(body=limits.seconds))
        self._reader = Reader(service.fields, limits, urls=settings.fetch is not None)
        self._batcher: Batcher | None = None
        self._decoders: DecoderPool | None = None
        self._large_reader = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._fetchers = ThreadPoolExecutor(_FETCHES, thread_name_prefix="fetch")
        self.gauges.waiting.set_function(lambda: self._batcher.waiting if self._batcher else 0)
        self.gauges.held_bytes.set_function(lambda: self.bytes_.used)
        self.gauges.held_pixels.set_function(lambda: self.pixels.used)
        self.gauges.connections.set_function(lambda: self.connections.open)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        limits = self.settings.limits
        self._decoders = DecoderPool(most=limits.pixels, warm=self.settings.warm)
        self._decoders.start()
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
            await asyncio.to_thread(self._decoders.close)
            self._large_reader.shutdown(wait=False, cancel_futures=True)
            self._fetchers.shutdown(wait=False, cancel_futures=True)
            self._batcher = self._decoders = None

    @property
    def trouble(self) -> str | None:
        """Why requests are not answered: loading, draining, or a model that does not come back from a batch."""
        if self._batcher is None:
            return "loading"
        if self.draining:
            return "draining"
        if (seconds := self._batcher.batch_seconds) > self.settings.limits.seconds:
            return f"the model has worked on one batch for {seconds:.0f} seconds"
        return None

    @property
    def stuck(self) -> bool:
        """Whether only a restart helps."""
        return self._batcher is not None and self._batcher.batch_seconds > max(60.0, 2 * self.settings.limits.seconds)

    @property
    def overloaded(self) -> bool:
        """Whether the queue has been full, and requests refused, for seconds."""
        return self._batcher is not None and self._batcher.full and self._batcher.overload.lasting

    def with_values(self, body: Any, request: Request) -> Any:
        """Parse the values of an HTML form that hold JSON."""
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            return body
        return {**body, "instances": [self._reader.from_form(each) for each in body["instances"]]}

    @property
    def ready(self) -> bool:
        return self.trouble is None

    async def predictions(self, body: Any) -> list[dict[str, Any]]:
        """Read, decode and answer everything in `{"instances": […], "parameters": {…}}`.

        Cancelling it ends the work. Empties `body`, which may be large.
        """
        instances = self._reader.instances_of(body)
        explain = _explain(body.get("parameters"))
        if self._batcher is None or self._decoders is None:
            raise PredictionError(503, "the server is not ready", headers={"Retry-After": "1"})
        batcher, decoders = self._batcher, self._decoders
        with batcher.reserve(len(instances)), self.pixels.share(_too_many_pixels(self.pixels)) as share:
            read = await self._read(instances)
            body.clear()
            instances.clear()
            read = await self._fetched(read)
            self._check_pixels(read, share)
            prepared = await _all(self._prepared(decoders, each, number) for number, each in enumerate(read))
        return await batcher.predict(prepared, explain=explain)

    async def pieces(self, body: Any) -> AsyncIterator[str]:
        """Read and decode the only instance of a body; return an iterator over the pieces of its answer."""
        instances = self._reader.instances_of(body)
        if len(instances) != 1:
            raise PredictionError(400, "a stream has one instance", at="/instances")
        if self._batcher is None or self._decoders is None:
            raise PredictionError(503, "the server is not ready", headers={"Retry-After": "1"})
        service = self.service
        assert isinstance(service, StreamingService)
        with self._batcher.reserve(1), self.pixels.share(_too_many_pixels(self.pixels)) as share:
            read = await self._fetched(await self._read(instances))
            self._check_pixels(read, share)
            prepared = await self._prepared(self._decoders, read[0], 0)
        return self._batcher.iterate(lambda: service.stream(prepared))

    async def _read(self, instances: Sequence[Mapping[str, Any]]) -> list[dict[str, Value]]:
        """Read in a thread what takes long; in one, as several would take turns with the event loop."""
        size = sum(len(v) if isinstance(v, str | bytes) else 0 for each in instances for v in each.values())
        if size < _LARGE:
            return self._reader.read(instances)
        return await asyncio.get_running_loop().run_in_executor(self._large_reader, self._reader.read, instances)

    async def _fetched(self, read: list[dict[str, Value]]) -> list[dict[str, Value]]:
        """Fetch all images that are URLs, within the time of one. Their sizes add up to no more than a body's."""
        urls = [value for each in read for value in each.values() if isinstance(value, Unfetched)]
        fetch, limits = self.settings.fetch, self.settings.limits
        if not urls or fetch is None:
            return read
        with self.bytes_.share(_too_many_bytes()) as share:
            share.add(limits.body)
            loop = asyncio.get_running_loop()
            waiting = _all(loop.run_in_executor(self._fetchers, fetch, each.url, each.at) for each in urls)
            try:
                bodies = await asyncio.wait_for(waiting, FETCH_S)
            except asyncio.TimeoutError:
                raise PredictionError(400, f"the URLs could not be fetched within {FETCH_S:g} seconds") from None
            if sum(map(len, bodies)) > limits.body:
                raise PredictionError(413, f"the files at the URLs are larger than {limits.body:,} bytes together")
            found = dict(zip(urls, bodies, strict=True))
            return await asyncio.to_thread(lambda: [self._with_bodies(each, found) for each in read])

    def _with_bodies(self, values: Mapping[str, Value], found: Mapping[Unfetched, bytes]) -> dict[str, Value]:
        most = self.settings.limits.pixels
        return {
            name: check_image(found[value], pixels=most, at=value.at) if isinstance(value, Unfetched) else value
            for name, value in values.items()
        }

    def _check_pixels(self, read: Sequence[Mapping[str, Value]], share: Share) -> None:
        """Refuse a request with too many pixels. Small images cost as little as text: the queue limits them."""
        costs = [pixels_of(each) for each in read]
        self._reader.check_pixels(sum(costs))
        share.add(sum(cost for cost in costs if cost > SMALL_PIXELS))

    async def _prepared(self, decoders: DecoderPool, values: Mapping[str, Value], number: int) -> Any:
        images = {name: value for name, value in values.items() if isinstance(value, Encoded)}

        def finish(pixels: Sequence[Any]) -> Any:
            instance = {**values, **dict(zip(images, pixels, strict=True))}
            try:
                return self.service.prepare(instance)
            except PredictionError as refusal:
                refusal.at = refusal.at or f"/instances/{number}"  # a recipe does not know the instance's index
                raise

        return await decoders.run(list(images.values()), finish)


_FETCHES: Final = 8  # of URLs, at once
_LARGE: Final = 200_000  # characters of a request's images, whose reading takes more than a millisecond


async def _all(works: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return all results; after the first error, end the others, and wait until they have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _too_many_pixels(budget: Budget) -> PredictionError:
    seconds = max(1, round(budget.used / _PIXELS_PER_S))
    return PredictionError(429, "too many large images are being decoded", headers={"Retry-After": str(seconds)})


_PIXELS_PER_S: Final = 30_000_000  # roughly, of one core


def _too_many_bytes() -> PredictionError:
    # The connection stays open: closed with a body under way, it would be reset before the client reads the answer.
    return PredictionError(503, "too many large requests are being received", headers={"Retry-After": "1"})


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

    streams = can_stream(server.service)
    routes = [
        route(settings.predict_route, handle.predict, "POST"),
        route(f"/v1/models/{name}:predict", handle.predict, "POST"),
        *(
            [route("/stream", handle.stream, "POST"), route("/v1/completions", handle.complete, "POST")]
            if streams
            else []
        ),
        route("/v1/models", handle.models, "GET"),
        route(f"/v1/models/{name}", handle.model, "GET"),
        route("/v2", handle.about, "GET"),
        route("/v2/health/live", handle.live, "GET", open_=True),
        route("/v2/health/ready", handle.ready, "GET", open_=True),
        route(f"/v2/models/{name}", handle.tensors, "GET"),
        route(f"/v2/models/{name}/ready", handle.ready, "GET", open_=True),
        route(f"/v2/models/{name}/infer", handle.infer, "POST"),
        route(settings.health_route, handle.healthy, "GET", open_=True),
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
        self._openapi = describe_openapi(server.settings, server.service.fields, streams=can_stream(server.service))
        self._static = StaticFiles(directory=STATIC)

    async def predict(self, request: Request) -> Response:
        with self._received() as share:
            body = self._server.with_values(await _body(request, self._server.settings.limits, share), request)
            predictions = await self._while_connected(request, self._server.predictions(body))
        return JSONResponse({"predictions": predictions})

    async def stream(self, request: Request) -> Response:
        """Answer one instance piece by piece, as server-sent events."""
        with self._received() as share:
            body = self._server.with_values(await _body(request, self._server.settings.limits, share), request)
            pieces = await self._while_connected(request, self._server.pieces(body))
        return StreamingResponse(events(pieces), media_type="text/event-stream")

    async def complete(self, request: Request) -> Response:
        """Answer as OpenAI's completions API does."""
        kinds = {each.name: each.kind for each in self._server.service.fields}
        with self._received() as share:
            body = await _json(request, self._server.settings.limits, share)
            instance = instance_of_completion(body, kinds)
            pieces = await self._while_connected(request, self._server.pieces({"instances": [instance]}))
        name = self._server.settings.name
        if body.get("stream") is True:
            return StreamingResponse(completion_events(pieces, name), media_type="text/event-stream")
        text = "".join([piece async for piece in pieces])
        return JSONResponse(completion(text, name))

    async def infer(self, request: Request) -> Response:
        with self._received() as share:
            body = await _json(request, self._server.settings.limits, share)
            asked, id_ = openapi.instances_of(body, self._server.service.fields), body.get("id")
            body.clear()
            predictions = await self._while_connected(request, self._server.predictions(asked))
        return JSONResponse(openapi.answer(self._server.settings.name, predictions, id_))

    def _received(self) -> AbstractContextManager[Share]:
        return self._server.bytes_.share(_too_many_bytes())

    async def _while_connected(self, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        """Await the work; end it if the client goes away, or after the time limit."""
        seconds = self._server.settings.limits.seconds
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({working, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if gone.done():
                raise ClientDisconnect
            detail = f"the request took longer than {seconds:g} seconds"
            raise PredictionError(504, detail, headers={"Retry-After": "5"})
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"models": [self._server.settings.name]})

    async def model(self, _: Request) -> Response:
        return JSONResponse({"name": self._server.settings.name, "ready": self._server.ready})

    async def tensors(self, _: Request) -> Response:
        return JSONResponse(openapi.describe_kserve(self._server.settings.name, self._server.service.fields, ("text",)))

    async def about(self, _: Request) -> Response:
        from headway._version import __version__

        inputs = [openapi.describe_field(each) for each in self._server.service.fields]
        settings = self._server.settings
        metadata = {"name": settings.name, "version": __version__, "extensions": [], "predict": settings.predict_route}
        return JSONResponse({**metadata, "inputs": inputs, **settings.card})

    async def live(self, _: Request) -> Response:
        """Whether a restart would not help: false only if the model does not come back from a batch."""
        stuck = self._server.stuck
        reason = {"reason": self._server.trouble} if stuck else {}
        return JSONResponse({"live": not stuck, **reason}, status_code=503 if stuck else 200)

    async def ready(self, _: Request) -> Response:
        """Whether requests are accepted now."""
        return _readiness(self._server.trouble or ("overloaded" if self._server.overloaded else None))

    async def healthy(self, _: Request) -> Response:
        """As `ready`, but true under overload: Vertex AI replaces a server that is not healthy."""
        return _readiness(self._server.trouble)

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


def _readiness(trouble: str | None) -> Response:
    reason = {} if trouble is None else {"reason": trouble}
    return JSONResponse({"ready": trouble is None, **reason}, status_code=503 if trouble else 200)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, limits: Limits, share: Share) -> Any:
    """Read JSON, or a multipart form whose files and fields are one instance."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        return await _json(request, limits, share)
    return _instance_of(parse_form(kind, await _bytes(request, limits, share)))


async def _json(request: Request, limits: Limits, share: Share) -> Any:
    """Parse JSON. It has a bounded number of values and escapes, which cost more time and memory than bytes."""
    body = await _bytes(request, limits, share)
    if body.count(b",") > limits.instances * (limits.text + 64) or body.count(b"\\") > _MOST_ESCAPES:
        raise PredictionError(413, "the body has too many values")
    try:
        return json.loads(body, parse_constant=_reject_nan)
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None


_MOST_ESCAPES: Final = 500_000  # some clients escape each slash in base64
_FREE: Final = 16_384  # bytes of a body that do not count: the number of connections limits them


def _reject_nan(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


async def _bytes(request: Request, limits: Limits, share: Share) -> bytes:
    """Read the body; stop as soon as it exceeds a limit, whatever Content-Length says."""
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > limits.body:
            raise PredictionError(413, f"the body is larger than {limits.body:,} bytes")
        body += part
        share.add(max(0, len(body) - _FREE) - share.taken)
    return bytes(body)


def _instance_of(form: Sequence[tuple[str, str | bytes]]) -> Any:
    instance: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for name, value in form:
        if name == "explain" and isinstance(value, str):
            parameters["explain"] = value in ("1", "true", "on")
        elif name in instance:
            raise bad_request(f"{name!r} is in the form twice")
        else:
            instance[name] = value
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
