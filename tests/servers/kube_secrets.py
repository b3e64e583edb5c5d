"""Kubernetes' secrets for tests: the one call that reads one, by its token. Anything else is refused."""

from __future__ import annotations

import base64
import json
import re

from tests.servers.loopback import Answer, LoopbackServer, Request

_ONE = re.compile(r"/api/v1/namespaces/([a-z0-9-]+)/secrets/([a-z0-9.-]+)")
TOKEN = "kube-token-for-tests"


class KubeSecretsServer(LoopbackServer):
    def __init__(self) -> None:
        super().__init__(self._serve)
        self.secrets: dict[tuple[str, str], dict[str, bytes]] = {}  # namespace and name: its keys
        self.forbidden = False

    def __enter__(self) -> KubeSecretsServer:
        super().__enter__()
        return self

    def kubeconfig(self) -> str:
        """A file for clients, as `kubectl config view` prints one."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    def _serve(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized", "Unauthorized")
        found = _ONE.fullmatch(request.path)
        if not found or request.method != "GET":
            return _status(501, "NotImplemented", f"{request.method} {request.path}")
        namespace, name = found.groups()
        if self.forbidden:
            what = f'User "u" cannot get resource "secrets" in API group "" in the namespace "{namespace}"'
            return _status(403, "Forbidden", f'secrets "{name}" is forbidden: {what}')
        data = self.secrets.get((namespace, name))
        if data is None:
            return _status(404, "NotFound", f'secrets "{name}" not found')
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        meta = {"name": name, "namespace": namespace}
        return _json({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": encoded}, 200)


def _status(code: int, reason: str, message: str) -> Answer:
    return _json(
        {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code},
        code,
    )


def _json(content: object, status: int) -> Answer:
    return Answer(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(content).encode())
