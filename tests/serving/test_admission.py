"""What a request may cost, and that whatever costs too much is refused early or ended."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from PIL import Image

from headway.serving import decoding
from headway.serving.admission import Budget
from headway.serving.app import Server
from headway.serving.connections import Connections, Deadlines
from headway.serving.inputs import Limits
from tests.serving.conftest import Brightness, b64, png
from tests.serving.test_app import _until_waiting, ask, told

Served = Callable[..., Any]


def flat(side: int) -> str:
    out = io.BytesIO()
    Image.new("L", (side, side), 9).save(out, "PNG")
    return b64(out.getvalue())


def test_sixty_pictures_that_are_each_inside_the_limit_are_refused_before_any_is_decoded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(decoding._Process, "decode", lambda *args: decoded.append(args))
    with served() as client:
        problem = told(ask(client, *[{"image": flat(6324)}] * 60), 413)
        assert problem["pointer"] == "/instances"
        assert "100 million" in problem["detail"]
    assert decoded == []


def test_large_pictures_are_refused_while_others_are_decoded_and_small_ones_are_not(
    served: Served, model: Brightness
) -> None:
    held, plain = threading.Event(), model.prepare

    def prepare(instance: Any) -> Any:
        if instance["image"].size > 6_000_000:
            model.begun.set()
            held.wait(30)
        return plain(instance)

    model.prepare = prepare  # type: ignore[method-assign]
    with served(limits=Limits(pixels_in_all=16_000_000)) as client, ThreadPoolExecutor(1) as pool:
        large = {"image": flat(2400)}
        first = pool.submit(ask, client, large)
        assert model.begun.wait(20)
        refused = ask(client, large)
        told(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert ask(client, {"image": b64(png(5))}).json()["predictions"][0]["text"] == "5"
        held.set()
        assert first.result().status_code == 200
        assert ask(client, large).status_code == 200, "what was decoded no longer counts"


def test_a_jpeg_of_thousands_of_scans_is_refused(served: Served) -> None:
    out = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(out, "JPEG", progressive=True)
    body = out.getvalue()
    at = body.rindex(b"\xff\xda")
    with served() as client:
        assert ask(client, {"image": b64(body)}).status_code == 200
        assert "scans" in told(ask(client, {"image": b64(body[:-2] + body[at:-2] * 300 + body[-2:])}), 413)["detail"]


def test_an_image_that_takes_too_long_ends_with_its_process(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SMALL_S", 0.5)
    monkeypatch.setattr(decoding, "LARGE_S", 0.5)
    monkeypatch.setattr(decoding, "_PROGRAM", "tests.serving.sleeper")
    monkeypatch.setattr(decoding, "_NICELY", "import time; time.sleep(60)")
    with served() as client:
        assert "too long" in told(ask(client, {"image": b64(png())}), 413)["detail"]


def test_a_decoder_that_dies_costs_one_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as client:
        with monkeypatch.context() as broken:
            broken.setattr(decoding, "_PROGRAM", "tests.serving.nothing_of_this_name")
            told(ask(client, {"image": b64(png())}), 413)
        assert ask(client, {"image": b64(png(7))}).json()["predictions"][0]["text"] == "7"


def test_work_ends_when_its_client_goes(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served(limits=Limits(queue=2)) as client:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, client, {"image": b64(png())})
            assert model.begun.wait(10)
            with pytest.raises(httpx.ReadTimeout):
                client.post("/predict", json={"instances": [{"image": b64(png())}] * 2}, timeout=0.5)
            _until(lambda: "headway_waiting_instances 2.0" not in client.get("/metrics").text)
            model.hold.set()
        assert ask(client, {"image": b64(png())}).status_code == 200
    assert sum(model.batches) == 2, "the model never saw the two that nobody waited for"


def test_a_body_of_many_small_values_is_refused_before_it_is_parsed(served: Served) -> None:
    with served() as client:
        told(client.post("/predict", content=b'{"instances": [' + b"0," * 1_000_000 + b"0]}"), 413)
        told(client.post("/predict", content=b'{"instances": ["' + b"\\n" * 1_000_000 + b'"]}'), 413)


def test_a_form_is_read_in_time_that_grows_with_its_length(served: Served) -> None:
    boundary = b"\r" * 60 + b"x"
    body = b"--" + boundary + b'\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    with served() as client:
        began = time.perf_counter()
        kind = {"Content-Type": 'multipart/form-data; boundary="' + "a" * 60 + '"'}
        told(client.post("/predict", content=body.replace(boundary, b"a" * 60) + b"a" * 15_000_000, headers=kind), 400)
        assert time.perf_counter() - began < 20, "a parser that looks at each byte takes longer"
        parts = (body.replace(boundary, b"a" * 60) + b"x\r\n") * 50
        told(client.post("/predict", content=parts + b"--" + b"a" * 60 + b"--", headers=kind), 413)


def test_nothing_takes_more_than_half_of_what_is_left() -> None:
    budget = Budget(100)
    error = RuntimeError
    with budget.share(error()) as one:  # type: ignore[arg-type]
        one.add(50)
        with budget.share(error()) as other:  # type: ignore[arg-type]
            with pytest.raises(error):
                other.add(26)
            other.add(25)
            with pytest.raises(error):
                one.add(1)
    assert budget.used == 0


# Connections


class Slow:
    """A client that sends what it likes, when it likes."""

    def __init__(self, client: httpx.Client, first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20)
        self.socket.sendall(first)

    def rest(self) -> bytes:
        """Whatever the server sends until it closes."""
        body = b""
        try:
            while part := self.socket.recv(65536):
                body += part
        except ConnectionResetError:
            pass
        return body


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of a fraction of a second, but for requests that are complete."""
    plain = Server.__init__

    def made(self: Server, *args: Any) -> None:
        plain(self, *args)
        self.connections = Connections(self.settings.limits.connections, Deadlines(headers=0.3, body=0.3, idle=0.3))

    monkeypatch.setattr(Server, "__init__", made)


@pytest.mark.usefixtures("hasty")
def test_headers_body_and_silence_have_deadlines(served: Served, model: Brightness) -> None:
    with served() as client:
        assert Slow(client).rest() == b""
        assert b" 408 " in Slow(client, HEAD).rest()
        assert b" 408 " in Slow(client, HEAD + b"Content-Length: 9\r\n\r\n{").rest()
        idle = Slow(client, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in idle.rest(), "it answers, and closes the connection some time later"
        assert b" 431 " in Slow(client, HEAD + b"X: " + b"y" * 40_000).rest()
        body = json.dumps({"instances": [{"image": b64(png(3))}]}).encode()
        model.hold = threading.Event()
        busy = Slow(client, HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert model.begun.wait(10)
        threading.Event().wait(0.6)  # twice the deadlines
        model.hold.set()
        assert b'"text":"3"' in busy.rest(), "a client that waits for the server is not late"


def test_bytes_of_slow_bodies_count_once_they_are_there(served: Served) -> None:
    with served(limits=Limits(bytes_in_all=1_000_000)) as client:
        slow = [Slow(client, HEAD + b"Content-Length: 900000\r\n\r\n" + b"x" * 400_000) for _ in range(2)]
        _until(lambda: "headway_held_bytes 383616.0" in client.get("/metrics").text)
        assert ask(client, {"image": b64(png(4))}).json()["predictions"][0]["text"] == "4"
        answers = [each.socket.recv(15) for each in slow if _refused(each)]
        assert answers == [b"HTTP/1.1 503 Se"]
        for each in slow:
            each.socket.close()


def _refused(slow: Slow) -> bool:
    slow.socket.settimeout(0.5)
    try:
        return bool(slow.socket.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def test_the_connection_that_has_waited_longest_makes_room(served: Served) -> None:
    with served(limits=Limits(connections=3)) as client:
        idle = [Slow(client) for _ in range(3)]
        threading.Event().wait(1.2)  # until they may be closed
        assert client.get("/live").status_code == 200
        idle[0].socket.settimeout(5)
        assert idle[0].socket.recv(1) == b"", "the first one was closed"
        assert client.get("/live").status_code == 200
        fourth = Slow(client, HEAD)
        fifth, sixth = Slow(client), Slow(client)
        assert b" 503 " in sixth.rest() or b" 503 " in fifth.rest(), "none of the others has waited for long"
        fourth.socket.close()


# Health


@pytest.mark.slow
def test_health_says_what_is_wrong(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served(limits=Limits(queue=1, seconds=30)) as client, ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(ask, client, {"image": b64(png())})]
        assert model.begun.wait(10)
        busy.append(pool.submit(ask, client, {"image": b64(png())}))
        _until_waiting(client, 1)
        told(ask(client, {"image": b64(png())}), 429)
        assert client.get("/ready").status_code == 200, "a moment's crowd is not overload"
        _until(lambda: not client.get("/ready").json()["ready"])
        assert client.get("/ready").json()["reason"] == "overloaded"
        assert client.get("/health").status_code == 200, "Vertex AI would replace the server"
        assert client.get("/live").json() == {"live": True}
        model.hold.set()
        assert [each.result().status_code for each in busy] == [200, 200]
        assert client.get("/ready").json() == {"ready": True}


def test_a_model_that_does_not_come_back_is_not_ready(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served(limits=Limits(seconds=1)) as client, ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, client, {"image": b64(png())})
        assert model.begun.wait(10)
        told(late.result(), 504)
        _until(lambda: client.get("/health").status_code == 503)
        assert "one batch" in client.get("/ready").json()["reason"]
        assert client.get("/live").status_code == 200, "it has had less than a minute"
        model.hold.set()
        _until(lambda: client.get("/ready").status_code == 200)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        threading.Event().wait(0.05)
