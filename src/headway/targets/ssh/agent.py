"""Headway's agent on a machine reached by ssh. One file, standard library only, Python 3.8 or newer.

`serve` answers requests on standard input: a line of JSON and as many bytes as it announces, and the same in return.

`watch PLACE` is the watchdog: it starts the run's script, outlives the connection, enforces the deadline and, at the
end, runs `self_down`. It gets secrets over its standard input; they are in no argument and in no file on disk.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from typing import Any, BinaryIO, Callable, Dict, Tuple  # noqa: UP035  Python 3.8 has no others at run time

Request = Dict[str, Any]  # noqa: UP006
Answer = Tuple[Dict[str, Any], bytes]  # noqa: UP006

GREETING = "headway-agent 1"
CONFIG_KEYS = ("env", "grace_s", "limit_s", "linger_s", "secrets", "self_down", "files")
PID, EXIT, LOG, RELEASED, LABEL = "watchdog.json", "exit", "start.log", "released", "label.json"
LOOK_S = 0.1


# Processes


def boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + "/" + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def stat_of(pid: int | str) -> tuple[str, list[str]] | None:
    """Return (name, fields after it) of a live process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 1 :].split()
    return None if fields[0] in ("Z", "X") else (text[text.index("(") + 1 : text.rindex(")")], fields)


def alive(pid: int, started: str) -> bool:
    found = stat_of(pid)
    return found is not None and found[1][19] == started


def environment_of(pid: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item.startswith(b"HEADWAY_"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def labelled(url: str) -> list[dict[str, Any]]:
    """List the processes labelled with the run at `url`, and their descendants.

    Each has pid, start time, parent, name and role.
    """
    seen: dict[int, tuple[str, list[str]]] = {}
    chosen: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        found = stat_of(entry) if entry.isdigit() else None
        if found is not None:
            seen[int(entry)] = found
    for pid in seen:
        carried = environment_of(pid)
        if carried.get("HEADWAY_TARGET") == "ssh" and carried.get("HEADWAY_RUN_URL") == url:
            chosen[pid] = carried.get("HEADWAY_ROLE", "")
    grown = True
    while grown:  # children that cleared their environment still count
        more = [pid for pid in seen if pid not in chosen and int(seen[pid][1][1]) in chosen]
        chosen.update(dict.fromkeys(more, ""))
        grown = bool(more)
    chosen.pop(os.getpid(), None)
    return [
        {"pid": pid, "started": seen[pid][1][19], "parent": int(seen[pid][1][1]), "name": seen[pid][0], "role": role}
        for pid, role in sorted(chosen.items())
    ]


def send(pid: int, started: str, number: int) -> None:
    if alive(pid, started):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


# Requests


def hello(request: Request, body: bytes) -> Answer:
    folder = os.path.expanduser(request["dir"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    disk = os.statvfs(folder)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "dir": os.path.realpath(folder),
        "host": socket.gethostname(),
        "boot": boot(),
        "address": connection[2] if len(connection) > 2 else "",
        "python": list(sys.version_info[:3]),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "free": disk.f_bavail * disk.f_frsize,
        "time": time.time(),
        "driver": driver(),
        "has": {name: bool(shutil.which(name)) for name in ("bash", "docker", "podman", "uv", "nvidia-smi")},
    }, b""


def driver() -> str:
    """Return the NVIDIA driver's version, or an empty string."""
    try:
        with open("/sys/module/nvidia/version") as file:
            return file.read().strip()
    except OSError:
        return ""


def torch(request: Request, body: bytes) -> Answer:
    """Return an interpreter's version of torch, and the CUDA version that torch was built for."""
    code = "import json, torch; print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda}))"
    done = subprocess.run([request["python"], "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return (json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {"torch": ""}), b""


def mounted(request: Request, body: bytes) -> Answer:
    """Return the first 200 characters of each path, or None: a shared folder must show the same file on both sides."""
    found: list[Any] = []
    for path in request["paths"]:
        try:
            with open(path) as file:
                found.append(file.read(200))
        except OSError:
            found.append(None)
    return {"texts": found}, b""


def sizes(request: Request, body: bytes) -> Answer:
    found: list[Any] = []
    for path in request["paths"]:
        try:
            found.append(os.stat(path).st_size)
        except OSError:
            found.append(None)
    return {"sizes": found}, b""


def listing(request: Request, body: bytes) -> Answer:
    """List files below a folder: name, size, time.

    The names in `first`, which report progress, are listed before the files that they mention, so that they are never
    ahead of them.
    """
    root: str = request["root"]
    found: list[list[Any]] = []
    first = [name for name in request.get("first", ()) if os.path.exists(os.path.join(root, name))]
    for start in [*first, "."]:
        top = os.path.join(root, start)
        walk = os.walk(top) if os.path.isdir(top) else [(root, [], [start])]
        for folder, names, files in walk:
            names[:] = [name for name in names if not (folder == root and name in request.get("skip", ()))]
            for name in files:
                path = os.path.join(folder, name)
                try:
                    known = os.lstat(path)
                except OSError:
                    continue
                key = os.path.normpath(os.path.relpath(path, root))
                if known.st_mode & 0o170000 == 0o100000 and ".headway-" not in key:
                    found.append([key, known.st_size, known.st_mtime_ns])
    # Without its plan the run folder as a whole is gone: the client must not take its files for deleted one by one.
    there = os.path.exists(os.path.join(root, request.get("proof", "")))
    return {"there": there, "files": list({entry[0]: entry for entry in reversed(found)}.values())}, b""


def read(request: Request, body: bytes) -> Answer:
    try:
        with open(request["path"], "rb") as file:
            file.seek(request["offset"])
            return {}, file.read(request["count"])
    except FileNotFoundError:
        return {"gone": True}, b""


def write(request: Request, body: bytes) -> Answer:
    """Write a part of a file under a temporary name, which is replaced by the final one after the last part."""
    path, partial = request["path"], request["path"] + ".headway-part-" + request["tag"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(partial, "r+b" if request["offset"] else "wb") as file:
        file.seek(request["offset"])
        file.write(body)
        if request["last"]:
            file.flush()
            os.fsync(file.fileno())
    if request["last"]:
        os.chmod(partial, request.get("mode", 0o644))
        os.replace(partial, path)
        known = os.stat(path)
        return {"size": known.st_size, "time": known.st_mtime_ns}, b""
    return {}, b""


def unpack(request: Request, body: bytes) -> Answer:
    """Unpack code (a tar whose hash is checked) or Headway (a wheel).

    Files already there stay, unless `fresh` is set.
    """
    to = request["to"]
    if request.get("fresh"):
        shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to, exist_ok=True)
    if request["kind"] == "wheel":
        with zipfile.ZipFile(io.BytesIO(body)) as content:
            content.extractall(to)
        return {}, b""
    import gzip

    tar = gzip.decompress(body)
    if hashlib.sha256(tar).hexdigest() != request["sha256"]:
        raise ValueError("the code that arrived is not the code that was sent")
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            if not member.isreg() or member.name.startswith("/") or ".." in member.name.split("/"):
                raise ValueError(f"the code archive holds {member.name!r}")
            path = os.path.join(to, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            packed = members.extractfile(member)
            assert packed is not None  # it is a regular file
            with open(path, "wb") as file:
                file.write(packed.read())
            os.chmod(path, member.mode)
    return {}, b""


def remove(request: Request, body: bytes) -> Answer:
    """Remove a run's folders and files, and the parent folder if it is then empty."""
    for path in request["paths"]:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)
        try:
            os.rmdir(os.path.dirname(path))
        except OSError:
            pass  # not empty, or already gone
    return {"left": [path for path in request["paths"] if os.path.lexists(path)]}, b""


STARTED: list[subprocess.Popen[bytes]] = []


def start(request: Request, body: bytes) -> Answer:
    """Start the watchdog in its own session, with its configuration and the secrets on its standard input."""
    place = request["place"]
    for name in (PID, EXIT, RELEASED):
        if os.path.exists(os.path.join(place, name)):
            os.unlink(os.path.join(place, name))
    config = {key: request[key] for key in CONFIG_KEYS}
    env = {**os.environ, **request["labels"], "HEADWAY_ROLE": "watchdog"}
    for name in ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK"):
        env.pop(name, None)
    with open(os.path.join(place, LOG), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(__file__), "watch", place],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=place,
            env=env,
            start_new_session=True,
        )
    STARTED.append(process)
    assert process.stdin is not None
    process.stdin.write(json.dumps(config).encode())
    process.stdin.close()
    known = os.path.join(place, PID)
    while not os.path.exists(known):
        if process.poll() is not None:
            return {"trouble": last_line(place) or f"the watchdog ended with {process.returncode}"}, b""
        time.sleep(0.01)
    return {"pid": process.pid}, b""


def state(request: Request, body: bytes) -> Answer:
    """Return the state of a start: its processes, exit code and last line of output."""
    for process in STARTED:
        process.poll()
    place = request["place"]
    try:
        with open(os.path.join(place, EXIT)) as file:
            code = json.load(file)
    except (OSError, ValueError):
        code = None
    running = labelled(request["url"])
    return {
        "processes": running,
        "watched": any(process["role"] == "watchdog" for process in running),
        "exit": code,
        "last": last_line(place),
        "there": os.path.isdir(place),
    }, b""


def last_line(place: str) -> str:
    try:
        with open(os.path.join(place, LOG), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def signals(request: Request, body: bytes) -> Answer:
    for pid, started in request["processes"]:
        send(pid, started, request["number"])
    return {}, b""


def release(request: Request, body: bytes) -> Answer:
    """Let the watchdog run `self_down` now, as all outputs are safe."""
    with open(os.path.join(request["place"], RELEASED), "w"):
        pass
    return {}, b""


def found(request: Request, body: bytes) -> Answer:
    """List this user's runs on this machine: those with labelled processes, and those that left files."""
    runs: dict[str, dict[str, str]] = {}
    base = os.path.join(request["dir"], "places")
    for folder, names, files in os.walk(base):
        if LABEL in files:
            names[:] = []
            with open(os.path.join(folder, LABEL)) as file:
                label = json.load(file)
            runs[label["HEADWAY_CLIENT_URL"]] = label
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            carried = environment_of(entry)
            ours = carried.get("HEADWAY_TARGET") == "ssh" and carried.get("HEADWAY_DIR") == request["dir"]
            if ours and carried.get("HEADWAY_CLIENT_URL"):
                runs.setdefault(carried["HEADWAY_CLIENT_URL"], carried)
    return {"runs": list(runs.values())}, b""


VERBS: dict[str, Callable[[Request, bytes], Answer]] = {
    "hello": hello,
    "mounted": mounted,
    "torch": torch,
    "sizes": sizes,
    "listing": listing,
    "read": read,
    "write": write,
    "unpack": unpack,
    "remove": remove,
    "start": start,
    "state": state,
    "signals": signals,
    "release": release,
    "found": found,
}


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the client closes the connection."""
    sink.write((GREETING + "\n").encode())
    sink.flush()
    while True:
        line = source.readline()
        if not line:
            return
        request = json.loads(line)
        body = source.read(request["bytes"])
        try:
            answer, reply = VERBS[request["verb"]](request, body)
        except OSError as error:
            answer, reply = (
                {"error": error.strerror or str(error), "errno": error.errno, "path": str(error.filename or "")},
                b"",
            )
        except (ValueError, KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
            answer, reply = {"error": f"{type(error).__name__}: {error}"}, b""
        sink.write((json.dumps({**answer, "bytes": len(reply)}) + "\n").encode())
        sink.write(reply)
        sink.flush()


# Watchdog


class Watchdog:
    """Runs one start script, enforces its deadline and records its exit code."""

    def __init__(self, place: str, config: dict[str, Any]) -> None:
        self.place, self.config = place, config
        self.asked = False
        self.url = config["env"]["HEADWAY_RUN_URL"]
        self.private: str | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        child = self.begin()
        with open(os.path.join(self.place, PID + ".new"), "w") as file:
            json.dump({"pid": os.getpid(), "child": child.pid, "boot": boot()}, file)
        os.replace(os.path.join(self.place, PID + ".new"), os.path.join(self.place, PID))
        why = self.attend(child)
        self.sweep()
        if self.private:
            shutil.rmtree(self.private, ignore_errors=True)
        self.record(child.returncode, why)
        if self.config["self_down"]:
            self.go_down()

    def begin(self) -> subprocess.Popen[bytes]:
        config = self.config
        env = {**os.environ, **self.memory(), **config["env"], **self.credentials(), "HEADWAY_ROLE": "supervisor"}
        child = subprocess.Popen(
            ["bash", os.path.join(self.place, "start.sh")],
            cwd=self.place,
            env=env,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        secrets_json = json.dumps(config.pop("secrets")).encode()

        def tell() -> None:
            assert child.stdin is not None
            try:
                child.stdin.write(secrets_json)
                child.stdin.close()
            except OSError:
                pass  # it ended without reading them

        threading.Thread(target=tell, daemon=True).start()
        return child

    def memory(self) -> dict[str, str]:
        """Create a private folder in memory (/dev/shm) for the run's secret files.

        Return the variable that names it.
        """
        if not os.path.isdir("/dev/shm"):
            return {}
        base = f"/dev/shm/headway-ssh-{os.getuid()}"
        os.makedirs(base, mode=0o700, exist_ok=True)
        known = os.lstat(base)
        if known.st_uid != os.getuid() or known.st_mode & 0o077:
            raise SystemExit(f"headway: {base} is not ours alone")
        self.private = os.path.join(base, hashlib.sha256(self.place.encode()).hexdigest()[:16])
        shutil.rmtree(self.private, ignore_errors=True)
        os.mkdir(self.private, 0o700)
        return {"HEADWAY_WORK_DIR": self.private}

    def credentials(self) -> dict[str, str]:
        """Write the cloud credentials that libraries need as files; return the variables that name them."""
        files = self.config.pop("files")
        if files and self.private is None:
            raise SystemExit("headway: no /dev/shm here, and a secret must not be written to a disk")
        variables = {}
        for variable, text in files.items():
            path = os.path.join(str(self.private), variable)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
            variables[variable] = path
        return variables

    def ask(self, number: int, frame: object) -> None:
        self.asked = True

    def attend(self, child: subprocess.Popen[bytes]) -> str:
        """Wait until the script ends; forward one request to stop; at the deadline send SIGTERM, then SIGKILL.

        Return why it was stopped.
        """
        began, limit = time.monotonic(), self.config["limit_s"]
        signalled_at: float | None = None
        why = ""
        while True:
            try:
                child.wait(LOOK_S)
                return why
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if limit is not None and now - began > limit and not why:
                why = f"the limit of {limit:.0f} s on this machine was reached"
                self.asked = True
            if self.asked and signalled_at is None:
                signalled_at = now
                child.send_signal(signal.SIGTERM)
            if why and signalled_at is not None and now - signalled_at > self.config["grace_s"]:
                child.kill()

    def sweep(self) -> None:
        """Kill the processes that the script has left behind."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(20):
                left = [process for process in labelled(self.url) if process["role"] != "watchdog"]
                if not left:
                    return
                for process in left:
                    send(process["pid"], process["started"], number)
                time.sleep(LOOK_S)

    def record(self, code: int, why: str) -> None:
        text = json.dumps({"code": code if code >= 0 else 128 - code, "why": why})
        with open(os.path.join(self.place, EXIT + ".new"), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(os.path.join(self.place, EXIT + ".new"), os.path.join(self.place, EXIT))

    def go_down(self) -> None:
        """Run `self_down` once the client reports that the outputs are fetched (dead man's switch).

        If it never does, run it after `linger_s`.
        """
        limit = time.monotonic() + self.config["linger_s"]
        while time.monotonic() < limit and not os.path.exists(os.path.join(self.place, RELEASED)):
            time.sleep(LOOK_S)
        sys.stdout.write(f"headway: self_down: {self.config['self_down']}\n")
        sys.stdout.flush()
        code = subprocess.call(["sh", "-c", self.config["self_down"]], stdin=subprocess.DEVNULL)
        sys.stdout.write(f"headway: self_down ended with {code}\n")
        sys.stdout.flush()


def main() -> None:
    if sys.argv[1] == "serve":
        serve(sys.stdin.buffer, sys.stdout.buffer)
    else:
        Watchdog(sys.argv[2], json.load(sys.stdin)).run()


if __name__ == "__main__":
    main()
