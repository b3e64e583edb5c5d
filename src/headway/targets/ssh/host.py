"""One machine, asked through our own program there: a request, an answer, over one connection that stays open."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headway.errors import DiskFull
from headway.targets.ssh import openssh
from headway.targets.ssh.agent import GREETING
from headway.targets.ssh.openssh import Machine, Refusal, Unreachable
from headway.targets.ssh.options import Options

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
            openssh.run(self.machine, self.options, _install(folder, name), told=source)
            session, code, said = _begin(self.machine, self.options, call)
        if session is not None:
            return session
        if code == _NO_PYTHON:
            fix = "sudo apt-get install python3; or `bootstrap: true` in the target's entry"
            raise Refusal(f"{self} has no python3", said=said, fix=fix)
        raise openssh.refusal(self.machine, code, said)


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
            return openssh.text_of(self._complaints)


def _begin(machine: Machine, options: Options, call: str) -> tuple[_Session | None, int, str]:
    """A session, or the exit code and complaint of what ended before it was one."""
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  the session closes it
    try:
        process = subprocess.Popen(
            openssh.words(machine, options, call),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # Ctrl-C is for us to act upon: we still have to ask for the take-down
        )
    except FileNotFoundError:
        complaints.close()
        raise openssh.not_installed() from None
    assert process.stdout is not None
    for line in process.stdout:  # a talkative login shell may say things first
        if line.rstrip(b"\n") == GREETING.encode():
            return _Session(process, complaints), 0, ""
    assert process.stdin is not None
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    with complaints:
        return None, code, openssh.text_of(complaints)


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
        return Refusal(f"{host} does not let us write: {answer['error']}", where=where, fix="another `dir`, or user@")
    return Refusal(f"{host}: {answer['error']}", where=where)
