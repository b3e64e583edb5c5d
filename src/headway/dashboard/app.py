"""The dashboard's HTTP routes.

They read run folders; the two that change a run accept requests from the dashboard's own pages only.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headway.artifacts.predictor import MEDIA_TYPE as PROBLEM
from headway.artifacts.predictor import PredictionError, bad_request
from headway.core.errors import HeadwayError, UnknownRun
from headway.dashboard.runs import RunService
from headway.storage import local_path

log = logging.getLogger("headway.ui")

STATIC: Final = Path(__file__).parent / "static"
COOKIE: Final = "headway-ui"
ACTIONS: Final = "x-headway-ui"  # a custom header, which a form or image on another site cannot send
_LOCAL_POLL_S, _REMOTE_POLL_S = 1.0, 5.0  # between polls of a run in a local folder, and in a bucket
_PAGE: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

_LIVE_FIELDS: Final = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp",
                 "gif": "image/gif", "txt": "text/plain", "json": "text/plain", "md": "text/plain"}  # fmt: skip

Handler = Callable[[Request], Awaitable[Response]]
Action = Callable[[str], str]  # a run's URL -> its state afterwards


class DashboardApp:
    """Authorization and routes. `hosts` are this server's names: any other Host header is refused (DNS rebinding)."""

    def __init__(
        self, service: RunService, *, stop: Action, resume: Action, hosts: frozenset[str], token: str | None
    ) -> None:
        self._service, self._actions = service, {"stop": stop, "resume": resume}
        self._hosts, self._token = hosts, token

    def application(self) -> Starlette:
        def route(path: str, handler: Handler, *methods: str) -> Route:
            return Route(path, self._with_error_handling(handler), methods=list(methods or ("GET",)))

        return Starlette(
            routes=[
                route("/", self.index),
                route("/api/runs", self.runs),
                route("/api/compare", self.compare),
                route("/api/runs/{id}", self.run),
                route("/api/runs/{id}/metrics", self.metrics),
                route("/api/runs/{id}/logs", self.logs),
                route("/api/runs/{id}/samples", self.samples),
                route("/api/runs/{id}/samples/{name:path}", self.sample),
                route("/api/runs/{id}/report", self.report),
                route("/api/runs/{id}/checkpoints/{step:int}/verify", self.verify),
                route("/api/runs/{id}/live", self.live),
                route("/api/runs/{id}/{act}", self.act, "POST"),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )

    def _with_error_handling(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                refused = self._authorize(request)
                return refused if refused is not None else await handler(request)
            except PredictionError as refusal:
                return _problem(refusal)
            except UnknownRun as error:
                return _problem(PredictionError(404, str(error)))
            except HeadwayError as error:
                return _problem(PredictionError(502, str(error)))

        return guarded

    def _authorize(self, request: Request) -> Response | None:
        """Check the Host header, and the token if there is one: from the URL at first, then from a cookie."""
        if _host_name(request.headers.get("host", "")) not in self._hosts:
            raise PredictionError(421, "unknown host name")
        if self._token is None:
            return None
        given = request.query_params.get("token", "")
        if hmac.compare_digest(given.encode(), self._token.encode()):
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(_cookie(request), self._token, httponly=True, samesite="strict")
            return answer
        if not hmac.compare_digest(request.cookies.get(_cookie(request), "").encode(), self._token.encode()):
            raise PredictionError(401, "open the address that `headway ui` printed, which includes the token")
        return None

    async def index(self, _: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html", headers=_PAGE)

    async def runs(self, request: Request) -> Response:
        offset, limit = _number(request, "offset", 0, 10**9), _number(request, "limit", 100, 500)
        query = request.query_params.get("q", "")
        return await _run_in_thread(lambda: self._service.runs(query=query, offset=offset, limit=limit))

    async def run(self, request: Request) -> Response:
        return await _run_in_thread(lambda: self._service.details(_id(request)))

    async def metrics(self, request: Request) -> Response:
        names = request.query_params.getlist("name")
        points = _number(request, "points", 1000, 5000)
        low, high = (_step(request, name) for name in ("low", "high"))

        def read() -> Any:
            found = self._service.metrics(_id(request))
            return {name: found.curve(name, points=points, low=low, high=high) for name in names or found.names}

        return await _run_in_thread(read)

    async def logs(self, request: Request) -> Response:
        rank = _number(request, "rank", 0, 10**6, least=-1) if "rank" in request.query_params else None
        query, last = request.query_params.get("q", ""), _number(request, "last", 500, 10_000)
        return await _run_in_thread(lambda: self._service.logs(_id(request), rank=rank, query=query, last=last))

    async def compare(self, request: Request) -> Response:
        ids = request.query_params.getlist("run")
        return await _run_in_thread(lambda: self._service.configs(ids[:20]))

    async def samples(self, request: Request) -> Response:
        def listed() -> Any:
            return [entry.key.partition("/")[2] for entry in self._service.folder(_id(request)).store.list("samples/")]

        return await _run_in_thread(listed)

    async def sample(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _LIVE_FIELDS.get(name.rpartition(".")[2].lower())
        if kind is None or ".." in name.split("/"):
            raise PredictionError(404, "no such image")
        body = await asyncio.to_thread(lambda: self._service.folder(_id(request)).store.read(f"samples/{name}"))
        return Response(body, media_type=kind, headers={"X-Content-Type-Options": "nosniff"})

    async def report(self, request: Request) -> Response:
        """Return the run's report.html.

        It is untrusted, so a CSP sandbox isolates it from this site and disables scripts.
        """
        body = await asyncio.to_thread(lambda: self._service.folder(_id(request)).store.read("report.html"))
        alone = {"Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"}
        return Response(body, media_type="text/html", headers=alone)

    async def verify(self, request: Request) -> Response:
        return await _run_in_thread(lambda: self._service.verified(_id(request), int(request.path_params["step"])))

    async def live(self, request: Request) -> Response:
        """Stream changes as server-sent events until the client disconnects."""
        id_ = _id(request)
        pause_s = _REMOTE_POLL_S if local_path(self._service.url(id_)) is None else _LOCAL_POLL_S

        async def events() -> AsyncIterator[str]:
            before = ""
            while not await request.is_disconnected():
                sent = await asyncio.to_thread(self._live_state, id_)
                if (text := json.dumps(_plain(sent))) != before:
                    before = text
                    yield f"data: {text}\n\n"
                else:
                    yield ": keep-alive\n\n"
                await asyncio.sleep(pause_s)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    def _live_state(self, id_: str) -> dict[str, Any]:
        found = self._service.details(id_)
        last = self._service.metrics(id_).last()
        shown = ("state", "progress", "spent", "checkpoints", "receipt", "metrics")
        return {**{key: found[key] for key in shown}, "last": {k: v for k, v in last.items() if v == v}}

    async def act(self, request: Request) -> Response:
        """Stop or resume a run.

        Only the dashboard's own pages can do so, as the required header needs the same origin.
        """
        name = request.path_params["act"]
        if name not in self._actions:
            raise PredictionError(404, "not found")
        origin = request.headers.get("origin")
        if request.headers.get(ACTIONS) != "1" or (origin and urlsplit(origin).netloc != request.headers.get("host")):
            raise PredictionError(403, "only the dashboard's own pages may send this request")
        url = self._service.url(_id(request))
        state = await asyncio.to_thread(self._actions[name], url)
        return JSONResponse({"state": state})


async def _run_in_thread(work: Callable[[], Any]) -> Response:
    """Run `work` in a thread, as folders may be remote, and return its result as JSON."""
    return JSONResponse(_plain(await asyncio.to_thread(work)))


def _cookie(request: Request) -> str:
    """Name the cookie by the port: browsers send one port's cookies to the dashboards on others."""
    return f"{COOKIE}-{request.url.port or 80}"


def _host_name(header: str) -> str:
    """Return a Host header without its port, which clients leave out on port 80. Brackets of IPv6 stay."""
    return re.sub(r":\d*$", "", header).lower()


def _plain(value: Any) -> Any:
    """Convert to plain JSON values. A non-finite number, such as the loss of a diverged run, becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _problem(refusal: PredictionError) -> Response:
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers, media_type=PROBLEM)


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _number(request: Request, name: str, default: int, most: int, least: int = 0) -> int:
    try:
        value = int(request.query_params.get(name, default))
    except ValueError:
        raise bad_request(f"{name} is not a number") from None
    return max(least, min(most, value))


def _step(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise bad_request(f"{name} is not a number") from None
