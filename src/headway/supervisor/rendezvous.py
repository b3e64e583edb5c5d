"""How the supervisors of several nodes act as one: node 0 listens, the others join it, over one TCP connection each.

A broken connection is noticed within seconds, which a run folder in a bucket could not promise, and it holds while the
store is down. Lines of JSON, at most 1 MiB each. Who joins proves that it knows the plan and the run's name, so that
two runs on the same machines cannot mix; nothing that is said can do more than start or end the ranks of this run.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput, HeadwayError, json_of

Message = dict[str, Any]
Post = Callable[[Any], None]
_HANDSHAKE_S = 10.0
_LONGEST_LINE = 1 << 20
_DEAD_AFTER_MS = 30_000


@dataclass(frozen=True, slots=True)
class Connected:
    node: int
    connection: Connection
    hello: Message


@dataclass(frozen=True, slots=True)
class Disconnected:
    node: int
    connection: Connection
    why: str


@dataclass(frozen=True, slots=True)
class PeerMessage:
    node: int
    connection: Connection
    message: Message


@dataclass(frozen=True, slots=True)
class RendezvousTimeout:
    why: str


class ConnectionRejected(HeadwayError):
    """The other side is not of this run, or has no place for us."""


def key_for(plan: bytes, run: str) -> bytes:
    """What the nodes of one run, and nobody else, have in common."""
    return hashlib.sha256(plan + b"\0" + run.encode()).digest()


class Connection:
    """One peer: lines out under a lock, lines in on a thread that posts them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._lines = sock.makefile("rb")
        self.own_address, self.peer_address = _plain(sock.getsockname()[0]), _plain(sock.getpeername()[0])
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Unanswered bytes break the connection: a host that lost its power says no farewell.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tell(self, message: Message) -> None:
        """Send it, or find the connection broken: its reader then says so."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            self.close()

    def receive(self) -> Message:
        """The next message. OSError at the end of the connection, ValueError for what is none."""
        line = self._lines.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed")
        message = json_of(line)
        if not isinstance(message, dict):
            raise ValueError("not a record")
        return message

    def listen(self, node: int, post: Post) -> None:
        """Post all that the peer says, then that it is gone."""
        self._socket.settimeout(None)
        why = ""
        while not why:
            try:
                post(PeerMessage(node, self, self.receive()))
            except (OSError, ValueError) as error:
                why = str(error) or type(error).__name__
        self.close()
        post(Disconnected(node, self, why))

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # was not connected any more
        self._socket.close()


class RendezvousServer:
    """Node 0's side. Posts `Joined`, `Said` and `Gone`; who is present is the main thread's to know."""

    def __init__(self, port: int, key: bytes, nodes: int, post: Post) -> None:
        self._key, self._nodes, self._post = key, nodes, post
        self._server = _server(port)
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._greet, args=(sock,), name="greeting", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        """On a thread of its own: a stranger who says nothing holds nobody up."""
        sock.settimeout(_HANDSHAKE_S)
        try:
            connection = Connection(sock)
            hello = self._examined(connection)
        except (OSError, ValueError):
            sock.close()  # a port scanner, or another run's supervisor: not our business
            return
        self._post(Connected(hello["node"], connection, hello))
        connection.listen(hello["node"], self._post)

    def _examined(self, connection: Connection) -> Message:
        nonce = os.urandom(16).hex()
        connection.tell({"nonce": nonce})
        hello = connection.receive()
        node = hello.get("node")
        if not hmac.compare_digest(str(hello.get("proof")), _proof(self._key, nonce, node)):
            connection.tell({"refused": "this is another run's meeting"})
            raise ValueError("a stranger")
        if not isinstance(node, int) or not 0 < node < self._nodes:
            connection.tell({"refused": f"there is no node {node} among {self._nodes}"})
            raise ValueError("no such node")
        connection.tell({"welcome": _proof(self._key, str(hello.get("nonce")), 0)})
        return hello


def join(address: str, port: int, key: bytes, node: int, hello: Message) -> Connection:
    """Connect to node 0 once. OSError when it is not there (yet); Refused when it is not ours."""
    connection = Connection(socket.create_connection((address, port), timeout=_HANDSHAKE_S))
    try:
        asked = connection.receive()
        nonce = os.urandom(16).hex()
        proof = _proof(key, str(asked.get("nonce")), node)
        connection.tell({**hello, "node": node, "proof": proof, "nonce": nonce})
        answer = connection.receive()
        if not hmac.compare_digest(str(answer.get("welcome")), _proof(key, nonce, 0)):
            raise ConnectionRejected(f"refused: {answer.get('refused', 'it does not know this run')}")
        return connection
    except ValueError:
        connection.close()
        raise ConnectionRejected("something else listens there") from None
    except (OSError, ConnectionRejected):
        connection.close()
        raise


class Joining(threading.Thread):
    """Tries to join until it succeeds or time is up; posts `Joined` and what node 0 says, or `NeverCame`."""

    def __init__(
        self, where: tuple[str, int], key: bytes, node: int, hello: Message, post: Post, *, patience_s: float
    ) -> None:
        super().__init__(name="joining", daemon=True)
        self._where, self._key, self._node, self._hello, self._post = where, key, node, hello, post
        self._patience_s = patience_s

    def run(self) -> None:
        address, port = self._where
        give_up, pause, why = time.monotonic() + self._patience_s, 0.1, ""
        while time.monotonic() < give_up:
            try:
                connection = join(address, port, self._key, self._node, self._hello)
            except (OSError, ConnectionRejected) as error:  # also a name that does not resolve yet
                why = error.problem.what if isinstance(error, ConnectionRejected) else str(error)
                time.sleep(min(pause, max(0.0, give_up - time.monotonic())))
                pause = min(2.0, pause * 1.5)
                continue
            self._post(Connected(0, connection, {}))
            connection.listen(0, self._post)
            return
        self._post(RendezvousTimeout(f"node 0 never came: waited {self._patience_s:g} s for {address}:{port} ({why})"))


def _server(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        return socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise BadInput(
            f"port {port}, where the nodes meet, cannot be had: {error.strerror}",
            where="HEADWAY_MASTER_PORT",
            fix="HEADWAY_MASTER_PORT=… (another one) on every node",
        ) from None


def _proof(key: bytes, nonce: str, node: object) -> str:
    return hmac.new(key, f"{nonce}/{node}".encode(), "sha256").hexdigest()


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:").split("%")[0]


# Which interface and ports a node uses. Asks the kernel only: nothing is sent, no `ip` command is needed.


_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: 16 of name, 24 of address


def free_ports(count: int, host: str = "") -> list[int]:
    """Ports nobody listens on now, all different. Held together while they are chosen, then let go."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def require_free(port: int) -> None:
    """BadInput where somebody listens on a port that was asked for by number: trying again would not help."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise port_taken(port, error.strerror or str(error), "HEADWAY_MASTER_PORT") from None


def port_taken(port: int | str, why: str, where: str) -> BadInput:
    return BadInput(
        f"port {port}, where the ranks meet, cannot be had: {why}",
        where=where,
        fix=f"end what listens there (ss -ltnp 'sport = :{port}'), or choose another port",
    )


def interface_of(address: str) -> str | None:
    """The network interface that carries one of our own addresses."""
    wanted = ipaddress.ip_address(address.split("%")[0])
    mapped = getattr(wanted, "ipv4_mapped", None)
    wanted = mapped or wanted
    if wanted.is_loopback:  # the whole of 127/8 is ours, though only 127.0.0.1 is listed
        wanted = ipaddress.ip_address("127.0.0.1" if wanted.version == 4 else "::1")
    return next((name for name, found in _own_addresses() if found == wanted), None)


def _own_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    yield from _ipv4()
    try:
        table = Path("/proc/net/if_inet6").read_text()
    except OSError:  # a kernel without IPv6
        return
    for line in table.splitlines():
        digits, *_, name = line.split()
        yield name, ipaddress.IPv6Address(int(digits, 16))


def _ipv4() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    import array

    room = array.array("B", bytes(_IFREQ_BYTES * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("iL", len(room), room.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, asked))[0]
    raw = room.tobytes()[:used]
    for start in range(0, used, _IFREQ_BYTES):
        name = raw[start : start + 16].split(b"\0")[0].decode()
        yield name.split(":")[0], ipaddress.IPv4Address(raw[start + 20 : start + 24])
