"""A real sshd for tests: its own port, keys and configuration, as whoever runs it. No root is needed for one."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from headway.targets.local import processes
from tests.waiting import wait_until

SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIG = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 200
PrintMotd no
AcceptEnv none
SetEnv PYTHONDONTWRITEBYTECODE=1 {variables}
"""
CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def lacking() -> str:
    """Why none can be had here; empty where one can."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    missing += [] if SERVER else ["sshd"]
    return f"{', '.join(missing)} not installed: apt-get install openssh-server" if missing else ""


def running_below(folder: Path) -> list[str]:
    """Runs that live on this machine, as seen from behind an ssh connection, with their files below that folder."""
    found = processes.labels(target="ssh")
    return [label[processes.URL_VARIABLE] for label in found if label[processes.URL_VARIABLE].startswith(str(folder))]


@dataclass
class Server:
    """One sshd. `namespace` runs it in a network namespace of its own, which needs root."""

    folder: Path
    name: str = "box"
    address: str = "127.0.0.1"
    namespace: str = ""
    port: int = 0
    variables: str = ""  # of every session there: NAME=VALUE
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def config(self) -> Path:
        """What the client reads instead of ~/.ssh/config."""
        return self.folder / "ssh_config"

    @property
    def public_host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "user_key"):
            if not (self.folder / name).exists():
                _keygen(self.folder / name)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        self.port = self.port or (22 if self.namespace else _free_port())
        (self.folder / "sshd_config").write_text(
            CONFIG.format(folder=self.folder, address=self.address, port=self.port, variables=self.variables)
        )
        user = getpass.getuser()
        self.config.write_text(
            CLIENT.format(name=self.name, address=self.address, port=self.port, user=user, folder=self.folder)
        )
        self.trust()
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where root's sshd leaves its privileges
        assert SERVER is not None
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        with open(self.folder / "sshd.log", "ab") as log:
            command = [*inside, SERVER, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await()

    def trust(self) -> None:
        """As somebody who has compared the key by hand."""
        target = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        (self.folder / "known_hosts").write_text(f"{target} {self.public_host_key}\n")

    def change_host_key(self) -> None:
        """As a machine that was set up anew, or an impostor."""
        self.stop()
        (self.folder / "host_key").unlink()
        _keygen(self.folder / "host_key")
        known = (self.folder / "known_hosts").read_text()
        self.start()
        (self.folder / "known_hosts").write_text(known)

    def stop(self) -> None:
        """With all connections: as a network that is down."""
        if self._process is None:
            return
        for pid in _children(self._process.pid):
            _kill(pid)
        self._process.kill()
        self._process.wait()
        self._process = None

    def drop_connections(self) -> None:
        assert self._process is not None
        for pid in _children(self._process.pid):
            _kill(pid)

    def _await(self) -> None:
        command = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", self.name, "true"]

        def answers() -> bool:
            return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0

        wait_until(answers, (self.folder / "sshd.log").read_text)


def _keygen(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "headway-test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _children(pid: int) -> list[int]:
    """The servers of single connections, not what those have started for their users."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            found.append(int(entry.name))
            if os.geteuid() == 0:  # one process of root's, and one of the user's below it
                found += [child for child in _children(int(entry.name)) if "sshd" in _command(child)]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
