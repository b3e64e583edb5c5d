"""The port a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("uvicorn")

from headway.cli import main
from headway.core.errors import BadInput
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


@pytest.mark.parametrize(
    ("env", "words", "host"),
    [
        ({}, [], "127.0.0.1"),
        ({"PORT": "8080"}, [], "0.0.0.0"),
        ({"AIP_HTTP_PORT": "8080"}, [], "0.0.0.0"),
        ({"PORT": "8080"}, ["--host", "::1"], "::1"),
    ],
)
def test_only_this_machine_is_served_unless_a_platform_or_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    env: dict[str, str],
    words: list[str],
    host: str,
) -> None:
    def refuse(address: Address) -> socket.socket:
        raise BadInput(f"asked for {address.host}")

    for name in ("PORT", "AIP_HTTP_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("headway.serving.server.listen", refuse)
    assert main(["serve", "some/bundle", *words]) == 2
    said = capsys.readouterr().err
    assert f"asked for {host}\n" in said
    assert ("warning: the server listens on 0.0.0.0 because $" in said) == (host == "0.0.0.0")
    assert main(["serve", "some/bundle", *words, "--token", "env:TOKEN"]) == 2
    assert "warning" not in capsys.readouterr().err
    assert main(["serve", "some/bundle", "--host", "192.0.2.1"]) == 2
    assert "listens on 192.0.2.1 and asks for no token" in capsys.readouterr().err
