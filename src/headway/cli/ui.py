"""`headway ui`: all runs in a browser."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from headway.errors import FINISHED
from headway.extras import needs

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outputs", nargs="*", metavar="OUTPUTS", help="also the runs in these folders or buckets")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; any other asks for a token")
    parser.add_argument("--port", type=int, default=8765, help="default: 8765; 0: any that is free")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def main(args: argparse.Namespace) -> int:
    with needs("serve", "ui"):
        import uvicorn

        from headway.serve.run import Address, listen
        from headway.ui.app import Site
        from headway.ui.board import Board
        from headway.ui.places import Places
    from headway.ledger import Ledger

    ledger = Ledger()
    places = Places(ledger, args.outputs)
    places.start()
    taken = listen(Address(host=args.host, port=args.port))
    with taken:
        taken.listen()  # a browser that is quicker than we are waits, and is not refused
        token = None if args.host in _LOOPBACK else _token()
        hosts = frozenset({*_LOOPBACK, "[::1]", args.host, f"[{args.host}]", *_names(args.host)})
        site = Site(Board(ledger, places), stop=_stop, resume=_resume, hosts=hosts, token=token)
        address = _address(args.host, taken.getsockname()[1], token)
        print(f"all runs: {address}\nCtrl-C ends it; the runs go on")
        sys.stdout.flush()
        if not args.no_browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address)
        config = uvicorn.Config(
            site.application(), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[taken])
    return FINISHED


def _token() -> str:
    from secrets import token_urlsafe

    return token_urlsafe(24)


def _names(host: str) -> tuple[str, ...]:
    """What a server that listens on all addresses may be called."""
    if host not in ("0.0.0.0", "::"):
        return ()
    import socket

    name = socket.gethostname()
    try:
        found: Any = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    return (name, socket.getfqdn(), *found)


def _address(host: str, port: int, token: str | None) -> str:
    shown = "localhost" if host in _LOOPBACK or host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def _stop(url: str) -> str:
    from headway.launcher import reach

    return reach(url, say=lambda _: None).stop().status.state.value


def _resume(url: str) -> str:
    from headway.launcher import resume

    return resume(url, say=lambda _: None).status().state.value
