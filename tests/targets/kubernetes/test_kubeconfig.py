"""Reading kubeconfigs as kubectl does, and asking credential plugins, which here are real programs."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway import targets
from headway.core.errors import BadInput, TargetError
from headway.planning.build import plan
from headway.spec import Job
from headway.spec.model import Image, TargetEntry
from headway.targets.kubernetes import kubeconfig
from headway.targets.kubernetes.client import AlreadyExists, Client, Forbidden, NotFound, Unreachable, api_error
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.status import renew_credentials
from headway.targets.kubernetes.target import KubernetesTarget
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request


def written(path: Path, *, context: str = "one", user: Any = None, namespace: str = "", **cluster: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(json.dumps(config))
    return path


def test_several_files_are_one_and_the_first_to_name_something_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "first", context="one", server="https://first")
    second = written(tmp_path / "second", context="two", server="https://second")
    monkeypatch.setenv("KUBECONFIG", f"{first}{os.pathsep}{tmp_path / 'missing'}{os.pathsep}{second}")
    assert kubeconfig.load().context == "one"
    assert kubeconfig.load("two").server == "https://first", "both call their cluster c"


def test_files_are_found_beside_the_kubeconfig_and_inline_data_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.crt").write_text("the authority")
    inline = base64.b64encode(b"inline").decode()
    beside: dict[str, Any] = {"certificate-authority": "ca.crt"}
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", **beside)))
    assert kubeconfig.load().ca == b"the authority"
    both: dict[str, Any] = {**beside, "certificate-authority-data": inline}
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", **both)))
    assert kubeconfig.load().ca == b"inline"


def test_no_kubeconfig_and_no_such_context_say_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    target = KubernetesTarget(Options(project="p", cluster="k", location="us-east1-c"))
    with pytest.raises(BadInput, match="gcloud container clusters get-credentials k --location us-east1-c --project p"):
        target.list_runs()
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c")))
    with pytest.raises(BadInput, match="context: one of one"):
        kubeconfig.load("two")


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b", "contexts: [{}]"])
def test_a_damaged_kubeconfig_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "c").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "c"))
    with pytest.raises(BadInput, match="not a kubeconfig"):
        kubeconfig.load()


PLUGIN = """
import json, os, sys, pathlib
told = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert told["kind"] == "ExecCredential"
count = pathlib.Path(sys.argv[1])
count.write_text(str(int(count.read_text() or 0) + 1) if count.exists() else "1")
status = {"token": "token-" + count.read_text(), "expirationTimestamp": sys.argv[2]}
print(json.dumps({"apiVersion": told["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def plugin(tmp_path: Path, expires: str) -> dict[str, Any]:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py"), str(tmp_path / "count"), expires],
    }


def test_a_plugins_token_is_used_until_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 10))
    far = "2099-01-01T00:00:00.123456789Z"
    for expires, tokens in ((far, ["token-1", "token-1"]), (soon, ["token-1", "token-2"])):
        (tmp_path / "count").unlink(missing_ok=True)
        user = {"exec": plugin(tmp_path, expires)}
        monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", user=user)))
        client = Client()
        assert [client._token(), client._token()] == tokens


def test_an_expired_token_is_renewed_and_a_failure_after_that_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Answer:
        known = request.headers["authorization"] == "Bearer token-2"
        return Answer(status=200 if known else 401, body=b"{}")

    user = {"exec": plugin(tmp_path, "2099-01-01T00:00:00Z")}
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with LoopbackServer(answer) as server:
        monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", user=user, server=server.url)))
        assert Client()("GET", "/version") == {}
        (tmp_path / "count").unlink()
        server.faults += [Fault(kind="none"), Fault(kind="drop", times=100)]  # 401 first, then no answer
        with pytest.raises(Unreachable, match="kubectl cluster-info"):
            Client()("POST", "/api/v1/namespaces", body={})


def test_a_plugin_that_is_missing_or_fails_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="gcloud components install gke-gcloud-auth-plugin"):
        kubeconfig.run_exec_plugin({"command": "/nowhere/gke-gcloud-auth-plugin"}, "https://x")
    with pytest.raises(TargetError, match="returned no credential: no login"):
        kubeconfig.run_exec_plugin(
            {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no login')"]}, "https://x"
        )
    with pytest.raises(TargetError, match="is not an ExecCredential") as caught:
        kubeconfig.run_exec_plugin({"command": sys.executable, "args": ["-c", "print('half a sec')"]}, "https://x")
    assert "half a sec" not in str(caught.value), "it may be half a token"


def test_tokens_are_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", user={"token": "canary"})))
    client = Client()
    assert client._token() == "canary"
    assert "canary" not in repr(client) + repr(client.access)


def test_a_cluster_that_does_not_answer_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c")))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(Unreachable, match="kubectl cluster-info"):
        Client()("GET", "/version")


def test_what_a_cluster_refuses_is_told_apart() -> None:
    def answered(code: int, **status: str) -> Exception:
        return api_error(code, json.dumps({"kind": "Status", **status}).encode(), "POST /x", "here")

    assert isinstance(answered(404, reason="NotFound", message="jobs x not found"), NotFound)
    assert isinstance(answered(409, reason="AlreadyExists", message="there"), AlreadyExists)
    assert not isinstance(answered(409, reason="Conflict", message="changed"), AlreadyExists)
    quota = answered(403, reason="Forbidden", message="exceeded quota: compute")
    assert isinstance(quota, Forbidden)
    assert "resourcequota" in str(quota)
    assert "headway doctor" in str(answered(403, reason="Forbidden", message="cannot create pods"))
    assert "kubectl config view" in str(answered(401))


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (Options(project="p", cluster="k", location="us-east1-c"), "gcloud container clusters get-credentials k "),
        (Options(), "kubectl get --raw /version"),
        (Options(platform="plain", project="p", cluster="k", location="x"), "kubectl get --raw /version"),
    ],
)
def test_rejected_credentials_are_renewed_as_the_cluster_asks(options: Options, command: str) -> None:
    rejected = api_error(401, b"{}", "GET /version", "here", login=renew_credentials(options))
    assert rejected.problem.fix.startswith(command)
    assert "proxy" in str(api_error(502, b"<html>a proxy", "GET /x", "here"))


IMPERSONATED = {
    "as": "deployer",
    "as-uid": "7",
    "as-groups": ["ml", "readers"],
    "as-user-extra": {"acme/team": ["x", "y"]},
}


def test_the_rights_are_those_of_the_user_that_the_kubeconfig_impersonates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[tuple[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append([(name.lower(), value) for name, value in self.headers.items()])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", user={**IMPERSONATED, "token": "t"}, server=url)))
        client = Client()
        client("GET", "/api/v1/pods")
        assert list(client.lines("/api/v1/log")) == ["{}"]
        client.close()
        server.shutdown()
    for headers in sent:
        assert [pair for pair in headers if pair[0].startswith("impersonate-")] == [
            ("impersonate-user", "deployer"), ("impersonate-uid", "7"), ("impersonate-group", "ml"),
            ("impersonate-group", "readers"), ("impersonate-extra-acme%2fteam", "x"),
            ("impersonate-extra-acme%2fteam", "y")]  # fmt: skip
        assert ("authorization", "Bearer t") in headers


def test_groups_without_a_user_are_refused_as_kubectl_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", user={"as-groups": ["ml"]})))
    with pytest.raises(BadInput, match="without `as`"):
        kubeconfig.load()


def test_the_contexts_namespace_is_planned_recorded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c", namespace="research")))
    (tmp_path / "p").mkdir()
    (tmp_path / "p/train.py").write_text("print()\n")
    job = Job(name="job", script="train.py", root=str(tmp_path / "p"), outputs="gs://bucket/runs",
              targets={"gke": TargetEntry(kind="kubernetes", options={"price": 0, "namespace": "mine"})})  # fmt: skip
    job = replace(job, budget=replace(job.budget, hours=1), image=Image(uri="registry.corp/image:1"))
    planned = plan(job, on="kubernetes")
    assert planned.options["namespace"] == "research"
    assert {body["metadata"]["namespace"] for request in planned.requests if (body := request.body)} == {"research"}
    assert any("namespace: research (from this machine's configuration" in note for note in planned.notes)
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "d", namespace="other")))
    assert targets.of_plan(planned).options.namespace == "research"  # type: ignore[attr-defined]
    assert plan(job, on="gke").options["namespace"] == "mine"
    assert not [note for note in plan(job, on="gke").notes if note.startswith("namespace:")]


def test_without_a_kubeconfig_the_namespace_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert kubeconfig.configured_options({}) == {}
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "c")))
    assert kubeconfig.configured_options({}) == {"context": "one"}
    assert kubeconfig.configured_options({"context": "one"}) == {}
    assert Client().namespace == "default"
