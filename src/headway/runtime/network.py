"""Which interface and ports a node uses. Asks the kernel only: nothing is sent, no `ip` command is needed."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from headway.errors import BadInput

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
