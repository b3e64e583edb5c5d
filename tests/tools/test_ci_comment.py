"""The plan as a comment on a GitLab merge request, against a server on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.tools.ci import comment
from tests.servers.loopback import Answer, LoopbackServer


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "plan.txt").write_text("job on vertex")
    return str(tmp_path / "plan.txt")


def variables(server: LoopbackServer) -> dict[str, str]:
    return {
        "HEADWAY_COMMENT_TOKEN": "token",
        "CI_API_V4_URL": f"{server.url}/api/v4",
        "CI_PROJECT_ID": "7",
        "CI_MERGE_REQUEST_IID": "3",
    }


def test_the_plan_is_posted_with_the_token(plan: str) -> None:
    with LoopbackServer(lambda request: Answer(status=201)) as server:
        assert comment(plan, variables(server)) == "commented"
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/api/v4/projects/7/merge_requests/3/notes")
    assert request.headers["private-token"] == "token"
    assert json.loads(request.body) == {"body": "### Training plan\n```\njob on vertex\n```"}


@pytest.mark.parametrize("missing", ["HEADWAY_COMMENT_TOKEN", "CI_MERGE_REQUEST_IID"])
def test_nothing_is_posted_outside_a_merge_request_or_without_a_token(plan: str, missing: str) -> None:
    with LoopbackServer(lambda request: Answer()) as server:
        env = {name: value for name, value in variables(server).items() if name != missing}
        assert comment(plan, env).startswith("not commented")
    assert not server.requests


def test_a_refusal_is_reported_and_does_not_fail_the_pipeline(plan: str) -> None:
    with LoopbackServer(lambda request: Answer(status=403)) as server:
        assert "403" in comment(plan, variables(server))
