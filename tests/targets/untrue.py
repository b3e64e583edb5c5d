"""Providers that fail, lag, lie, are logged out or are another one than the run's: what each does to a receipt.

Each keeps what it really has. `mode` decides what it says about that.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headway.packaging.engine import COMMAND_TIMEOUT_S, engine_error
from headway.storage import google
from headway.targets.slurm.client import command_error
from headway.targets.vertex.client import Client

AWAY, LOGGED_OUT, LAGS, LIES, ELSEWHERE, KEEPS = "away", "logged out", "lags", "lies", "elsewhere", "keeps"
MODES = (AWAY, LOGGED_OUT, LAGS, LIES, ELSEWHERE, KEEPS)


@dataclass
class Daemon:
    """A container engine: it makes, lists and removes containers, none of which ever runs anything."""

    mode: str = ""
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    id = "daemon-1"

    def alive(self) -> bool:
        return bool(self.containers)

    def __call__(self, argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str:
        words = list(argv[1:])
        if self.mode == AWAY:
            raise engine_error(
                argv, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"
            )
        if self.mode == LOGGED_OUT:
            raise engine_error(argv, "permission denied while trying to connect to the Docker daemon socket")
        if words[0] == "info":
            return "daemon-2" if self.mode == ELSEWHERE else self.id
        if words[0] == "create":
            return self._create(words)
        if words[:2] == ["container", "ls"]:
            return "" if self.mode in (LAGS, LIES, ELSEWHERE) else "\n".join(self.containers)
        if words[:2] == ["container", "inspect"]:
            return json.dumps([self._found(argv, each) for each in words[2:]])
        if words[0] == "rm":
            self._found(argv, words[-1])
            if self.mode == KEEPS:
                raise engine_error(argv, "Error response from daemon: could not kill container")
            if self.mode != LIES:
                del self.containers[words[-1]]
        return ""

    def _found(self, argv: Sequence[str], container_id: str) -> dict[str, Any]:
        if container_id not in self.containers or self.mode == ELSEWHERE:
            raise engine_error(argv, f"Error: No such container: {container_id}")
        return self.containers[container_id]

    def _create(self, words: Sequence[str]) -> str:
        labels = dict(words[at + 1].partition("=")[::2] for at, word in enumerate(words) if word == "--label")
        container_id, name = f"{len(self.containers):064x}", words[words.index("--name") + 1]
        state = {"Status": "running"}
        self.containers[container_id] = {"Id": container_id, "Name": name, "State": state, "Config": {"Labels": labels}}
        return container_id


@dataclass
class Controller:
    """A Slurm controller whose one job stays in the queue until it is cancelled."""

    mode: str = ""
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)  # comment and folder of submission, by id

    def alive(self) -> bool:
        return bool(self.jobs)

    def __call__(self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        if self.mode == AWAY:
            raise command_error(argv, f"{argv[0]}: error: Unable to contact slurm controller (connect failure)")
        if self.mode == LOGGED_OUT:
            raise command_error(argv, f"{argv[0]}: error: Munge encode failed: protocol authentication error")
        return str(getattr(self, f"_{argv[0]}")(list(argv), cwd))

    def _sbatch(self, argv: list[str], cwd: Path) -> str:
        comment = re.search(r"(?m)^#SBATCH --comment=(.*)$", (cwd / argv[-1]).read_text())
        assert comment is not None
        self.jobs["7"] = (comment[1].strip("'\""), str(cwd))
        return "7\n"

    def _squeue(self, argv: list[str], cwd: Path | None) -> str:
        asked = next((word.partition("=")[2] for word in argv if word.startswith("--jobs=")), "")
        if self.mode in (LAGS, LIES):
            return ""
        if asked and (asked not in self.jobs or self.mode == ELSEWHERE):
            raise command_error(argv, "slurm_load_jobs error: Invalid job id specified")
        if self.mode == ELSEWHERE:
            return ""
        row = "{0}|PENDING||Resources|" + (f"{os.geteuid()}|{{1}}|{{2}}" if asked else "{2}")
        return "".join(row.format(number, folder, comment) + "\n" for number, (comment, folder) in self.jobs.items())

    def _scancel(self, argv: list[str], cwd: Path | None) -> str:
        if self.mode == ELSEWHERE or argv[-1] not in self.jobs:
            raise command_error(argv, "scancel: error: Kill job error on job id 7: Invalid job id specified")
        if self.mode == KEEPS:
            raise command_error(argv, "scancel: error: Kill job error on job id 7: Access/permission denied")
        if self.mode != LIES:
            del self.jobs[argv[-1]]
        return ""

    def _scontrol(self, argv: list[str], cwd: Path | None) -> str:
        if argv[1:] == ["show", "config"]:
            return f"ClusterName             = {'other' if self.mode == ELSEWHERE else 'ours'}\n"
        raise command_error(argv, "slurm_load_jobs error: Invalid job id specified")

    def _sacct(self, argv: list[str], cwd: Path | None) -> str:
        raise command_error(argv, "Slurm accounting storage is disabled")

    def _sinfo(self, argv: list[str], cwd: Path | None) -> str:
        return ""


class Cluster:
    """A Kubernetes API that stores objects, lists them by label and deletes them. Another one holds nothing."""

    def __init__(self) -> None:
        self.mode = ""
        self.objects: dict[str, dict[str, Any]] = {}
        self._numbers = iter(range(1, 1000))
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
                code, answer = cluster.respond(self.command, self.path, body)
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def alive(self) -> bool:
        return bool(self.objects)

    def respond(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        refused: dict[str, tuple[int, Any]] = {
            AWAY: (503, {"message": "the server is currently unable to handle the request"}),
            LOGGED_OUT: (401, {"reason": "Unauthorized", "message": "Unauthorized"}),
            LIES: (404, b"<html><title>Sign in</title></html>"),
        }
        path, query = urlsplit(url).path, parse_qs(urlsplit(url).query)
        if self.mode in refused:
            return refused[self.mode]
        if method == "POST":
            metadata = {**body["metadata"], "uid": f"uid-{next(self._numbers)}"}
            self.objects[f"{path}/{metadata['name']}"] = {**body, "metadata": metadata}
            return 201, self.objects[f"{path}/{metadata['name']}"]
        if "labelSelector" in query:
            wanted = {tuple(pair.partition("=")[::2]) for pair in query["labelSelector"][0].split(",")}
            found = [item for key, item in self.objects.items() if key.rpartition("/")[0] == path
                     and wanted <= set(item["metadata"].get("labels", {}).items())]  # fmt: skip
            return 200, {"items": [] if self.mode == LAGS else found}
        if path not in self.objects:
            return 404, {"reason": "NotFound", "message": f"{path} not found"}
        if method == "DELETE":
            if self.mode == KEEPS:
                return 403, {"reason": "Forbidden", "message": "cannot delete"}
            if (body or {}).get("preconditions", {}).get("uid") not in (None, self.objects[path]["metadata"]["uid"]):
                return 409, {"reason": "Conflict", "message": "the UID in the precondition does not match"}
            return 200, self.objects.pop(path)
        return 200, self.objects[path]


JOB = "projects/p/locations/us-east1/customJobs/7"


class Jobs(Client):
    """Vertex AI with one queued job, of the run folder at `url`."""

    def __init__(self, url: str) -> None:
        super().__init__("p")
        self.mode, self.state = "", "JOB_STATE_QUEUED"
        program = {"env": [{"name": "HEADWAY_RUN_URL", "value": url}]}
        self._job = {"name": JOB, "jobSpec": {"workerPoolSpecs": [{"containerSpec": program}]}}

    def alive(self) -> bool:
        return self.state == "JOB_STATE_QUEUED"

    def read(self, name: str) -> dict[str, Any]:
        self._refuse()
        if self.mode == LIES:
            raise google.NotFound("there is no such job", code=404)
        return {**self._job, "state": self.state}

    def cancel(self, name: str) -> None:
        self._refuse()
        if self.mode == KEEPS:
            raise google.GoogleError("you may not cancel jobs", code=403)
        if self.mode != LIES:
            self.state = "JOB_STATE_CANCELLED"

    def list_jobs(self, region: str, where: str) -> Iterator[dict[str, Any]]:
        self._refuse()
        yield from [] if self.mode in (LAGS, LIES) else [{**self._job, "state": self.state}]

    def entries(self, where: str, *, limit: int = 10_000, newest: bool = False) -> Iterator[dict[str, Any]]:
        yield from ()

    def _refuse(self) -> None:
        if self.mode == AWAY:
            raise google.Unreachable("Vertex AI does not answer")
        if self.mode == ELSEWHERE:
            raise google.GoogleError("permission denied on the project", code=403)
        if self.mode == LOGGED_OUT:
            raise google.Unauthenticated("there are no credentials", code=401)
