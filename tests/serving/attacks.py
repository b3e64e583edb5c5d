"""Hostile clients of a server: `python -m tests.serving.attacks PORT SECONDS` prints what became of them, as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

from PIL import Image

from tests.serving.conftest import b64
from tests.serving.loading import Client, many_files, request_of

SIDE = 6324  # 40 megapixels less a little: inside the limit of a picture
Attack = Coroutine[Any, Any, None]


@lru_cache
def big_png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (7, 8, 9)).save(out, "PNG", compress_level=9)
    return out.getvalue()


def bomb() -> bytes:
    """Sixty 40-megapixel PNGs in a body that is inside the limit of 20 MB."""
    body = json.dumps({"instances": [{"image": b64(big_png())}] * 60}).encode()
    assert 3_000_000 < len(body) < 20_000_000, len(body)
    return request_of("/predict", body)


class Attackers:
    def __init__(self, port: int, seconds: float) -> None:
        self.port, self.end = port, time.monotonic() + seconds
        self.seen: dict[str, Counter[str]] = {}
        self.slowest: dict[str, float] = {}

    @property
    def on(self) -> bool:
        return time.monotonic() < self.end

    async def posting(self, name: str, request: bytes, pause_s: float) -> None:
        """Send the same request again and again, whatever is answered."""
        seen = self.seen.setdefault(name, Counter())
        while self.on:
            client, began = Client(self.port), time.monotonic()
            try:
                status, _, _ = await asyncio.wait_for(client.ask(request), 40)
                seen[str(status)] += 1
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                seen[type(error).__name__] += 1
            self.slowest[name] = max(self.slowest.get(name, 0.0), time.monotonic() - began)
            await client.close()
            await asyncio.sleep(pause_s)

    async def dripping(self, name: str, first: bytes) -> None:
        """Send the beginning of a request, and then a byte now and then; open the next once it is closed."""
        seen = self.seen.setdefault(name, Counter())
        while self.on:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(first)
                while self.on and not reader.at_eof():
                    if first:
                        writer.write(b"x")
                    try:
                        await asyncio.wait_for(reader.read(1000), 0.5)
                    except asyncio.TimeoutError:
                        continue
                    break
                writer.close()
                seen["closed" if self.on else "open"] += 1
            except OSError as error:
                seen[type(error).__name__] += 1
            await asyncio.sleep(0.1)


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A site whose pictures never end."""
    try:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.2)
    except OSError:
        pass
    finally:
        writer.close()


async def attack(port: int, seconds: float) -> Attackers:
    on = Attackers(port, seconds)
    site = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/a.png"
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
    body = head + b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    whole = bomb()
    large = request_of("/predict", json.dumps({"instances": [{"image": b64(big_png())}]}).encode())
    fetched = request_of("/predict", json.dumps({"instances": [{"image": url}]}).encode())
    kinds: list[tuple[int, Callable[[], Attack]]] = [
        (8, lambda: on.posting("bombs", whole, 1.0)),
        (4, lambda: on.posting("large pictures", large, 0.1)),
        (20, lambda: on.posting("dripping URLs", fetched, 0.1)),
        (200, lambda: on.dripping("slow headers", head + b"X-A: ")),
        (200, lambda: on.dripping("slow bodies", body)),
        (400, lambda: on.dripping("idle", b"")),
    ]
    chosen = os.environ.get("ATTACKS", "012345")  # to look for what costs most
    await asyncio.gather(*(make() for n, (count, make) in enumerate(kinds) if str(n) in chosen for _ in range(count)))
    site.close()
    return on


def main() -> None:
    os.nice(15)  # they stand for other machines, which have processors of their own
    many_files()
    bomb()  # ready before the time begins
    print("ready", flush=True)
    sys.stdin.readline()
    on = asyncio.run(attack(int(sys.argv[1]), float(sys.argv[2])))
    print(json.dumps({"seen": on.seen, "slowest": on.slowest}), flush=True)


if __name__ == "__main__":
    main()
