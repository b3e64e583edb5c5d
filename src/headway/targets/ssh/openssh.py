"""OpenSSH's own client: the words it is called with, and what its complaints mean. The one seam to a network.

It honours ~/.ssh/config, agents, certificates and jump hosts, as people expect of anything that says ssh.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headway.errors import TargetError
from headway.targets.ssh.options import Options

CONNECT_S = 15
# A connection that says nothing for a minute is gone: whoever waits for it is told.
_PATIENCE = ("ServerAliveInterval=15", "ServerAliveCountMax=4", f"ConnectTimeout={CONNECT_S}")
_OURS = ("BatchMode=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "RemoteCommand=none",
         "RequestTTY=no", "UpdateHostKeys=no", "LogLevel=ERROR")  # fmt: skip


class Refusal(TargetError):
    """ssh, or the machine behind it, said no. `said` is its own word."""

    def __init__(self, what: str, *, said: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.said = said


class Unreachable(Refusal):
    """Nobody answers there, now: it may be gone, booting, or behind a network that is down."""


class Untrusted(Refusal):
    """A host key that nobody vouched for, or another one than before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One host: where it is, and whose word its key is checked against."""

    host: str
    user: str | None = None
    port: int | None = None
    known_hosts: Path | None = None  # of this run alone, for a machine that was made for it
    first_seen: bool = False  # its key may be pinned now: the run made this machine, and nobody has told its key
    id: str = ""  # the provider's, for a rented one

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")


def parse(text: str) -> Machine:
    """[user@]host[:port]; an IPv6 address with a port stands in brackets."""
    user, at, rest = text.rpartition("@")
    found = re.fullmatch(
        r"\[(?P<six>[^\]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:]+)(?::(?P<port>\d+))?|(?P<bare>.+)", rest
    )
    if found is None or rest.startswith("-") or any(sign.isspace() for sign in text):
        raise Refusal(f"{text!r} is not a machine's name", where="targets", fix="host: user@name:port")
    host = found["six"] or found["host"] or found["bare"]
    port = found["port"] or found["port6"]
    return Machine(host=host, user=user if at else None, port=int(port) if port else None)


def words(machine: Machine, options: Options, command: str) -> list[str]:
    """The exact call that runs a command there."""
    keys: list[str] = []
    if machine.known_hosts is not None:
        strict = "accept-new" if machine.first_seen else "yes"
        # ssh reads a space in this path as the start of another file's name, unless it is quoted.
        keys = [f'UserKnownHostsFile="{machine.known_hosts}"', "GlobalKnownHostsFile=/dev/null", "HashKnownHosts=no"]
        keys += [f"StrictHostKeyChecking={strict}", f"HostKeyAlias={alias(machine)}", "CheckHostIP=no"]
    else:
        keys = ["StrictHostKeyChecking=yes"]
    return [
        "ssh",
        *(["-F", str(Path(options.config).expanduser())] if options.config else []),
        *(word for option in (*_OURS, *_PATIENCE, *keys) for word in ("-o", option)),
        *(["-i", str(Path(options.identity).expanduser()), "-o", "IdentitiesOnly=yes"] if options.identity else []),
        *(["-l", machine.user] if machine.user else []),
        *(["-p", str(machine.port)] if machine.port else []),
        *options.args,
        *("--", machine.host, command),
    ]


def alias(machine: Machine) -> str:
    """Under which name its key is kept: addresses are given to other machines later, ids are not."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"headway-{machine.id or machine.host}")


def run(machine: Machine, options: Options, command: str, *, told: bytes = b"", within_s: float = 120.0) -> str:
    """What a command printed there."""
    with tempfile.TemporaryFile() as complaints:
        try:
            done = subprocess.run(
                words(machine, options, command),
                input=told,
                stdout=subprocess.PIPE,
                stderr=complaints,  # not a pipe: a connection that the user's config keeps open would hold it
                timeout=within_s,
            )
        except FileNotFoundError:
            raise not_installed() from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{machine} has not answered for {within_s:.0f} s", fix=f"ssh {machine}") from None
        if done.returncode:
            raise refusal(machine, done.returncode, text_of(complaints))
        return done.stdout.decode("utf-8", "replace")


def text_of(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read().decode("utf-8", "replace").strip()


def not_installed() -> Refusal:
    return Refusal("ssh is not installed on this machine", fix="sudo apt-get install openssh-client")


def keyscan(host: str, port: int | None, *, scan: Sequence[str] = ("ssh-keyscan", "-T", "5")) -> str:
    """What to type to see a machine's keys, before trusting them."""
    return " ".join([*scan, *(["-p", str(port)] if port else []), host])


def refusal(machine: Machine, code: int, said: str) -> Refusal:
    """What ssh printed when it failed, as an error that says what to type."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it gave no reason")
    if re.search(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending .* key", said):
        what = f"{machine} shows another host key than the one that is known: it was set up anew, or it is an impostor"
        fix = f"if you know why: ssh-keygen -R {machine.host}, then ssh {machine} once"
        return Untrusted(what, said=said, fix=fix)
    if re.search(r"Host key verification failed|No .* host key is known", said):
        what = f"the host key of {machine} is not known here"
        fix = (
            f"ssh {machine} once, and compare the key; or: {keyscan(machine.host, machine.port)} >> ~/.ssh/known_hosts"
        )
        return Untrusted(what, said=said, fix=fix)
    if re.search(r"Permission denied", said):
        what = f"{machine} does not let us in: {last}"
        return Refusal(what, said=said, fix=f"ssh-copy-id {machine}; or `identity` and user@ in the target's entry")
    if re.search(r"Could not resolve hostname|Name or service not known", said):
        what = f"no machine is called {machine.host}"
        return Unreachable(what, said=said, fix="mend `host`, or add it to ~/.ssh/config")
    if code == 255:
        return Unreachable(f"{machine} cannot be reached: {last}", said=said, fix=f"ssh {machine}")
    return Refusal(f"{machine}: {last}"[:400], said=said)
