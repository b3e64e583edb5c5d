"""Several hosts on this machine: network namespaces on one bridge, each with an address, a name and an sshd of its own.

Every host calls itself 127.0.1.1, as Debian does: whoever goes by a host's name meets nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.testbed import sshd

BRIDGE = "hw-test"
NETWORK = "10.213.77"
LOCK = Path("/run/headway-test-hosts.lock")  # names and addresses are the machine's: one process has them at a time


def lacking() -> str:
    """Why none can be had here; empty where they can."""
    if sshd.lacking():
        return sshd.lacking()
    if shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        return "ip not installed: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"hw-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if probe.returncode:
        return f"no network namespaces: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Hosts:
    """`count` machines that reach each other and are reached from here. All see this machine's disk."""

    def __init__(self, folder: Path, count: int) -> None:
        self.names = [f"hw-node{number}" for number in range(count)]
        self.servers = [
            sshd.Server(folder / name, name=name, address=f"{NETWORK}.{10 + number}", namespace=name)
            for number, name in enumerate(self.names)
        ]
        self.config = folder / "ssh_config"
        self._lock: IO[str] | None = None

    def start(self) -> None:
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._remove()  # what a process left that was killed
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        _between_hosts("--insert")
        for name, server in zip(self.names, self.servers, strict=True):
            _ip("netns", "add", name)
            _ip("link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"v-{name}", "master", BRIDGE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{server.address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            own = Path("/etc/netns") / name
            own.mkdir(parents=True, exist_ok=True)
            host = os.uname().nodename
            (own / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
            server.start()
        self.config.write_text("\n".join(server.config.read_text() for server in self.servers))

    def stop(self) -> None:
        if self._lock is not None:
            self._remove()
            self._lock.close()
            self._lock = None

    def _remove(self) -> None:
        for name, server in zip(self.names, self.servers, strict=True):
            server.stop()
            subprocess.run(["ip", "link", "delete", f"v-{name}"], capture_output=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        _between_hosts("--delete")
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)


def _between_hosts(change: str) -> None:
    """Docker, where it has ever run, drops what goes from one host to another over a bridge."""
    if shutil.which("iptables"):
        rule = ["FORWARD", "--in-interface", BRIDGE, "--out-interface", BRIDGE, "--jump", "ACCEPT"]
        subprocess.run(["iptables", change, *rule], capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
