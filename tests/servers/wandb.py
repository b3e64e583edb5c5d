"""A W&B server as far as its client's own core talks to one for metrics: strict, in memory, on loopback.

Nothing real can be had: the server is a hosted service. What the client does not ask today is refused and remembered.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4


@dataclass
class Bucket:
    """W&B's word for a run."""

    config: str = "{}"
    display_name: str = ""
    files: dict[str, list[str]] = field(default_factory=dict)  # lines of wandb-history.jsonl and its like
    exit_code: int | None = None
    preempting: bool = False
    starts: int = 0

    @property
    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files.get("wandb-history.jsonl", [])]


class WandbServer:
    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.refused: list[str] = []
        self.up = True
        self._lock = threading.Lock()
        self.address = ""

    def graphql(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, or None to a question we do not know."""
        known = {
            "CreateRunFiles": self._create_files,
            "OrganizationCoreWeaveOrganizationID": lambda asked: {"entity": None},
            "RunResumeStatus": self._resume_status,
            "UpsertBucket": self._upsert,
            "Viewer": lambda asked: {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}",
                                               "email": "me@example.org", "teams": {"edges": []}}},
        }  # fmt: skip
        answer = known.get(question["operationName"])
        with self._lock:
            return answer(question.get("variables") or {}) if answer else None

    def stream(self, name: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Lines for files at an offset: what stood there is replaced."""
        with self._lock:
            bucket = self.buckets[name]
            for file, piece in (sent.get("files") or {}).items():
                lines = bucket.files.setdefault(file, [])
                assert piece["offset"] <= len(lines), f"a gap in {file}"
                lines[piece["offset"] : piece["offset"] + len(piece["content"])] = piece["content"]
            bucket.preempting |= bool(sent.get("preempting"))
            if sent.get("complete"):
                bucket.exit_code = sent["exitcode"]
        return {}

    def _resume_status(self, asked: dict[str, Any]) -> dict[str, Any]:
        bucket = self.buckets.get(asked["name"])
        return {"model": {"id": "p", "name": asked["project"], "entity": {"id": "e", "name": "me"},
                          "bucket": bucket and _described(asked["name"], bucket)}}  # fmt: skip

    def _upsert(self, asked: dict[str, Any]) -> dict[str, Any]:
        inserted = asked["name"] not in self.buckets
        bucket = self.buckets.setdefault(asked["name"], Bucket())
        bucket.config = asked.get("config") or bucket.config
        if asked.get("displayName"):
            bucket.display_name, bucket.starts = asked["displayName"], bucket.starts + 1
        project = {"id": "p", "name": asked["project"], "entity": {"id": "e", "name": "me"}}
        described = {**_described(asked["name"], bucket), "description": "", "sweepName": None, "project": project}
        return {"upsertBucket": {"bucket": described, "inserted": inserted}}

    def _create_files(self, asked: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in asked["files"]]
        return {"createRunFiles": {"runID": asked["run"], "uploadHeaders": [], "files": files}}


def _described(name: str, bucket: Bucket) -> dict[str, Any]:
    telemetry = json.loads(bucket.config).get("_wandb", {}).get("value", {}).get("t")  # by it runs count as started
    history, events = bucket.files.get("wandb-history.jsonl", []), bucket.files.get("wandb-events.jsonl", [])
    return {
        "id": "b", "name": name, "displayName": bucket.display_name, "config": bucket.config,
        "summaryMetrics": (bucket.files.get("wandb-summary.json") or ["{}"])[-1],
        "logLineCount": 0, "historyLineCount": len(history), "eventsLineCount": len(events),
        "historyTail": json.dumps(history[-1:]), "eventsTail": json.dumps(events[-1:]),
        "tags": [], "notes": None, "wandbConfig": json.dumps({"t": telemetry}),
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    server_of: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        server, parts = self.server_of, self.path.strip("/").split("/")
        if not server.up:
            self._answer(503, {})
        elif parts[0] == "graphql":
            found = server.graphql(json.loads(body))
            if found is None:
                server.refused.append(json.loads(body)["operationName"])
            self._answer(200 if found is not None else 400, {"data": found})
        elif parts[0] == "files" and parts[-1] == "file_stream":
            self._answer(200, server.stream(parts[3], json.loads(body)))
        elif self.path.startswith("/sdk/otel/") or parts[0] == "upload":
            self._answer(200, {})
        else:
            server.refused.append(self.path)
            self._answer(404, {})

    do_PUT = do_POST

    def _answer(self, code: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    state = WandbServer()
    handler = type("Handler", (_Handler,), {"server_of": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join()
