"""A server over a model that needs no torch: it says how bright a picture is, and fails where it is told to."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

for needed in ("numpy", "PIL", "starlette", "uvicorn", "prometheus_client", "multipart", "httpx"):
    pytest.importorskip(needed)

import httpx  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

from headway.artifacts.predictor import (  # noqa: E402
    Answer,
    Field,
    Instance,
    bad_request,
)
from headway.serving.app import Server, Settings, application  # noqa: E402
from headway.serving.inputs import Limits  # noqa: E402
from tests.browsing import browser, page  # noqa: E402, F401


class Brightness:
    """Answers with the mean of a picture. Batches are counted; `hold` keeps the model busy until it is released."""

    fields = (
        Field(name="image", kind="picture", summary="a picture"),
        Field(name="text", kind="text", summary="a remark", required=False),
    )

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.hold: threading.Event | None = None
        self.begun = threading.Event()
        self.batch_s = 0.0

    def prepare(self, instance: Instance) -> Any:
        if instance.get("text") == "refuse":
            raise bad_request("told to")
        return float(np.mean(instance["image"])), instance.get("text", "")

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        self.batches.append(len(prepared))
        self.begun.set()
        if self.hold is not None:
            self.hold.wait(30)
        if self.batch_s:
            time.sleep(self.batch_s)  # as a model on another device takes
        if any(remark == "fail" for _, remark in prepared):
            raise ArithmeticError("told to")
        extra = {"explained": True} if explain else {}
        return [{"text": remark or f"{value:.0f}", "brightness": value, **extra} for value, remark in prepared]


def png(value: int = 100, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), (value, value, value)).save(out, "PNG")
    return out.getvalue()


def b64(body: bytes) -> str:
    return base64.b64encode(body).decode()


@pytest.fixture
def model() -> Brightness:
    return Brightness()


Client = Callable[..., Any]


@pytest.fixture
def served(model: Brightness) -> Callable[..., Any]:
    """`with served(limits=…) as client`: the whole application, on a real socket."""
    return lambda **settings: _served(model, **settings)


@contextmanager
def _served(model: Brightness, **settings: Any) -> Iterator[httpx.Client]:
    import uvicorn

    server = Server(model, Settings(name="bright", **{"limits": Limits(), **settings}))
    config = uvicorn.Config(
        application(server), port=0, log_config=None, timeout_graceful_shutdown=5, http=server.connections.protocol()
    )
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run, daemon=True)
    thread.start()
    waited = threading.Event()
    while not http.started:
        assert thread.is_alive()
        waited.wait(0.01)
    port = http.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        if model.hold is not None:
            model.hold.set()
        http.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
