"""Every single write of a short run failed in turn, and every upload through a proxy: nothing lost, the error seen."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.platform import TIMING, timing_with
from tests.chaos.case import IMPORTS, QUICK, REPOSITORY, Case, Place
from tests.chaos.injected import WORD
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request

SHORT = {"epochs": 1, "workers": 0, "pause_s": 0.0}
HOOKS = Path(__file__).with_name("hooks")
DENIED = "AccessDenied"  # as S3 says it, and as whoever reads of it must find it again
REFUSAL = f"<Error><Code>{DENIED}</Code><Message>Access Denied</Message></Error>".encode()
_MOST_STARTS = 3


def short_case(tmp: Path, place: Place, ranks: int = 1, *, fault: dict[str, Any] | None = None) -> Case:
    """A run of nine steps whose stores count their writes, and fail one of them if so asked."""
    env = {
        "CHAOS_ROOT": str(REPOSITORY),
        "CHAOS_WRITES": str(tmp / "writes.log"),
        "CHAOS_FAULT": json.dumps(fault or {}),
        # Beats come by the clock and are all alike: the fewer, the more the rest is tried.
        TIMING: timing_with(QUICK, renew=10),
        "PYTHONPATH": f"{HOOKS}:{IMPORTS}",
    }
    return Case(tmp=tmp, place=place, ranks=ranks, canary=f"canary-of-{tmp.name}", config=dict(SHORT), env=env)


def writes_of(case: Case) -> list[tuple[str, int, str]]:
    """Role, number and key of every write, in the order in which they were asked for."""
    lines = (case.tmp / "writes.log").read_text().splitlines()
    return [(role, int(number), key) for role, number, key in (line.split(" ", 2) for line in lines)]


def run_to_its_end(case: Case) -> list[int]:
    """Start it, and again as its place would where it did not end well; the exit codes."""
    codes: list[int] = []
    while (not codes or codes[-1] != 0) and len(codes) < _MOST_STARTS:
        case.start()
        codes.append(case.ends())
    assert codes[-1] == 0, f"it ended with {codes}\n{case.explain()}"
    return codes


def was_struck(case: Case) -> bool:
    return (case.tmp / "writes.struck").exists()


def assert_the_error_was_seen(case: Case, word: str = WORD) -> None:
    """In what was printed, or in the events."""
    told = [path.read_text(errors="replace") for path in case.tmp.glob("supervisor-*.out")]
    told += [json.dumps(event) for event in case.events()]
    assert any(word in text for text in told), f"nobody said that a write failed:\n{case.explain()}"


# -- through a proxy --------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Nth(Fault):
    """Strikes the n-th request of its method, and the `times` after it."""

    number: int = 1
    seen: int = 0
    key: str = ""

    def strikes(self, request: Request) -> bool:
        if self.method != request.method or self.times <= 0:
            return False
        self.seen += 1
        if self.seen < self.number:
            return False
        self.times -= 1
        self.key = self.key or request.path
        return True


@contextmanager
def proxy(to: str, *, address: str = "127.0.0.1") -> Iterator[LoopbackServer]:
    """In front of a real server; `faults` makes it misbehave."""
    host = to.removeprefix("http://")

    def forward(request: Request) -> Answer:
        connection = http.client.HTTPConnection(host, timeout=60)
        query = "&".join(f"{name}={value}" if value else name for name, value in request.query.items())
        path = f"{request.path}?{query}" if query else request.path
        headers = {name: value for name, value in request.headers.items() if name != "connection"}
        try:
            connection.request(request.method, path, request.body or None, headers)
            got = connection.getresponse()
            body = got.read()
        finally:
            connection.close()
        skipped = ("content-length", "connection", "transfer-encoding")
        kept = {name: value for name, value in got.getheaders() if name.lower() not in skipped}
        if request.method == "HEAD":
            kept["Content-Length"] = got.getheader("Content-Length") or "0"
        return Answer(status=got.status, headers=kept, body=body)

    with LoopbackServer(forward, address=address) as server:
        yield server
