"""A run whose folder is in an object store: a real S3 server, behind a wire that can be cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.rundir.layout import PLAN, PROGRESS
from headway.storage import open_store
from tests.servers import processes
from tests.supervisor.supervised import Case, cases
from tests.waiting import wait_until

Make = Callable[..., Case]


class Wire:
    """Forwards a port to a server, until it is cut; cut, it refuses and drops everything."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._open: set[socket.socket] = set()
        self._server = self._listen(0)
        self.port = int(self._server.getsockname()[1])

    def cut(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in list(self._open):
            end.close()

    def mend(self) -> None:
        self._server = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._serve, args=(server,), daemon=True).start()
        return server

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                near = server.accept()[0]
                far = socket.create_connection(self._to)
            except OSError:
                return
            self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            self._open.discard(end)
            end.close()


@pytest.fixture(name="wire")
def _wire(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    boto3 = pytest.importorskip("boto3")
    wire = Wire(moto_url)
    for name, value in processes.MOTO_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
    boto3.client("s3", endpoint_url=moto_url).create_bucket(Bucket="bucket")
    yield wire
    wire.cut()


@pytest.fixture(name="near")
def _near(tmp_path: Path, wire: Wire) -> Iterator[Make]:
    yield from cases(tmp_path)


@pytest.fixture(name="make")
def _make(near: Make, tmp_path: Path) -> Make:
    def far(script: str, **changes: Any) -> Case:
        case = near(script, **changes)
        case.url = f"s3://bucket/{tmp_path.name}/run"
        open_store(case.url).write(PLAN, case.plan.to_json().encode())
        return case

    return far


@pytest.mark.slow
def test_a_run_in_a_bucket_outlives_an_outage_of_it(make: Make, wire: Wire) -> None:
    case = make(
        """
        run = Path(os.environ["HEADWAY_RUN_DIR"])
        for number in range(1, 4):
            wait(f"go-{number}")
            print("line", number)
            (run / f"file-{number}").write_text(str(number))
            control(progress={"step": number})
            control(event="note", number=number)
            mark(f"did-{number}")
        """
    )
    supervisor = case.start()
    case.mark("go-1")
    case.marked("did-1")
    wait_until(lambda: case.events("note"), case.explain)
    wire.cut()
    case.mark("go-2")
    case.marked("did-2")
    wait_until(lambda: "the store is unreachable" in supervisor.printed, case.explain)
    wire.mend()
    wait_until(lambda: "the store is reachable again" in supervisor.printed, case.explain)
    case.mark("go-3")
    assert supervisor.ends() == 0, case.explain()
    assert case.log() == ["line 1", "line 2", "line 3"]
    assert [event["number"] for event in case.events("note")] == [1, 2, 3]
    assert len(case.events("store_down")) == len(case.events("store_back")) == 1
    assert case.ended["state"] == "finished"
    assert [entry.key for entry in case.folder.store.list("files/")] == [f"files/file-{n}" for n in (1, 2, 3)]
    progress = case.folder.read_json(PROGRESS)
    assert progress is not None
    assert (progress["step"], progress["attempt"]) == (3, 1)
