"""Start the HTTP server and shut it down gracefully.

On SIGTERM it reports not ready, answers accepted requests and exits with 0.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from headway.core.errors import BadInput
from headway.serving.app import Server, application
from headway.serving.connections import file_limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8080
    drain: float = 0.0  # seconds between "not ready" and the end of accepting, for load balancers to notice


def listen(address: Address) -> socket.socket:
    """Bind the port before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on a socket created with IPPROTO_TCP; otherwise an answer waits 40 ms for the
    # client's delayed ACK.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((address.host, address.port))
    except (OSError, OverflowError) as error:
        taken.close()
        raise BadInput(
            f"cannot listen on {address.host}:{address.port}: {getattr(error, 'strerror', None) or error}",
            fix="choose another --port, or 0 for any free port",
        ) from None
    return taken


LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_names(host: str, allowed: Sequence[str], *, routed: bool) -> frozenset[str] | None:
    """Return the names that requests may have in their Host header; None for any.

    A page on a name that an attacker points at this machine (DNS rebinding) is refused thereby. `routed`: a platform
    (Vertex AI, Cloud Run, a container's $PORT) sends the requests, and knows names that this machine does not.
    """
    if routed and not allowed and not is_loopback(host):
        return None
    names = {*LOOPBACK, host, *allowed, *(machine_names() if host in ("0.0.0.0", "::") else ())}
    return frozenset({*map(str.lower, names), *(f"[{name}]".lower() for name in names if ":" in name)})


def machine_names() -> tuple[str, ...]:
    """Return the names and addresses under which a server that listens on all addresses can be reached."""
    name = socket.gethostname()
    try:
        found: set[Any] = {info[4][0] for info in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    return (name, socket.getfqdn(), *map(str, found))


def serve(server: Server, taken: socket.socket, address: Address, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Calls `ready` with the port once requests are accepted."""
    server.connections.most = file_limit(server.settings.limits.connections)
    config = uvicorn.Config(
        application(server),
        log_config=None,
        access_log=False,
        server_header=False,
        http=server.connections.protocol(),
        timeout_keep_alive=round(server.connections.deadlines.idle) + 1,  # ours is first
        timeout_graceful_shutdown=round(server.settings.limits.seconds) + 1,
        backlog=4096,
    )
    asyncio.run(_serve(_Uvicorn(config), server, taken, address, ready))


class _Uvicorn(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Install no handlers: `_serve` handles signals, to report not ready first."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


async def _serve(
    http: _Uvicorn, server: Server, taken: socket.socket, address: Address, ready: Callable[[int], None]
) -> None:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    serving = asyncio.create_task(http.serve(sockets=[taken]))
    while not http.started and not serving.done():
        await asyncio.sleep(0.01)
    if not serving.done():
        ready(taken.getsockname()[1])
    waiting = asyncio.create_task(leaving.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    server.draining = True
    if not serving.done() and address.drain:
        await asyncio.sleep(address.drain)
    http.should_exit = True
    waiting.cancel()
    await serving


class JsonLines(logging.Formatter):
    """Formats each log record as one JSON object per line, as log collectors expect."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "severity": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "request_fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(quiet: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("headway.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if quiet or name != "headway.serve" else logging.INFO)


def port_of(environment: dict[str, str] | None = None) -> int:
    """Return the port that Vertex AI or Cloud Run expects, or 8080."""
    env = os.environ if environment is None else environment
    for name in ("AIP_HTTP_PORT", "PORT"):
        if env.get(name):
            try:
                return int(env[name])
            except ValueError:
                raise BadInput(
                    f"{name}={env[name]} is not a port number", fix=f"unset {name}, or give --port"
                ) from None
    return 8080
