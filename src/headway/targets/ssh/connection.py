"""One machine, asked through our own program there: a request, an answer, over one connection that stays open."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headway.core.errors import DiskFull, TargetError
from headway.targets.ssh.agent import GREETING
from headway.targets.ssh.options import Options

# OpenSSH's own client: the words it is called with, and what its complaints mean. The one seam to a network.
#
# It honours ~/.ssh/config, agents, certificates and jump hosts, as people expect of anything that says ssh.


CONNECT_S = 15
# A connection that says nothing for a minute is gone: whoever waits for it is told.
_PATIENCE = ("ServerAliveInterval=15", "ServerAliveCountMax=4", f"ConnectTimeout={CONNECT_S}")
_OURS = ("BatchMode=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "RemoteCommand=none",
         "RequestTTY=no", "UpdateHostKeys=no", "LogLevel=ERROR")  # fmt: skip


class RemoteError(TargetError):
    """ssh, or the machine behind it, said no. `said` is its own word."""

    def __init__(self, what: str, *, said: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.said = said


class Unreachable(RemoteError):
    """Nobody answers there, now: it may be gone, booting, or behind a network that is down."""


class HostKeyError(RemoteError):
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
        raise RemoteError(f"{text!r} is not a machine's name", where="targets", fix="host: user@name:port")
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


def not_installed() -> RemoteError:
    return RemoteError("ssh is not installed on this machine", fix="sudo apt-get install openssh-client")


def keyscan(host: str, port: int | None, *, scan: Sequence[str] = ("ssh-keyscan", "-T", "5")) -> str:
    """What to type to see a machine's keys, before trusting them."""
    return " ".join([*scan, *(["-p", str(port)] if port else []), host])


def refusal(machine: Machine, code: int, said: str) -> RemoteError:
    """What ssh printed when it failed, as an error that says what to type."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it gave no reason")
    if re.search(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending .* key", said):
        what = f"{machine} shows another host key than the one that is known: it was set up anew, or it is an impostor"
        fix = f"if you know why: ssh-keygen -R {machine.host}, then ssh {machine} once"
        return HostKeyError(what, said=said, fix=fix)
    if re.search(r"Host key verification failed|No .* host key is known", said):
        what = f"the host key of {machine} is not known here"
        fix = (
            f"ssh {machine} once, and compare the key; or: {keyscan(machine.host, machine.port)} >> ~/.ssh/known_hosts"
        )
        return HostKeyError(what, said=said, fix=fix)
    if re.search(r"Permission denied", said):
        what = f"{machine} does not let us in: {last}"
        return RemoteError(what, said=said, fix=f"ssh-copy-id {machine}; or `identity` and user@ in the target's entry")
    if re.search(r"Could not resolve hostname|Name or service not known", said):
        what = f"no machine is called {machine.host}"
        return Unreachable(what, said=said, fix="mend `host`, or add it to ~/.ssh/config")
    if code == 255:
        return Unreachable(f"{machine} cannot be reached: {last}", said=said, fix=f"ssh {machine}")
    return RemoteError(f"{machine}: {last}"[:400], said=said)


SPAN = 4 << 20  # bytes a request
_NOT_SENT, _NO_PYTHON, _NO_HOME = 90, 91, 92
_SOURCE = Path(__file__).with_name("agent.py")


@dataclass
class Host:
    """Connects at the first request, and again after a lost connection. Close it when done."""

    machine: Machine
    options: Options
    _session: _Session | None = None
    _facts: dict[str, Any] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __str__(self) -> str:
        return str(self.machine)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, verb: str, body: bytes = b"", **request: Any) -> dict[str, Any]:
        return self.exchange(verb, body, **request)[0]

    def exchange(self, verb: str, body: bytes = b"", **request: Any) -> tuple[dict[str, Any], bytes]:
        """The answer, and the bytes that came with it. Refusal where it is an error."""
        with self._lock:
            if self._session is None:
                self._session = self._connected()
            try:
                answer, reply = self._session.exchange({"verb": verb, **request}, body)
            except (OSError, ValueError, Unreachable):
                said = self._session.close()
                self._session = None
                what = f"the connection to {self} was lost" + (f": {said.splitlines()[-1]}" if said else "")
                raise Unreachable(what, said=said, fix=f"ssh {self}") from None
        if "error" in answer:
            raise _of_answer(self, answer)
        return answer, reply

    @property
    def facts(self) -> dict[str, Any]:
        """What the machine says of itself, once."""
        if self._facts is None:
            self._facts = self.ask("hello", dir=self.options.dir)
        return self._facts

    def send(self, path: str, content: bytes, *, mode: int = 0o644) -> dict[str, Any]:
        """A small file, whole or not at all."""
        tag = os.urandom(6).hex()
        return self.ask("write", content, path=path, offset=0, last=True, mode=mode, tag=tag)

    def another(self) -> Host:
        """A connection of its own, to move bytes side by side."""
        return Host(self.machine, self.options)

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None

    def _connected(self) -> _Session:
        source = _SOURCE.read_bytes()
        name = f"agent-{hashlib.sha256(source).hexdigest()[:12]}.py"
        folder = _shell_path(self.options.dir)
        call = _call(f"{folder}/{name}", self.options.python)
        session, code, said = _begin(self.machine, self.options, call)
        if session is None and code == _NOT_SENT:
            run(self.machine, self.options, _install(folder, name), told=source)
            session, code, said = _begin(self.machine, self.options, call)
        if session is not None:
            return session
        if code == _NO_PYTHON:
            fix = "sudo apt-get install python3; or `bootstrap: true` in the target's entry"
            raise RemoteError(f"{self} has no python3", said=said, fix=fix)
        raise refusal(self.machine, code, said)


class _Session:
    """A process of ssh with our program at its other end."""

    def __init__(self, process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
        self._process, self._complaints = process, complaints
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def exchange(self, request: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        line = json.dumps({**request, "bytes": len(body)})
        self._to.write(line.encode() + b"\n" + body)
        self._to.flush()
        answer: dict[str, Any] = json.loads(self._from.readline() or b"")
        reply = self._from.read(answer["bytes"])
        if len(reply) != answer["bytes"]:
            raise OSError(errno.EPIPE, "cut off")
        return answer, reply

    def close(self) -> str:
        """Hang up; what ssh had to say, if anything."""
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except OSError:
                pass  # the other side was quicker
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._complaints:
            return text_of(self._complaints)


def _begin(machine: Machine, options: Options, call: str) -> tuple[_Session | None, int, str]:
    """A session, or the exit code and complaint of what ended before it was one."""
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  the session closes it
    try:
        process = subprocess.Popen(
            words(machine, options, call),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # Ctrl-C is for us to act upon: we still have to ask for the take-down
        )
    except FileNotFoundError:
        complaints.close()
        raise not_installed() from None
    assert process.stdout is not None
    for line in process.stdout:  # a talkative login shell may say things first
        if line.rstrip(b"\n") == GREETING.encode():
            return _Session(process, complaints), 0, ""
    assert process.stdin is not None
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    with complaints:
        return None, code, text_of(complaints)


def _shell_path(folder: str) -> str:
    """As a word of the shell there, which knows its home."""
    if folder == "~" or folder.startswith("~/"):
        return '"$HOME"' + (shlex.quote(folder[1:]) if folder[1:] else "")
    return shlex.quote(folder)


def _call(path: str, python: str | None) -> str:
    """With the interpreter that trains, where one is named; else with the system's, which may be older."""
    chosen = shlex.quote(python) if python else ""
    lines = [
        f"f={path}",
        f"for p in {chosen} python3; do command -v $p >/dev/null && break; done || exit {_NO_PYTHON}",
        f'[ -f "$f" ] || exit {_NOT_SENT}',
        'exec $p -I "$f" serve',
    ]
    return f"exec sh -c {shlex.quote('; '.join(lines))}"


def _install(folder: str, name: str) -> str:
    script = f'umask 077; d={folder}; mkdir -p "$d" && cat > "$d/{name}.$$" && mv "$d/{name}.$$" "$d/{name}"'
    return f"exec sh -c {shlex.quote(script)}"


def _of_answer(host: Host, answer: Mapping[str, Any]) -> Exception:
    where = f"{host}:{answer['path']}" if answer.get("path") else str(host)
    if answer.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left on {host}", where=where, fix=f"ssh {host} df -h; or another `dir`")
    if answer.get("errno") in (errno.EACCES, errno.EPERM, errno.EROFS):
        return RemoteError(
            f"{host} does not let us write: {answer['error']}", where=where, fix="another `dir`, or user@"
        )
    return RemoteError(f"{host}: {answer['error']}", where=where)
