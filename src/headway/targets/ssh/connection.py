"""ssh connections: call OpenSSH's client, map its errors, and exchange requests with Headway's agent on a host."""

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

from headway.core.command import CommandError
from headway.core.errors import DiskFull
from headway.core.quoting import quote_path, sh_command
from headway.targets.ssh.agent import GREETING
from headway.targets.ssh.options import Options

# Calls of OpenSSH's client, the only access to the network here. It honours ~/.ssh/config, agents, certificates and
# jump hosts, as users expect.


CONNECT_S = 15
# Treat a connection that is silent for a minute as lost.
_KEEPALIVE = ("ServerAliveInterval=15", "ServerAliveCountMax=4", f"ConnectTimeout={CONNECT_S}")
_FIXED_OPTIONS = ("BatchMode=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "RemoteCommand=none",
         "RequestTTY=no", "UpdateHostKeys=no", "LogLevel=ERROR")  # fmt: skip


class RemoteError(CommandError):
    """ssh or the remote machine reported an error; `output` is its message."""


class Unreachable(RemoteError):
    """The machine does not answer now: it may be gone, booting, or behind a network that is down."""


class HostKeyError(RemoteError):
    """The host key is unknown, or differs from the known one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Address of one host, and the known_hosts file that its key is checked against."""

    host: str
    user: str | None = None
    port: int | None = None
    known_hosts: Path | None = None  # of this run only, for a machine created for it
    first_seen: bool = False  # pin its key on first use: the run created this machine, and `up` printed no key
    id: str = ""  # the provider's id of a rented machine

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")


def parse(text: str) -> Machine:
    """Parse [user@]host[:port]; an IPv6 address with a port is in brackets."""
    user, at, address = text.rpartition("@")
    found = re.fullmatch(
        r"\[(?P<six>[^\]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:]+)(?::(?P<port>\d+))?|(?P<bare>.+)", address
    )
    if found is None or address.startswith("-") or any(sign.isspace() for sign in text):
        raise RemoteError(f"{text!r} is not a machine's name", where="targets", fix="host: user@name:port")
    host = found["six"] or found["host"] or found["bare"]
    port = found["port"] or found["port6"]
    return Machine(host=host, user=user if at else None, port=int(port) if port else None)


def ssh_command(machine: Machine, options: Options, command: str) -> list[str]:
    """Return the ssh command line that runs a command on the machine."""
    key_options: list[str] = []
    if machine.known_hosts is not None:
        host_key_checking = "accept-new" if machine.first_seen else "yes"
        # ssh splits this path at spaces unless it is quoted.
        key_options = [
            f'UserKnownHostsFile="{machine.known_hosts}"',
            "GlobalKnownHostsFile=/dev/null",
            "HashKnownHosts=no",
        ]
        key_options += [
            f"StrictHostKeyChecking={host_key_checking}",
            f"HostKeyAlias={host_key_alias(machine)}",
            "CheckHostIP=no",
        ]
    else:
        key_options = ["StrictHostKeyChecking=yes"]
    return [
        "ssh",
        *(["-F", str(Path(options.config).expanduser())] if options.config else []),
        *(argument for option in (*_FIXED_OPTIONS, *_KEEPALIVE, *key_options) for argument in ("-o", option)),
        *(["-i", str(Path(options.identity).expanduser()), "-o", "IdentitiesOnly=yes"] if options.identity else []),
        *(["-l", machine.user] if machine.user else []),
        *(["-p", str(machine.port)] if machine.port else []),
        *options.args,
        *("--", machine.host, command),
    ]


def host_key_alias(machine: Machine) -> str:
    """Return the name under which the host key is stored: addresses are reassigned to other machines, ids are not."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"headway-{machine.id or machine.host}")


def run(machine: Machine, options: Options, command: str, *, stdin: bytes = b"", within_s: float = 120.0) -> str:
    """Run a command on the machine and return its standard output."""
    with tempfile.TemporaryFile() as stderr_file:
        try:
            process = subprocess.run(
                ssh_command(machine, options, command),
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr_file,  # not a pipe: a ControlPersist connection would keep it open
                timeout=within_s,
            )
        except FileNotFoundError:
            raise not_installed() from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{machine} has not answered for {within_s:.0f} s", fix=f"ssh {machine}") from None
        if process.returncode:
            raise remote_error(machine, process.returncode, read_stderr(stderr_file))
        return process.stdout.decode("utf-8", "replace")


def read_stderr(stderr_file: IO[bytes]) -> str:
    stderr_file.seek(0)
    return stderr_file.read().decode("utf-8", "replace").strip()


def not_installed() -> RemoteError:
    return RemoteError("ssh is not installed on this machine", fix="sudo apt-get install openssh-client")


def keyscan(host: str, port: int | None, *, scan: Sequence[str] = ("ssh-keyscan", "-T", "5")) -> str:
    """Return the command that shows a machine's host keys, to check before trusting them."""
    return " ".join([*scan, *(["-p", str(port)] if port else []), host])


def remote_error(machine: Machine, code: int, stderr: str) -> RemoteError:
    """Map ssh's error output to an error with a suggested fix."""
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "it gave no reason")
    if re.search(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending .* key", stderr):
        what = f"{machine} has a different host key than the known one: it was reinstalled, or this is another machine"
        fix = f"if you know why: ssh-keygen -R {machine.host}, then ssh {machine} once"
        return HostKeyError(what, output=stderr, fix=fix)
    if re.search(r"Host key verification failed|No .* host key is known", stderr):
        what = f"the host key of {machine} is not known here"
        fix = (
            f"ssh {machine} once, and compare the key; or: {keyscan(machine.host, machine.port)} >> ~/.ssh/known_hosts"
        )
        return HostKeyError(what, output=stderr, fix=fix)
    if re.search(r"Permission denied", stderr):
        what = f"{machine} refused the login: {last}"
        return RemoteError(
            what, output=stderr, fix=f"ssh-copy-id {machine}; or `identity` and user@ in the target's entry"
        )
    if re.search(r"Could not resolve hostname|Name or service not known", stderr):
        what = f"unknown host {machine.host}"
        return Unreachable(what, output=stderr, fix="correct `host`, or add it to ~/.ssh/config")
    if code == 255:
        return Unreachable(f"{machine} cannot be reached: {last}", output=stderr, fix=f"ssh {machine}")
    return RemoteError(f"{machine}: {last}"[:400], output=stderr)


CHUNK_BYTES = 4 << 20  # bytes per request
_AGENT_MISSING, _NO_PYTHON, _NO_HOME = 90, 91, 92
_SOURCE = Path(__file__).with_name("agent.py")


@dataclass
class Host:
    """A connection to the agent on one machine. Connects at the first request, and again after a lost connection.

    Close it when done.
    """

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
        """Send a request; return the answer and its body.

        Raises RemoteError, or DiskFull, for an error in the answer.
        """
        with self._lock:
            if self._session is None:
                self._session = self._connected()
            try:
                answer, reply = self._session.exchange({"verb": verb, **request}, body)
            except (OSError, ValueError, Unreachable):
                stderr = self._session.close()
                self._session = None
                what = f"the connection to {self} was lost" + (f": {stderr.splitlines()[-1]}" if stderr else "")
                raise Unreachable(what, output=stderr, fix=f"ssh {self}") from None
        if "error" in answer:
            raise _answer_error(self, answer)
        return answer, reply

    @property
    def facts(self) -> dict[str, Any]:
        """The agent's answer to `hello`: the machine's properties, asked for once."""
        if self._facts is None:
            self._facts = self.ask("hello", dir=self.options.dir)
        return self._facts

    def send(self, path: str, content: bytes, *, mode: int = 0o644) -> dict[str, Any]:
        """Write a small file on the machine atomically."""
        tag = os.urandom(6).hex()
        return self.ask("write", content, path=path, offset=0, last=True, mode=mode, tag=tag)

    def open_another(self) -> Host:
        """Return another connection to the same machine, for parallel transfers."""
        return Host(self.machine, self.options)

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None

    def _connected(self) -> _Session:
        source = _SOURCE.read_bytes()
        name = f"agent-{hashlib.sha256(source).hexdigest()[:12]}.py"
        folder = quote_path(self.options.dir)
        command = _agent_command(f"{folder}/{name}", self.options.python)
        session, code, stderr = _open_session(self.machine, self.options, command)
        if session is None and code == _AGENT_MISSING:
            run(self.machine, self.options, _install_command(folder, name), stdin=source)
            session, code, stderr = _open_session(self.machine, self.options, command)
        if session is not None:
            return session
        if code == _NO_PYTHON:
            fix = "sudo apt-get install python3; or `bootstrap: true` in the target's entry"
            raise RemoteError(f"{self} has no python3", output=stderr, fix=fix)
        raise remote_error(self.machine, code, stderr)


class _Session:
    """An ssh process with the agent at the other end."""

    def __init__(self, process: subprocess.Popen[bytes], stderr_file: IO[bytes]) -> None:
        self._process, self._complaints = process, stderr_file
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
        """Close the connection; return what ssh wrote to standard error."""
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except OSError:
                pass  # the other side has closed it already
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._complaints:
            return read_stderr(self._complaints)


def _open_session(machine: Machine, options: Options, command: str) -> tuple[_Session | None, int, str]:
    """Start an ssh process and wait for the agent's greeting; otherwise return its exit code and standard error."""
    stderr_file = tempfile.TemporaryFile()  # noqa: SIM115  the session closes it
    try:
        process = subprocess.Popen(
            ssh_command(machine, options, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr_file,
            start_new_session=True,  # Ctrl-C must not reach ssh: the teardown still needs the connection
        )
    except FileNotFoundError:
        stderr_file.close()
        raise not_installed() from None
    assert process.stdout is not None
    for line in process.stdout:  # a login shell may print something first
        if line.rstrip(b"\n") == GREETING.encode():
            return _Session(process, stderr_file), 0, ""
    assert process.stdin is not None
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    with stderr_file:
        return None, code, read_stderr(stderr_file)


def _agent_command(path: str, python: str | None) -> str:
    """Return the remote command for the agent, with the named interpreter, or else python3, which may be older."""
    chosen = shlex.quote(python) if python else ""
    lines = [
        f"f={path}",
        f"for p in {chosen} python3; do command -v $p >/dev/null && break; done || exit {_NO_PYTHON}",
        f'[ -f "$f" ] || exit {_AGENT_MISSING}',
        'exec $p -I "$f" serve',
    ]
    return sh_command("; ".join(lines))


def _install_command(folder: str, name: str) -> str:
    script = f'umask 077; d={folder}; mkdir -p "$d" && cat > "$d/{name}.$$" && mv "$d/{name}.$$" "$d/{name}"'
    return sh_command(script)


def _answer_error(host: Host, answer: Mapping[str, Any]) -> Exception:
    where = f"{host}:{answer['path']}" if answer.get("path") else str(host)
    if answer.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left on {host}", where=where, fix=f"ssh {host} df -h; or another `dir`")
    if answer.get("errno") in (errno.EACCES, errno.EPERM, errno.EROFS):
        return RemoteError(f"{host} is not writable: {answer['error']}", where=where, fix="another `dir`, or user@")
    return RemoteError(f"{host}: {answer['error']}", where=where)
