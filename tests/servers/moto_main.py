"""moto's S3 and Secrets Manager as a process of its own; prints its port. Used by `processes.moto`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

APPLICATION = DomainDispatcherApplication(create_backend_app)
LOCK = Lock()


def one_at_a_time(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """moto compares and stores in two steps, and a race between them would be moto's, not ours."""
    with LOCK:
        return [b"".join(APPLICATION(environment, start))]


class QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=QuietHandler)
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
