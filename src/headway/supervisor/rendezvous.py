"""Rendezvous of the supervisors of several nodes: node 0 listens, and every other node opens one TCP connection to it.

Unlike polling the run folder in a bucket, a connection detects a lost node within seconds and works while the store is
down. Messages are lines of JSON, at most 1 MiB each. A joining node proves that it knows the plan and the run's name,
so that two runs on the same machines cannot mix. Messages can only start or end the ranks of this run.

`topology` finds the address of node 0. Also the choice of free ports and of the network interface.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import BadInput, HeadwayError, json_of
from headway.core.retry import Backoff, poll

Message = dict[str, Any]
PostMessage = Callable[[Any], None]
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
    """The other side belongs to another run, or has no such node."""


def rendezvous_key(plan: bytes, run: str) -> bytes:
    """Derive the shared key of a run's nodes from the plan and the run's name."""
    return hashlib.sha256(plan + b"\0" + run.encode()).digest()


class Connection:
    """Connection to one peer: sends messages under a lock, receives them on a thread that posts them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._lines = sock.makefile("rb")
        self.own_address, self.peer_address = (
            _plain_address(sock.getsockname()[0]),
            _plain_address(sock.getpeername()[0]),
        )
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Break the connection when sent bytes stay unacknowledged: a host that lost power never closes it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message. If the connection is broken, close it: `receive_all` then posts `Disconnected`."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            self.close()

    def receive(self) -> Message:
        """Return the next message. Raises OSError when the connection is closed, ValueError for an invalid message."""
        line = self._lines.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed")
        message = json_of(line)
        if not isinstance(message, dict):
            raise ValueError("not a record")
        return message

    def receive_all(self, node: int, post: PostMessage) -> None:
        """Post a `PeerMessage` for everything the peer sends, then `Disconnected`."""
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
            pass  # already disconnected
        self._socket.close()


class RendezvousServer:
    """Node 0's side of the rendezvous: posts `Connected`, `PeerMessage` and `Disconnected`.

    The main thread keeps the list of connected nodes.
    """

    def __init__(self, port: int, key: bytes, nodes: int, post: PostMessage) -> None:
        self._key, self._nodes, self._post = key, nodes, post
        self._server = _create_server(port)
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._handshake, args=(sock,), name="greeting", daemon=True).start()

    def _handshake(self, sock: socket.socket) -> None:
        """Authenticate a new connection and listen to it, on its own thread: a silent client blocks nobody else."""
        sock.settimeout(_HANDSHAKE_S)
        try:
            connection = Connection(sock)
            hello = self._authenticate(connection)
        except (OSError, ValueError):
            sock.close()  # a port scanner, or another run's supervisor
            return
        self._post(Connected(hello["node"], connection, hello))
        connection.receive_all(hello["node"], self._post)

    def _authenticate(self, connection: Connection) -> Message:
        nonce = os.urandom(16).hex()
        connection.send({"nonce": nonce})
        hello = connection.receive()
        node = hello.get("node")
        if not hmac.compare_digest(str(hello.get("proof")), _hmac_proof(self._key, nonce, node)):
            connection.send({"refused": "this is the rendezvous of another run"})
            raise ValueError("unknown run")
        if not isinstance(node, int) or not 0 < node < self._nodes:
            connection.send({"refused": f"there is no node {node}: the run has {self._nodes} nodes"})
            raise ValueError("no such node")
        connection.send({"welcome": _hmac_proof(self._key, str(hello.get("nonce")), 0)})
        return hello


def join(address: str, port: int, key: bytes, node: int, hello: Message) -> Connection:
    """Connect to node 0, without retries.

    Raises OSError if nothing listens there (yet), ConnectionRejected if the other side is not node 0 of this run.
    """
    connection = Connection(socket.create_connection((address, port), timeout=_HANDSHAKE_S))
    try:
        challenge = connection.receive()
        nonce = os.urandom(16).hex()
        proof = _hmac_proof(key, str(challenge.get("nonce")), node)
        connection.send({**hello, "node": node, "proof": proof, "nonce": nonce})
        reply = connection.receive()
        if not hmac.compare_digest(str(reply.get("welcome")), _hmac_proof(key, nonce, 0)):
            raise ConnectionRejected(f"refused: {reply.get('refused', 'unknown run')}")
        return connection
    except ValueError:
        connection.close()
        raise ConnectionRejected("another service is listening there") from None
    except (OSError, ConnectionRejected):
        connection.close()
        raise


class JoinThread(threading.Thread):
    """Thread that retries `join` until `timeout_s` is over.

    Posts `Connected` and then node 0's messages, or `RendezvousTimeout`.
    """

    def __init__(
        self, where: tuple[str, int], key: bytes, node: int, hello: Message, post: PostMessage, *, timeout_s: float
    ) -> None:
        super().__init__(name="joining", daemon=True)
        self._where, self._key, self._node, self._hello, self._post = where, key, node, hello, post
        self._timeout_s = timeout_s

    def run(self) -> None:
        address, port = self._where
        why = ""
        for _ in poll(Backoff(0.1, 2.0, factor=1.5), within_s=self._timeout_s):
            try:
                connection = join(address, port, self._key, self._node, self._hello)
            except (OSError, ConnectionRejected) as error:  # OSError includes a name that does not resolve yet
                why = error.problem.what if isinstance(error, ConnectionRejected) else str(error)
                continue
            self._post(Connected(0, connection, {}))
            connection.receive_all(0, self._post)
            return
        self._post(
            RendezvousTimeout(f"could not reach node 0: waited {self._timeout_s:.3g} s for {address}:{port} ({why})")
        )


def _create_server(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        return socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise BadInput(
            f"port {port}, for the rendezvous of the nodes, is not available: {error.strerror}",
            where="HEADWAY_MASTER_PORT",
            fix="set HEADWAY_MASTER_PORT to another port on every node",
        ) from None


def _hmac_proof(key: bytes, nonce: str, node: object) -> str:
    return hmac.new(key, f"{nonce}/{node}".encode(), "sha256").hexdigest()


def _plain_address(address: str) -> str:
    return address.removeprefix("::ffff:").split("%")[0]


# Network interfaces and ports, from the kernel alone: sends no packets and needs no `ip` command.


_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: 16 of name, 24 of address


def free_ports(count: int, host: str = "") -> list[int]:
    """Return distinct free ports: all are bound at once to choose them, then released."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def require_free_port(port: int) -> None:
    """Raise BadInput if a port that the user chose is in use: a retry would not help."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise port_in_use_error(port, error.strerror or str(error), "HEADWAY_MASTER_PORT") from None


def port_in_use_error(port: int | str, why: str, where: str) -> BadInput:
    return BadInput(
        f"port {port}, for the rendezvous of the ranks, is not available: {why}",
        where=where,
        fix=f"stop the process that listens there (ss -ltnp 'sport = :{port}'), or choose another port",
    )


def interface_of(address: str) -> str | None:
    """Return the network interface that has this address of ours, or None."""
    target = ipaddress.ip_address(address.split("%")[0])
    mapped = getattr(target, "ipv4_mapped", None)
    target = mapped or target
    if target.is_loopback:  # all of 127/8 is loopback, though the kernel lists only 127.0.0.1
        target = ipaddress.ip_address("127.0.0.1" if target.version == 4 else "::1")
    return next((name for name, own_address in _own_addresses() if own_address == target), None)


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

    buffer = array.array("B", bytes(_IFREQ_BYTES * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
    raw = buffer.tobytes()[:used]
    for start in range(0, used, _IFREQ_BYTES):
        name = raw[start : start + 16].split(b"\0")[0].decode()
        yield name.split(":")[0], ipaddress.IPv4Address(raw[start + 20 : start + 24])
