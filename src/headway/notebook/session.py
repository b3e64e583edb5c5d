"""The near end of `headway notebook`: Jupyter on a run's machine, under an address of this one."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Final

from headway.errors import BadInput, TargetError
from headway.notebook import far
from headway.notebook.places import Place, folder_there

# Our own far.py, over standard input: nothing of it is written on the far machine, and no argument is too long.
_BOOT: Final = 'import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), "headway-notebook", "exec"))'
_GOODBYE_S: Final = 15.0  # for Jupyter to end its kernels


class Session:
    """Use it in a `with`. Whatever ends this process, Jupyter ends soon after: it listens for us."""

    def __init__(self, place: Place, *, port: int = 0) -> None:
        self.place = place
        self._port = port if place.here else 0
        self.over = threading.Event()  # Jupyter has ended, or the connection to it
        self._token = secrets.token_urlsafe(24)
        self._listener = socket.create_server(("127.0.0.1", port)) if not place.here else None
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        self._process: subprocess.Popen[bytes] | None = None
        self.told: dict[str, Any] = {}

    def __enter__(self) -> Session:
        try:
            self._open()
        except BaseException:  # Ctrl-C too: what has been started there ends with its pipe
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """With the token in it: whoever has it can run anything there."""
        port = self._listener.getsockname()[1] if self._listener else self.told["port"]
        return f"http://127.0.0.1:{port}{self.told['path']}?token={self._token}"

    def _open(self) -> None:
        source = Path(far.__file__).read_bytes()
        words = self.place.call("-c", _BOOT, str(len(source)))
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C is for us to act upon: Jupyter is asked to end
            )
        except FileNotFoundError:
            raise TargetError(f"{words[0]} is not installed on this machine") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"token": self._token, "url": self.place.url, "folder": folder_there(self.place),
                 "python": self.place.python, "port": self._port}  # fmt: skip
        try:
            self._process.stdin.write(source + json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._refused() from None
        self._hear()
        self._tunnel = far.Tunnel(self._process.stdout, self._process.stdin)  # type: ignore[arg-type]
        for work in (self._follow, self._beat, *([self._listen] if self._listener else [])):
            threading.Thread(target=work, daemon=True).start()

    def _hear(self) -> None:
        """Its answer: where Jupyter listens, or why there is none."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:  # a talkative login shell may say things first
            if line.rstrip() == far.GREETING:
                break
        answer = self._process.stdout.readline()
        if not answer:
            raise self._refused()
        self.told = json.loads(answer)
        if "lacking" in self.told:
            python = str(self.told["lacking"])
            what = f"{self.place.where} has no JupyterLab for {python}, the interpreter that trains"
            raise BadInput(what, fix=self.place.install(python))
        if "failed" in self.told:
            raise TargetError(f"Jupyter does not start on {self.place.where}:\n{self.told['failed']}")

    def _refused(self) -> TargetError:
        assert self._process is not None
        self._process.wait(_GOODBYE_S)
        self._complaints.seek(0)
        said = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        return TargetError(f"{self.place.where} cannot be reached: {said[-1] if said else 'it gave no reason'}")

    def _follow(self) -> None:
        try:
            self._tunnel.run()
        except (OSError, ValueError):
            pass  # closed under our hands: the same as an end
        self.over.set()

    def _beat(self) -> None:
        while not self.over.wait(far.BEAT_S):
            self._tell(far.ALIVE)

    def _listen(self) -> None:
        assert self._listener is not None
        for number in itertools.count(1):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._tunnel.carry(number, connection)

    def _tell(self, kind: int) -> None:
        try:
            self._tunnel.send(0, kind)
        except (OSError, ValueError):
            self.over.set()  # nobody hears us any more

    def close(self) -> None:
        """Jupyter is asked to end, and waited for. Safe to call twice."""
        if self._listener is not None:
            self._listener.close()
        process, self._process = self._process, None
        if process is None:
            return
        if self.told.get("port") and not self.over.is_set():
            self._tell(far.END)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except OSError:
            pass  # the other side was quicker
        try:
            process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.over.set()
        process.stdout.close()
        self._complaints.close()
