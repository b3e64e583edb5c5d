"""The HTTP client against real servers on this machine: faults, keep-alive, TLS, proxies, redirects, limits."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.core import http
from headway.core.errors import BadInput, Conflict, Denied, NotThere, StoreError, Transient
from headway.core.retry import RetryPolicy
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request

QUICK = RetryPolicy(tries=4, first_pause_s=0.001, longest_pause_s=0.002)


def echo(request: Request) -> Answer:
    if request.path.startswith("/status/"):
        return Answer(status=int(request.path.rpartition("/")[2]))
    if request.path == "/large":
        return Answer(body=b"x" * 1000)
    return Answer(body=request.body or request.path.encode(), headers={"X-Method": request.method})


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(echo) as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_json_goes_out_and_comes_back(server: LoopbackServer) -> None:
    response = http.Client().request("POST", f"{server.url}/x?a=1", query={"b": "2 3"}, json={"n": [1]})
    assert (response.status, response.ok, response.json()) == (200, True, {"n": [1]})
    (request,) = server.requests
    assert request.query == {"a": "1", "b": "2 3"}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("headway/")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Denied), (403, Denied), (404, NotThere), (410, NotThere), (409, Conflict), (412, Conflict),
     (429, Transient), (503, Transient), (418, StoreError), (302, StoreError)],
)  # fmt: skip
def test_a_status_is_mapped_to_its_error(server: LoopbackServer, status: int, kind: type[StoreError]) -> None:
    response = http.Client().request("GET", f"{server.url}/status/{status}")
    with pytest.raises(StoreError, match=str(status)) as caught:
        response.raise_for_status()
    assert type(caught.value) is kind


@pytest.mark.parametrize("kind", ["refuse", "drop", "cut"])
def test_an_idempotent_request_is_retried(server: LoopbackServer, kind: str) -> None:
    server.faults.append(Fault(kind=kind, times=2))  # type: ignore[arg-type]
    assert http.Client(retry=QUICK).request("GET", f"{server.url}/path").text == "/path"
    assert len(server.requests) == 3


def test_a_post_is_sent_once_unless_it_is_said_to_be_idempotent(server: LoopbackServer) -> None:
    client = http.Client(retry=QUICK)
    server.faults.append(Fault(kind="drop"))
    with pytest.raises(http.ConnectionFailed):
        client.request("POST", server.url, body=b"x")
    server.faults.append(Fault(kind="refuse", times=1))
    assert client.request("POST", server.url, body=b"x").status == 503
    assert len(server.requests) == 2
    server.faults.append(Fault(kind="drop"))
    assert client.request("POST", server.url, body=b"x", idempotent=True).ok


def test_the_last_answer_of_a_busy_server_is_returned(server: LoopbackServer) -> None:
    assert http.Client(retry=QUICK).request("GET", f"{server.url}/status/503").status == 503
    assert len(server.requests) == QUICK.tries


def test_a_server_that_does_not_answer_fails_in_time(server: LoopbackServer) -> None:
    server.faults.append(Fault(kind="hang"))
    with pytest.raises(http.ConnectionFailed, match="timed out"):
        http.Client(timeout_s=0.2).request("GET", server.url)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(http.ConnectionFailed, match="refused"):
            http.Client().request("GET", f"http://127.0.0.1:{closed.getsockname()[1]}")


def test_a_response_over_the_limit_is_refused(server: LoopbackServer) -> None:
    assert len(http.Client(max_bytes=1000).request("GET", f"{server.url}/large").body) == 1000
    with pytest.raises(http.TooLarge):
        http.Client(max_bytes=999).request("GET", f"{server.url}/large")


@pytest.mark.parametrize("url", ["", "ftp://host/x", "file:///etc/passwd", "https://", "http://host:99999/"])
def test_only_http_addresses_are_requested(url: str) -> None:
    with pytest.raises(BadInput):
        http.Client().request("GET", url)


@contextmanager
def one_answer_per_connection(idle_closed: threading.Event) -> Iterator[tuple[str, list[bytes]]]:
    """A server that promises keep-alive and closes each connection after one answer."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                idle_closed.set()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
        listening.shutdown(socket.SHUT_RDWR)


def test_an_idle_connection_that_the_server_closed_is_replaced_even_for_a_post() -> None:
    closed = threading.Event()
    with one_answer_per_connection(closed) as (url, seen):
        client = http.Client()
        for _ in range(3):
            assert client.request("POST", url, body=b"x").text == "ok"
            assert closed.wait(5)
            closed.clear()
    assert len(seen) == 3


def test_a_connection_is_reused(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    create = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: opened.append(a) or create(*a, **k))
    client = http.Client()
    for _ in range(5):
        assert client.request("GET", server.url).ok
    assert len(opened) <= 1  # none if http.client bound its own reference before the patch
    assert [len(idle) for idle in client._idle.values()] == [1]
    client.close()
    assert client.request("GET", server.url).ok


def test_threads_share_a_client(server: LoopbackServer) -> None:
    client, answers = http.Client(), []

    def ask(name: str) -> None:
        answers.extend(client.request("GET", f"{server.url}/{name}").text == f"/{name}" for _ in range(20))

    threads = [threading.Thread(target=ask, args=(f"thread-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [True] * 80


def test_redirects_keep_the_password_at_its_own_host() -> None:
    with LoopbackServer(echo, address="127.0.0.2") as other:

        def redirect(request: Request) -> Answer:
            to = {"/here": "/there", "/away": f"{other.url}/stolen", "/loop": "/loop", "/file": "file:///etc/passwd"}
            target = to.get(request.path)
            return Answer(status=302, headers={"Location": target}) if target else Answer(body=b"arrived")

        with LoopbackServer(redirect) as server:
            login = {"Authorization": http.basic("me", "canary")}

            def fetch(path: str) -> bytes:
                with http.Client().stream(server.url + path, headers=login, redirects=3) as stream:
                    return stream.read(100)

            assert fetch("/here") == b"arrived"
            assert server.requests[-1].headers["authorization"] == login["Authorization"]
            assert fetch("/away") == b"/stolen"
            assert "authorization" not in other.requests[-1].headers
            with pytest.raises(StoreError, match="more than 3 times"):
                fetch("/loop")
            with pytest.raises(StoreError, match="not allowed"):
                fetch("/file")


def test_a_stream_that_breaks_off_is_not_a_short_file(server: LoopbackServer) -> None:
    server.faults.append(Fault(kind="cut"))
    with http.Client().stream(f"{server.url}/large") as stream:
        assert len(stream.read(400)) == 400
        assert len(stream.read(400)) == 100
        with pytest.raises(http.ConnectionFailed):
            stream.read(400)


def test_a_proxy_is_taken_from_the_environment_and_gets_its_login(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:canary@"))
    assert http.Client().request("GET", "http://far.example/path").ok
    (request,) = server.requests
    assert request.headers["host"] == "far.example"
    assert request.headers["proxy-authorization"] == http.basic("user", "canary")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert http.Client().request("GET", f"{server.url}/direct").text == "/direct"
    assert "proxy-authorization" not in server.requests[-1].headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=named.example"]
    argv += ["-addext", "subjectAltName=DNS:named.example", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    with LoopbackServer(echo) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
        yield server.url.replace("http://", "https://")


def test_certificates_are_verified_against_the_authority_and_the_name(secure: str, certificate: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    client = http.Client(tls=trusted, server_name="named.example", retry=QUICK)
    assert client.request("GET", f"{secure}/a").text == "/a"
    assert client.request("GET", f"{secure}/b").text == "/b", "over the same connection"
    with pytest.raises(http.CertificateRejected):
        http.Client(tls=trusted).request("GET", secure)
    with pytest.raises(http.CertificateRejected):
        http.Client(server_name="named.example", retry=QUICK).request("GET", secure)


def test_a_host_is_reached_at_a_given_address_under_its_own_name(secure: str, certificate: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    url = secure.replace("127.0.0.1", "named.example")
    assert http.Client(tls=trusted, address="127.0.0.1").request("GET", f"{url}/x").text == "/x"
