"""What clients may rely on: the protocols, the limits, and that every refusal says why."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from headway.serving.app import Server, Settings, application
from headway.serving.fetching import fetcher, is_public
from headway.serving.inputs import Limits
from headway.serving.server import host_names
from tests.servers.loopback import Answer, LoopbackServer, Request
from tests.serving.conftest import Brightness, b64, png

Served = Callable[..., Any]


def told(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    return body


def ask(client: httpx.Client, *instances: Any, **more: Any) -> httpx.Response:
    return client.post("/predict", json={"instances": list(instances), **more})


def test_vertex_ais_contract_is_spoken(served: Served) -> None:
    with served(predict_route="/aip/predict", health_route="/aip/health") as client:
        assert client.get("/aip/health").status_code == 200
        answer = client.post("/aip/predict", json={"instances": [{"image": b64(png(7))}, {"image": b64(png(200))}]})
        assert answer.json() == {
            "predictions": [{"text": "7", "brightness": 7.0}, {"text": "200", "brightness": 200.0}]
        }


def test_kserves_first_protocol_is_spoken(served: Served) -> None:
    with served() as client:
        assert client.get("/v1/models").json() == {"models": ["bright"]}
        assert client.get("/v1/models/bright").json() == {"name": "bright", "ready": True}
        answer = client.post("/v1/models/bright:predict", json={"instances": [{"image": {"b64": b64(png(9))}}]})
        assert answer.json()["predictions"][0]["text"] == "9"


def test_kserves_second_protocol_is_spoken(served: Served) -> None:
    with served() as client:
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/models/bright/ready").status_code == 200
        assert client.get("/v2/models/bright").json()["inputs"][0]["name"] == "image"
        tensor = {"name": "image", "shape": [2], "datatype": "BYTES", "data": [b64(png(3)), b64(png(4))]}
        answer = client.post("/v2/models/bright/infer", json={"id": "7", "inputs": [tensor]}).json()
        assert (answer["model_name"], answer["id"]) == ("bright", "7")
        assert answer["outputs"] == [
            {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["3", "4"]},
            {"name": "brightness", "shape": [2], "datatype": "FP64", "data": [3.0, 4.0]},
        ]
        wrong = {**tensor, "shape": [3]}
        assert (
            told(client.post("/v2/models/bright/infer", json={"inputs": [wrong]}), 400)["pointer"] == "/inputs/0/shape"
        )
        named = {"inputs": [tensor], "id": {"not": "text"}}
        assert told(client.post("/v2/models/bright/infer", json=named), 400)["pointer"] == "/id"


def test_a_picture_can_be_uploaded_as_a_form(served: Served) -> None:
    with served() as client:
        answer = client.post("/predict", files={"image": ("a.png", png(50), "image/png")}, data={"explain": "true"})
        assert answer.json() == {"predictions": [{"text": "50", "brightness": 50.0, "explained": True}]}


def test_explanations_come_when_asked_for(served: Served) -> None:
    with served() as client:
        plain = ask(client, {"image": b64(png())}).json()["predictions"][0]
        rich = ask(client, {"image": b64(png())}, parameters={"explain": True}).json()["predictions"][0]
        assert "explained" not in plain
        assert rich["explained"]


@pytest.mark.parametrize(
    ("body", "status", "pointer", "says"),
    [
        (b"{", 400, None, "not JSON"),
        (b"[" * 100_000, 400, None, ""),
        (b'{"instances": [NaN]}', 400, None, "NaN"),
        (b"[]", 400, None, '"instances"'),
        (b'{"instances": []}', 400, "/instances", "no instances"),
        (b'{"instances": [1]}', 400, "/instances/0", "'image'"),
        (b'{"instances": [{"imgae": "x"}]}', 400, "/instances/0", "'imgae'"),
        (b'{"instances": [{"text": "x"}]}', 400, "/instances/0", "'image' is missing"),
        (b'{"instances": [{"image": "%%"}]}', 400, "/instances/0/image", "base64"),
        (b'{"instances": [{"image": 5}]}', 400, "/instances/0/image", "base64"),
        (b'{"instances": [{"image": "aGVsbG8="}]}', 400, "/instances/0/image", "not an image"),
        (b'{"instances": [{"image": "https://x.org/a.png"}]}', 400, "/instances/0/image", "does not fetch URLs"),
        (b'{"instances": [{"text": " \\u001c\\ufeff", "image": ""}]}', 400, "/instances/0/text", "the text is empty"),
        (b'{"instances": ["x"], "parameters": {"beam": 9}}', 400, "/parameters", "'beam'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_where_and_why(
    served: Served, body: bytes, status: int, pointer: str | None, says: str
) -> None:
    with served() as client:
        problem = told(client.post("/predict", content=body, headers={"Content-Type": "application/json"}), status)
        assert problem.get("pointer") == pointer
        assert says in problem["detail"]


def test_what_a_recipe_refuses_is_pointed_at_too(served: Served) -> None:
    with served() as client:
        good = {"image": b64(png())}
        assert told(ask(client, good, {**good, "text": "refuse"}), 400)["pointer"] == "/instances/1"


def test_everything_has_a_limit(served: Served, model: Brightness) -> None:
    limits = Limits(body=100_000, pixels=1_000_000, instances=2, text=10)
    with served(limits=limits) as client:
        small = {"image": b64(png())}
        assert told(ask(client, small, small, small), 413)["pointer"] == "/instances"
        assert told(ask(client, {**small, "text": "x" * 11}), 413)["pointer"] == "/instances/0/text"
        assert "1 million" in told(ask(client, {"image": b64(png(side=1001))}), 413)["detail"]
        told(client.post("/predict", content=b"x" * 100_001), 413)
        chunked = told(client.post("/predict", content=(b"x" * 60_000 for _ in range(2))), 413)
        assert "100,000 bytes" in chunked["detail"]
        assert ask(client, small).status_code == 200
    assert model.batches == [1], "nothing that was refused reached the model"


def test_a_damaged_picture_spoils_nothing_else(served: Served) -> None:
    body = png(side=200)
    with served() as client:
        for cut in (20, 60, len(body) // 2):
            told(ask(client, {"image": b64(body[:cut])}), 400)
        assert ask(client, {"image": b64(body)}).status_code == 200


def test_what_comes_together_is_answered_together(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served() as client, ThreadPoolExecutor(12) as pool:
        first = pool.submit(ask, client, {"image": b64(png(1))})
        model.begun.wait(10)
        rest = [pool.submit(ask, client, {"image": b64(png(value))}) for value in range(2, 12)]
        _until_waiting(client, 10)
        model.hold.set()
        answers = [each.result().json()["predictions"][0]["text"] for each in (first, *rest)]
    assert answers == [str(value) for value in range(1, 12)]
    assert model.batches[0] == 1
    assert len(model.batches) <= 3, "those that waited went together"


def _until_waiting(client: httpx.Client, count: int) -> None:
    for _ in range(2000):
        line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith("headway_waiting"))
        if float(line.split()[-1]) >= count:
            return
    raise AssertionError(f"{line}, never {count}")


def test_a_full_queue_is_said_with_when_to_come_back(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served(limits=Limits(queue=2)) as client, ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(ask, client, {"image": b64(png())})]
        model.begun.wait(10)
        busy += [pool.submit(ask, client, {"image": b64(png())}) for _ in range(2)]
        _until_waiting(client, 2)
        answers = [ask(client, {"image": b64(png())}, {"image": b64(png())}) for _ in range(3)]
        model.hold.set()
        assert all(each.result().status_code == 200 for each in busy)
    for answer in answers:
        told(answer, 429)
        assert int(answer.headers["retry-after"]) >= 1


def test_what_is_being_decoded_takes_up_room_too(served: Served, model: Brightness) -> None:
    """A crowd that comes at once is not let in because none of it waits for the model yet."""
    decoding, plain = threading.Event(), model.prepare

    def slowly(instance: Any) -> Any:
        model.begun.set()
        decoding.wait(30)
        return plain(instance)

    model.prepare = slowly  # type: ignore[method-assign]
    with served(limits=Limits(queue=2)) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, {"image": b64(png())}, {"image": b64(png())})
        assert model.begun.wait(10)
        refused = ask(client, {"image": b64(png())})
        decoding.set()
        assert first.result().status_code == 200
        told(refused, 429)
        assert ask(client, {"image": b64(png())}).status_code == 200, "the room is free again"
        assert "at most 2" in told(ask(client, *[{"image": b64(png())}] * 3), 413)["detail"], "it would never fit"


def test_no_answer_in_time_is_said(served: Served, model: Brightness) -> None:
    model.hold = threading.Event()
    with served(limits=Limits(seconds=0.4)) as client:
        assert "0.4 seconds" in told(ask(client, {"image": b64(png())}), 504)["detail"]
        model.hold.set()


def test_an_input_on_which_the_model_fails_fails_alone(served: Served, model: Brightness) -> None:
    with served() as client:
        told(ask(client, {"image": b64(png(1))}, {"image": b64(png(2)), "text": "fail"}), 500)
        assert ask(client, {"image": b64(png(3))}).json()["predictions"][0]["text"] == "3"
    assert model.batches[:3] == [2, 1, 1]


def test_a_token_is_asked_for_everywhere_but_for_health(served: Served, model: Brightness) -> None:
    with served(token="canary-token") as client:
        open_ = {"/ready", "/live", "/health", "/v2/health/live", "/v2/health/ready", "/v2/models/bright/ready"}
        for path in open_:
            assert client.get(path).status_code == 200, path
        server = Server(model, Settings(name="bright", token="canary-token"))
        paths = {route.path.replace("{name:path}", "try.js") for route in application(server).routes}  # type: ignore[attr-defined]
        assert {"/", "/docs", "/about", "/openapi.json", "/metrics", "/static/try.js", "/predict"} < paths
        for path in paths - open_:
            method = "POST" if path.endswith(("predict", "infer")) else "GET"
            for wrong in (None, "Bearer wrong", "Basic canary-token", "Bearer canary-tokem", "Basic Ondyb25n"):
                headers = {"Authorization": wrong} if wrong else {}
                told(client.request(method, path, headers=headers), 401)
        client.headers["Authorization"] = "Bearer canary-token"
        assert ask(client, {"image": b64(png())}).status_code == 200
        assert client.get("/").status_code == 200


def test_a_browser_can_log_in_with_the_token_as_its_password(served: Served) -> None:
    with served(token="canary-token") as client:
        assert "Basic" in client.get("/").headers["www-authenticate"]
        assert client.get("/metrics").headers["www-authenticate"] == "Bearer"
        assert client.get("/", auth=("", "canary-token")).status_code == 200
        assert client.get("/about", auth=("anybody", "canary-token")).status_code == 200


def test_pages_that_point_their_name_at_this_machine_are_refused(served: Served) -> None:
    with served(hosts=host_names("127.0.0.1", ["models.example"], routed=False)) as client:
        for name in ("localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:80", "models.example"):
            assert client.get("/about", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", "localhost.evil.example", "10.1.2.3", ""):
            told(client.get("/about", headers={"Host": name}), 421)
            told(client.post("/predict", json={}, headers={"Host": name}), 421)
        assert "--allow-host evil.example" in client.get("/", headers={"Host": "evil.example:80"}).json()["detail"]
        assert client.get("/ready", headers={"Host": "10.1.2.3"}).status_code == 200, "load balancers name an address"
        told(client.post("/predict", json={}, headers={"Sec-Fetch-Site": "cross-site"}), 403)


def test_on_all_addresses_an_address_is_a_name_and_a_platform_knows_its_own(served: Served) -> None:
    assert host_names("0.0.0.0", [], routed=True) is None
    assert host_names("127.0.0.1", [], routed=True) is not None
    with served(hosts=host_names("0.0.0.0", [], routed=False)) as client:
        assert client.get("/about", headers={"Host": "10.1.2.3:8080"}).status_code == 200
        assert client.get("/about", headers={"Host": socket.gethostname()}).status_code == 200
        told(client.get("/about", headers={"Host": "evil.example"}), 421)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "2002:a00:1::", "::ffff:127.0.0.1", "::10.0.0.1", "ff0e::1",
     "::ffff:0:192.168.0.1", "2001:0:a00:1::1", "2600::5efe:10.0.0.1", "fec0::1", "224.0.0.1", "fe80::1%1"],
)  # fmt: skip
def test_no_form_of_a_private_address_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8", "2606:4700::1"]
)
def test_public_addresses_are_public_in_every_form(address: str) -> None:
    assert is_public(address)


def test_a_url_that_drips_ends_as_a_whole(served: Served) -> None:
    """Each byte comes within any timeout for a single wait; headers that drip end as a body does."""
    with served(fetch=fetcher(1_000_000, public_only=False, total_s=0.3)) as client:
        for first in (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200"):
            with dripping(first) as port:
                detail = told(ask(client, {"image": f"http://127.0.0.1:{port}/a.png"}), 400)["detail"]
                assert "within 0.3 seconds" in detail


@contextmanager
def dripping(first: bytes) -> Iterator[int]:
    """A server that sends a few bytes at once, then one every 50 ms for as long as somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(first)
                    while not done.wait(0.05):
                        connection.sendall(b"x")

        done = threading.Event()
        thread = threading.Thread(target=drip)
        listening.settimeout(20)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


def test_addresses_are_fetched_where_allowed_and_never_from_inside(served: Served) -> None:
    def answer(request: Request) -> Answer:
        return Answer(status=302, headers={"Location": "/b"}) if request.path == "/moved" else Answer(body=png(33))

    with LoopbackServer(answer) as site:
        with served(fetch=fetcher(1_000_000, public_only=False)) as client:
            assert ask(client, {"image": f"{site.url}/a.png"}).json()["predictions"][0]["text"] == "33"
            assert "302" in told(ask(client, {"image": f"{site.url}/moved"}), 400)["detail"]
        with served(fetch=fetcher(10, public_only=False)) as client:
            told(ask(client, {"image": f"{site.url}/a.png"}), 413)
        with served(fetch=fetcher(1_000_000)) as client:
            before = len(site.requests)
            for inside in (
                site.url,
                "http://169.254.169.254/computeMetadata/v1/",
                "http://[::1]/",
                "http://localhost/",
            ):
                told(ask(client, {"image": inside}), 400)
            assert len(site.requests) == before


def test_metrics_are_for_prometheus(served: Served) -> None:
    with served() as client:
        ask(client, {"image": b64(png())})
        page = client.get("/metrics").text
    assert 'headway_requests_total{route="/predict",status="200"} 1.0' in page
    assert "headway_batch_instances_count 1.0" in page


def test_every_route_is_described(served: Served) -> None:
    with served() as client:
        document = client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            for method in operations:
                answer = client.request(method, path, content=b"{}" if method == "post" else None)
                assert str(answer.status_code) in operations[method]["responses"], path
        assert "/predict" in client.get("/docs").text
        assert json.dumps(document)


def test_the_page_runs_no_script_of_others(served: Served) -> None:
    with served() as client:
        page = client.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert client.get("/static/try.js").status_code == 200
        told(client.get("/static/../app.py"), 404)
        told(client.get("/nowhere"), 404)
        told(client.get("/predict"), 405)
