"""The client of Google's APIs against a server on this machine, with tokens from a strict token server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.retry import RetryPolicy
from headway.storage import google
from headway.storage.google import CLOUD_RUN, SECRET_MANAGER, VERTEX, GoogleClient, Service
from tests.servers.google_auth import EMAIL, GoogleAuthServer
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request

QUICK = RetryPolicy(tries=3, first_pause_s=0.001, longest_pause_s=0.002)


def answer(value: Any, status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(value).encode())


class Api(LoopbackServer):
    """Lists three pages, and an operation that is done when it is looked at for the second time."""

    def __init__(self, tokens: set[str]) -> None:
        super().__init__(self._serve)
        self.tokens, self.looks = tokens, 0
        self.error: dict[str, Any] = {}

    def _serve(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return answer({"error": {"status": "UNAUTHENTICATED", "message": "no such token"}}, 401)
        if request.path == "/items":
            asked = json.loads(request.body) if request.body else request.query
            page = int(asked.get("pageToken", "0"))
            return answer({"items": [page], **({"nextPageToken": str(page + 1)} if page < 2 else {})})
        if request.path == "/operation":
            self.looks += 1
            return answer({"name": "operation", "done": self.looks > 1, **self.error, "response": {"made": 1}})
        return answer({"error": {"status": "NOT_FOUND", "message": "nothing"}}, 404)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    pytest.importorskip("google.auth", reason="google-auth is not installed")
    tokens: set[str] = set()
    with GoogleAuthServer(tokens) as auth, Api(tokens) as server:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "key.json")))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM", f"{server.url}/")
        assert isinstance(server, Api)
        yield server


def test_a_listing_is_read_to_its_last_page_by_query_and_by_body(api: Api) -> None:
    client = GoogleClient("p")
    url = VERTEX.url("items", region="us-east1")
    assert [page["items"] for page in client.pages(VERTEX, url, query={"pageSize": "1"})] == [[0], [1], [2]]
    assert {request.query["pageSize"] for request in api.requests} == {"1"}
    assert [page["items"] for page in client.pages(VERTEX, url, body={"filter": "x"})] == [[0], [1], [2]]
    assert (client.account, client.default_project()) == (EMAIL, "project")


def test_a_revoked_token_is_replaced(api: Api) -> None:
    client = GoogleClient("p")
    url = VERTEX.url("items")
    assert client.request(VERTEX, "GET", url)
    api.tokens.clear()
    assert client.request(VERTEX, "GET", url)["items"] == [0]


def test_the_quota_project_is_sent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "who-pays")
    assert GoogleClient("p").request(VERTEX, "GET", VERTEX.url("items"))
    assert api.requests[-1].headers["x-goog-user-project"] == "who-pays"


def test_an_operation_is_waited_for_and_its_error_raised(api: Api) -> None:
    client, started = GoogleClient("p"), {"name": "operation"}

    def wait(within_s: float = 30.0) -> dict[str, Any]:
        url = VERTEX.url("operation")
        return client.wait(VERTEX, started, url, poll_s=0.01, within_s=within_s, fix="remove it")

    assert wait() == {"made": 1}
    api.error = {"error": {"message": "no machines"}}
    with pytest.raises(google.GoogleError, match="Vertex AI: no machines"):
        wait()
    with pytest.raises(google.GoogleError, match="remove it"):
        wait(within_s=0.0)


def test_a_lost_answer_is_asked_for_again_only_if_that_is_harmless(api: Api) -> None:
    client = GoogleClient("p", retry=QUICK)
    api.faults.append(Fault(kind="drop", times=2))
    assert client.request(VERTEX, "GET", VERTEX.url("items"))
    before = len(api.requests)
    api.faults.append(Fault(kind="drop"))
    with pytest.raises(google.Unreachable):
        client.request(VERTEX, "POST", VERTEX.url("items"), {})
    assert len(api.requests) == before + 1


@pytest.mark.parametrize(
    ("service", "code", "kind", "fix"),
    [
        (VERTEX, 429, google.OutOfCapacity, "service=aiplatform.googleapis.com"),
        (SECRET_MANAGER, 429, google.Unreachable, "try again"),
        (CLOUD_RUN, 403, google.GoogleError, "roles/run.admin"),
        (VERTEX, 403, google.GoogleError, "roles/aiplatform.user"),
        (CLOUD_RUN, 404, google.NotFound, ""),
        (CLOUD_RUN, 401, google.Unauthenticated, "gcloud auth application-default login"),
    ],
)
def test_a_refusal_names_the_service_and_what_to_type(
    service: Service, code: int, kind: type[google.GoogleError], fix: str
) -> None:
    error = google.google_error(service, code, json.dumps({"error": {"message": "no"}}), "p")
    assert type(error) is kind
    assert fix in error.problem.fix
    assert error.code == code


def test_an_api_that_is_not_enabled_says_how_to_enable_it() -> None:
    text = json.dumps({"error": {"message": "off", "details": [{"reason": "SERVICE_DISABLED"}]}})
    error = google.google_error(CLOUD_RUN, 403, text, "p")
    assert error.problem.fix == "gcloud services enable run.googleapis.com logging.googleapis.com --project=p"
