"""Remote side of `headway notebook`: starts Jupyter next to a run, tunnels connections to it, and ends with its client.

It is sent over standard input to any Python from 3.8 on, so it is one file and imports nothing of Headway.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any, BinaryIO

GREETING = b"headway-notebook 1"
DATA, CLOSE, END, ALIVE = range(4)
SILENCE_S = 60.0  # a client silent for this long is gone; it sends something every BEAT_S
BEAT_S = 10.0
READY_S = 90.0
FRONTS = (("jupyterlab", "JupyterLab", "/lab"), ("notebook", "Jupyter Notebook", "/tree"),
          ("jupyter_server", "Jupyter Server", "/"))  # fmt: skip
TAKEN_OVER = ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HEADWAY_CODE_DIR", "CUDA_VISIBLE_DEVICES")
_HEAD = struct.Struct(">IBI")  # connection, kind, bytes


class Tunnel:
    """Multiplexes connections over one pair of pipes. Both ends use it: one listens, the other connects."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._writing = threading.Lock()
        self._held: dict[int, TunnelConnection] = {}
        self.heard = time.monotonic()

    def send(self, number: int, kind: int, body: bytes = b"") -> None:
        with self._writing:
            self._sink.write(_HEAD.pack(number, kind, len(body)) + body)
            self._sink.flush()

    def carry(self, number: int, connection: socket.socket) -> None:
        """Forward a connection in both directions until both sides have closed."""
        self._held[number] = TunnelConnection(self, number, connection)

    def forget(self, number: int) -> None:
        self._held.pop(number, None)

    def run(self, connect: Callable[[], socket.socket] | None = None) -> None:
        """Read frames until the other end closes. With `connect`, call it to open each new connection."""
        while True:
            head = self._source.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            number, kind, count = _HEAD.unpack(head)
            body = self._source.read(count)
            self.heard = time.monotonic()
            if kind == END:
                return
            if kind == DATA and number not in self._held and connect is not None:
                try:
                    self.carry(number, connect())
                except OSError:
                    self.send(number, CLOSE)
            if kind in (DATA, CLOSE) and number in self._held:
                self._held[number].given.put(body)  # a CLOSE has an empty body, which marks the end


class TunnelConnection:
    """One connection, with a thread per direction, so that a slow connection does not block others."""

    def __init__(self, tunnel: Tunnel, number: int, connection: socket.socket) -> None:
        self._tunnel, self._number, self._connection = tunnel, number, connection
        self.given: queue.Queue[bytes] = queue.Queue()
        self._inward = threading.Thread(target=self._write, daemon=True)
        self._inward.start()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for body in iter(lambda: self._connection.recv(65536), b""):
                self._tunnel.send(self._number, DATA, body)
        except (OSError, ValueError):
            pass  # the connection or the tunnel is closed: the same as an end
        try:
            self._tunnel.send(self._number, CLOSE)
        except (OSError, ValueError):
            pass  # the other end is gone
        self._inward.join()
        self._tunnel.forget(self._number)
        self._connection.close()

    def _write(self) -> None:
        try:
            for body in iter(self.given.get, b""):
                self._connection.sendall(body)
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed by its other side, which is noticed there


def supervisor(url: str) -> int | None:
    """Return the pid of the supervisor of the run at `url`, if it is on this machine and readable."""
    wanted = b"HEADWAY_RUN_URL=" + url.encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        try:
            if not name.isdigit() or b"headway.runtime.worker" not in _read(name, "cmdline").split(b"\0"):
                continue
            words = _read(name, "cmdline").split(b"\0")
            if wanted in _read(name, "environ").split(b"\0") or url.encode() in words:
                return int(name)
        except OSError:
            continue  # gone, or another user's
    return None


def injected_variables(url: str) -> dict[str, str]:
    """Return the variables that the target injected, such as bucket credentials.

    The run's ranks have them, and HEADWAY_BROUGHT lists their names.
    """
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        try:
            given = variables(name) if name.isdigit() else {}
        except OSError:
            continue  # gone, or another user's
        if given.get("HEADWAY_RUN_URL") == url and given.get("HEADWAY_BROUGHT"):
            return {each: given[each] for each in given["HEADWAY_BROUGHT"].split(",") if each in given}
    return {}


def variables(process: str) -> dict[str, str]:
    lines = [os.fsdecode(line).partition("=") for line in _read(process, "environ").split(b"\0")]
    return {name: value for name, equals, value in lines if equals}


def _read(process: str, what: str) -> bytes:
    with open(f"/proc/{process}/{what}", "rb") as file:
        return file.read()


def surroundings(url: str, python: str | None) -> tuple[str, dict[str, str]]:
    """Return the interpreter that trains and its environment; without a live run, the named interpreter."""
    found = supervisor(url)
    if found is None:
        return shutil.which(python or "") or python or sys.executable, {}
    given = variables(str(found))
    known = {**{name: given[name] for name in TAKEN_OVER if name in given}, **injected_variables(url)}
    word = _read(str(found), "cmdline").split(b"\0")[0].decode()
    return shutil.which(word, path=known.get("PATH")) or word, known


def front(python: str, known: dict[str, str]) -> tuple[str, str, str] | None:
    """Return the best Jupyter front end that this interpreter has."""
    code = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    words = [python, "-c", code] + [module for module, _, _ in FRONTS]
    done = subprocess.run(words, env={**os.environ, **known}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = done.stdout.decode("utf-8", "replace")
    return next((each for each in FRONTS if repr(each[0]) in text), None)


def command(python: str, module: str, folder: str, port: int) -> list[str]:
    """Return Jupyter's command line. The token is not in it, as all users of a machine can see command lines."""
    # A private server on the loopback address, in this folder; in a container the user is often root.
    settings = {"ip": "127.0.0.1", "port": port, "port_retries": 0, "open_browser": False, "root_dir": folder,
            "allow_root": os.geteuid() == 0}  # fmt: skip
    return [python, "-m", module] + [f"--ServerApp.{name}={value}" for name, value in settings.items()]


def environment(asked: dict[str, Any], known: dict[str, str], private: str) -> dict[str, str]:
    found = {**os.environ, **known, "JUPYTER_TOKEN": asked["token"], "HEADWAY_NOTEBOOK_RUN": asked["url"],
             "JUPYTER_RUNTIME_DIR": private}  # fmt: skip
    if not os.access(os.path.expanduser("~"), os.W_OK):  # a container's user often has no home
        found.update(HOME=private, IPYTHONDIR=private, JUPYTER_DATA_DIR=private, JUPYTER_CONFIG_DIR=private)
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    try:
        # Bypass any proxy: this is the same machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/api", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def last_words(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return "\n".join([line.rstrip() for line in file if line.strip()][-5:])


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)  # it stops its kernels first
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(asked: dict[str, Any], source: BinaryIO, sink: BinaryIO, private: str) -> None:
    def answer(**message: Any) -> None:
        sink.write(json.dumps(message).encode() + b"\n")
        sink.flush()

    python, known = surroundings(asked["url"], asked.get("python"))
    chosen = front(python, known)
    if chosen is None:
        answer(lacking=python)
        return
    module, name, path = chosen
    wished = (asked["folder"], known.get("HEADWAY_CODE_DIR"))
    folder = next((each for each in wished if each and os.path.isdir(each)), os.getcwd())
    port, log = asked.get("port") or free_port(), os.path.join(private, "jupyter.log")
    with open(log, "wb") as words:
        process = subprocess.Popen(
            command(python, module, folder, port), env=environment(asked, known, private), cwd=folder,
            stdin=subprocess.DEVNULL, stdout=words, stderr=words,
        )  # fmt: skip
    try:
        limit = time.monotonic() + READY_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > limit:
                answer(failed=last_words(log))
                return
            time.sleep(0.1)
        answer(name=name, path=path, port=port, python=python, folder=folder)
        attend(Tunnel(source, sink), process, port)
    finally:
        stop(process)


def attend(tunnel: Tunnel, process: subprocess.Popen[bytes], port: int) -> None:
    """Tunnel until the client ends it or stays silent for SILENCE_S, or Jupyter is shut down from its own pages."""

    def watch() -> None:
        while process.poll() is None and time.monotonic() - tunnel.heard < SILENCE_S:
            time.sleep(0.5)
        try:
            tunnel.send(0, END)
        except (OSError, ValueError):
            pass  # the other end is gone
        stop(process)
        os._exit(0)  # the main thread may be blocked on a pipe that never closes

    threading.Thread(target=watch, daemon=True).start()
    tunnel.run(lambda: socket.create_connection(("127.0.0.1", port)))


def main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(b"\n" + GREETING + b"\n")
    sink.flush()
    asked = json.loads(source.readline())
    private = tempfile.mkdtemp(prefix="headway-notebook-")
    try:
        serve(asked, source, sink, private)
    finally:
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    main()
