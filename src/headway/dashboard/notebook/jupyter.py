"""Client side of `headway notebook`: start Jupyter on a run's machine and tunnel it to a local port."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from headway.core.errors import BadInput, TargetError
from headway.core.types import ExecCommand
from headway.dashboard.notebook import remote_jupyter
from headway.storage import local_path

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle


def exec_command(launched: RunHandle) -> ExecCommand:
    """Return the command that runs Python on the run's machine. Raises BadInput for a target that supports none."""
    found = launched.target.exec_command(launched.target_handle)
    if found is None:
        what = f"{launched.run} is on {launched.target_handle.target}, a target that has no notebooks"
        raise BadInput(what, fix=f"headway pull {launched.run}, then `headway.open_run` in a notebook of your own")
    return found


def run_dir_on_target(found: ExecCommand) -> str:
    """Return the run folder to open; empty for a bucket, where Jupyter opens the code's folder instead."""
    path = local_path(found.url)
    return "" if path is None else str(path)


# remote_jupyter.py is sent over standard input: nothing of it is written to the remote disk, and no argument is too
# long.
_BOOTSTRAP: Final = 'import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), "headway-notebook", "exec"))'
_CLOSE_TIMEOUT_S: Final = 15.0  # for Jupyter to stop its kernels


class Session:
    """A Jupyter server on a run's machine. A context manager.

    If this process dies, Jupyter ends soon after, because it listens for heartbeats.
    """

    def __init__(self, place: ExecCommand, *, port: int = 0) -> None:
        self.place = place
        self._port = port if place.here else 0
        self.ended = threading.Event()  # Jupyter has ended, or the connection to it
        self._token = secrets.token_urlsafe(24)
        self._listener = socket.create_server(("127.0.0.1", port)) if not place.here else None
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_message: dict[str, Any] = {}

    def __enter__(self) -> Session:
        try:
            self._open()
        except BaseException:  # Ctrl-C too: the remote process ends with its pipe
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The URL of Jupyter, including its token: anyone who has it can run code there."""
        port = self._listener.getsockname()[1] if self._listener else self.ready_message["port"]
        return f"http://127.0.0.1:{port}{self.ready_message['path']}?token={self._token}"

    def _open(self) -> None:
        source = Path(remote_jupyter.__file__).read_bytes()
        words = self.place.call("-c", _BOOTSTRAP, str(len(source)))
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C must not reach it: Jupyter is asked to end instead
            )
        except FileNotFoundError:
            raise TargetError(f"{words[0]} is not installed on this machine") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"token": self._token, "url": self.place.url, "folder": run_dir_on_target(self.place),
                 "python": self.place.python, "port": self._port}  # fmt: skip
        try:
            self._process.stdin.write(source + json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error_text() from None
        self._read_messages()
        self._tunnel = remote_jupyter.Tunnel(self._process.stdout, self._process.stdin)  # type: ignore[arg-type]
        for work in (self._follow, self._send_heartbeats, *([self._listen] if self._listener else [])):
            threading.Thread(target=work, daemon=True).start()

    def _read_messages(self) -> None:
        """Read the answer: Jupyter's address, or why it could not start."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:  # a login shell may print something first
            if line.rstrip() == remote_jupyter.GREETING:
                break
        answer = self._process.stdout.readline()
        if not answer:
            raise self._error_text()
        self.ready_message = json.loads(answer)
        if "lacking" in self.ready_message:
            python = str(self.ready_message["lacking"])
            what = f"JupyterLab is not installed on {self.place.where} for {python}, the interpreter of the run"
            raise BadInput(what, fix=self.place.install(python))
        if "failed" in self.ready_message:
            raise TargetError(f"Jupyter does not start on {self.place.where}:\n{self.ready_message['failed']}")

    def _error_text(self) -> TargetError:
        assert self._process is not None
        self._process.wait(_CLOSE_TIMEOUT_S)
        self._complaints.seek(0)
        error_lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        reason = error_lines[-1] if error_lines else "it gave no reason"
        return TargetError(f"{self.place.where} cannot be reached: {reason}")

    def _follow(self) -> None:
        try:
            self._tunnel.run()
        except (OSError, ValueError):
            pass  # closed by another thread: the same as an end
        self.ended.set()

    def _send_heartbeats(self) -> None:
        while not self.ended.wait(remote_jupyter.BEAT_S):
            self._send(remote_jupyter.ALIVE)

    def _listen(self) -> None:
        assert self._listener is not None
        for number in itertools.count(1):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._tunnel.carry(number, connection)

    def _send(self, kind: int) -> None:
        try:
            self._tunnel.send(0, kind)
        except (OSError, ValueError):
            self.ended.set()  # the remote end is gone

    def close(self) -> None:
        """Ask Jupyter to end, and wait for it. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        process, self._process = self._process, None
        if process is None:
            return
        if self.ready_message.get("port") and not self.ended.is_set():
            self._send(remote_jupyter.END)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except OSError:
            pass  # the other side has closed it already
        try:
            process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.ended.set()
        process.stdout.close()
        self._complaints.close()
