"""Google Secret Manager for tests: the one call that reads a version. Anything else is refused with 501."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from tests.servers.loopback import Answer, LoopbackServer, Request

_ACCESS = re.compile(r"/v1/projects/([^/]+)/secrets/([^/]+)/versions/([^/]+):access")


class SecretManagerServer(LoopbackServer):
    def __init__(self, tokens: set[str]) -> None:
        super().__init__(self._serve)
        self.tokens = tokens
        self.secrets: dict[tuple[str, str], list[bytes]] = {}  # project and name: versions, the oldest first
        self.forbidden = False

    def __enter__(self) -> SecretManagerServer:
        super().__enter__()
        return self

    def _serve(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _error(401, "UNAUTHENTICATED")
        if self.forbidden:
            return _error(403, "PERMISSION_DENIED")
        found = _ACCESS.fullmatch(request.path)
        if not found or request.method != "GET" or request.query:
            return _error(501, "UNIMPLEMENTED")
        project, name, version = found.groups()
        versions = self.secrets.get((project, name), [])
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            return _error(404, "NOT_FOUND")
        payload = {"data": base64.b64encode(versions[number - 1]).decode()}
        return _json({"name": f"projects/{project}/secrets/{name}/versions/{number}", "payload": payload})


def _error(status: int, reason: str) -> Answer:
    return _json({"error": {"code": status, "status": reason, "message": reason.lower()}}, status)


def _json(content: Any, status: int = 200) -> Answer:
    return Answer(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(content).encode())
