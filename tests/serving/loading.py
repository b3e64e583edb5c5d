"""Many clients at once against a server in a process of its own, without a library between them and the socket."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What a load came to."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: int = 0  # 429s, each of which was retried
    seconds: list[float] = field(default_factory=list)  # of each answered request, retries included
    took: float = 0.0

    def quantile(self, part: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(part * len(self.seconds)))]


def request_of(path: str, body: bytes) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client:
    """One connection, kept open as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, float, bytes]:
        """Status, what Retry-After says, and the body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split(" ", 2)[1])
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(fields["content-length"]))
        return status, float(fields.get("retry-after", 0)), body

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await asyncio.gather(self._streams[1].wait_closed(), return_exceptions=True)


async def load(port: int, asked: Sequence[tuple[bytes, bytes]], *, clients: int) -> Tally:
    """Every (request, answer that is right) once, shared out among so many clients at once. 429s are retried."""
    tally, waiting = Tally(), list(reversed(asked))

    async def one() -> None:
        client = Client(port)
        while waiting:
            request, right = waiting.pop()
            began = time.perf_counter()
            while True:
                status, pause, body = await client.ask(request)
                if status != 429:
                    break
                tally.refused += 1
                await asyncio.sleep(min(pause, 1.0))
            tally.seconds.append(time.perf_counter() - began)
            if status == 200 and right in body:
                tally.right += 1
            else:
                tally.wrong.append(f"{status} {body[:200]!r}")
        await client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    tally.took = time.perf_counter() - began
    return tally


def many_files() -> None:
    """A thousand connections need more than the usual thousand files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def brightness_server(*, queue: int, batch_s: float = 0.0) -> Iterator[tuple[int, int]]:
    """The model of these tests behind the real server, in a process of its own: its port and its process."""
    command = [sys.executable, "-m", "tests.serving.loading", str(queue), str(batch_s)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0, "it drains, and ends with 0"


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def main() -> None:
    from headway.serving.app import Server, Settings
    from headway.serving.fetching import fetcher
    from headway.serving.inputs import Limits
    from headway.serving.server import Address, listen, log_to_stderr, serve
    from tests.serving.conftest import Brightness

    many_files()
    log_to_stderr(quiet=True)
    model = Brightness()
    model.batches = _Nothing()
    model.batch_s = float(sys.argv[2])
    address = Address(port=0)
    taken = listen(address)
    fetch = fetcher(Limits().body, public_only=False)
    server = Server(model, Settings(name="bright", limits=Limits(queue=int(sys.argv[1])), fetch=fetch, warm=True))
    serve(server, taken, address, lambda port: print(port, flush=True))


class _Nothing(list[int]):
    """A list that keeps nothing: what a test counts must not look like a leak."""

    def append(self, _: int) -> None:
        pass


def asked_about(values: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """A request for each value, and what its answer must hold."""
    from tests.serving.conftest import b64, png

    made: dict[int, tuple[bytes, bytes]] = {}
    for value in set(values):
        body = json.dumps({"instances": [{"image": b64(png(value))}]}).encode()
        made[value] = request_of("/predict", body), json.dumps({"text": str(value)})[1:-1].replace(" ", "").encode()
    return [made[value] for value in values]


if __name__ == "__main__":
    main()
