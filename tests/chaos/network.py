"""Hosts with cables that can be pulled: network namespaces on one bridge. Needs root; all of them see this disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class NoNetwork(Exception):
    """This machine gives no namespaces; the message says why."""


class Hosts:
    """`count` hosts that reach each other and this machine, which is `gateway` to them."""

    def __init__(self, count: int) -> None:
        self._bridge = f"hwc{os.getpid()}"  # an interface's name has at most 15 letters
        network = f"10.214.{os.getpid() % 250}"
        self.gateway = f"{network}.1"
        self.addresses = [f"{network}.{10 + number}" for number in range(count)]

    def inside(self, host: int) -> tuple[str, ...]:
        """What a command is started by to run there, under the same pid."""
        return ("nsenter", f"--net=/run/netns/{self._name(host)}")

    @contextmanager
    def cut(self, host: int) -> Iterator[None]:
        """Its cable is pulled: packets vanish without a word, in both directions."""
        _ip("link", "set", self._name(host), "down")
        try:
            yield
        finally:
            _ip("link", "set", self._name(host), "up")

    def __enter__(self) -> Hosts:
        if os.geteuid() != 0:
            raise NoNetwork("network namespaces need root")
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self.gateway}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        self._forward("--insert")
        for host, address in enumerate(self.addresses):
            name = self._name(host)
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", self._bridge, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for host in range(len(self.addresses)):
            _quietly("ip", "link", "delete", self._name(host))
            _quietly("ip", "netns", "delete", self._name(host))
        self._forward("--delete")
        _quietly("ip", "link", "delete", self._bridge)

    def _name(self, host: int) -> str:
        return f"{self._bridge}-{host}"

    def _forward(self, change: str) -> None:
        """Docker, where it has ever run, drops what goes from one host to another over a bridge."""
        if shutil.which("iptables", path=_PATH):
            through = ("--in-interface", self._bridge, "--out-interface", self._bridge)
            _quietly("iptables", change, "FORWARD", *through, "--jump", "ACCEPT")


def _ip(*words: str) -> None:
    try:
        done = _quietly("ip", *words)
    except FileNotFoundError:
        raise NoNetwork("ip is not installed: apt-get install iproute2") from None
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _quietly(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH})
