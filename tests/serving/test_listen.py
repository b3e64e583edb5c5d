"""The port a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("uvicorn")

from headway.serving.server import Address, listen


def test_answers_are_sent_at_once_on_a_connection_that_stays_open() -> None:
    """With Nagle's algorithm the second part of an answer waits for the ACK of the first, which clients delay."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen(Address(port=0)) as taken:
            async with await asyncio.start_server(serve, sock=taken):
                _, writer = await asyncio.open_connection(*taken.getsockname())
                writer.close()
                return await found

    assert asyncio.run(accepted()) != 0
