"""Kill the client (SIGKILL) at each request it makes, for any target: what it leaves must end by itself, or be found.

A request is whatever a client asks of the world outside it: a file written, renamed or removed, a program started, a
message sent. Python announces each before it is made (`sys.addaudithook`), so the n-th is a moment that can be died in;
what goes over a connection of ssh that is open already, or to an object store, is announced here.

`python -m tests.contract.client_kills PLAN PREFIX` starts run PREFIX-1, PREFIX-2, … of a saved plan, each in a process
forked for it that dies at its first, second, … request; it ends when one start has come through. `--attached` follows
each to its end, too. `--since watch` spares the start and counts the requests of whoever follows the run; `--since end`
those that are made once it has ended. `--first N --every K` take a sample: the N-th, and every K-th from there.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from headway import targets
from headway.core.errors import HeadwayError
from headway.core.types import Target
from headway.launcher import lifecycle
from headway.launcher.gc import ORPHAN, TargetRef, find_resources, remove
from headway.planning import Plan
from headway.plugins import TARGETS
from headway.rundir.layout import PLAN, RunFolder
from headway.rundir.submission import owner
from headway.storage import join, open_store, subfolders
from tests.contract.plays import FAKE
from tests.waiting import wait_until

Since = Literal["start", "watch", "end"]
END_S = 120.0
CROWD = 4  # runs at once, of those whose watcher alone is killed
MOST = 400  # requests of one start: far more means that the count does not end
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNPACKED = re.compile(r"(.+/(?:docker|local|slurm)/(?:code|headway))/.")
_REQUESTS = {
    "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree",
    "subprocess.Popen", "os.fork", "os.posix_spawn", "os.kill", "socket.connect", "http.client.send", "sqlite3.connect",
    "headway.exchange", "obstore",
}  # fmt: skip
_ASKS = ("copy", "delete", "get", "get_range", "get_ranges", "head", "list", "list_with_delimiter", "put", "rename")


def is_request(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        return isinstance(args[2], int) and bool(args[2] & _WRITING) and args[0] != os.devnull
    if event in ("os.remove", "os.rmdir") and args[1] != -1:
        return False  # part of a tree that is being removed, which was announced
    return event in _REQUESTS


def announce_store_requests() -> None:
    """From now on each call of obstore is announced as Python announces its own."""
    import obstore

    for name in _ASKS:
        setattr(obstore, name, _announced(getattr(obstore, name)))


def _announced(ask: Callable[..., Any]) -> Callable[..., Any]:
    def announced(*args: Any, **more: Any) -> Any:
        sys.audit("obstore")
        return ask(*args, **more)

    return announced


def archive_of(args: tuple[Any, ...]) -> str:
    """The folder into which an archive is being unpacked, where a file or folder is made for that; else nothing."""
    found = _UNPACKED.match(str(args[0])) if args else None
    return found[1] if found else ""


def die_at(request: int) -> None:
    """From now on this process kills itself when it is about to make its n-th request. To unpack an archive is one."""
    made = 0
    unpacked: set[str] = set()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal made
        if is_request(event, args):
            archive = archive_of(args) if event in ("open", "os.mkdir") else ""
            if archive in unpacked:
                return
            unpacked.update({archive} - {""})
            made += 1
            if made == request:
                os.kill(os.getpid(), signal.SIGKILL)

    _announce_exchanges()
    # os.kill announces itself too: by then the count is past the number.
    sys.addaudithook(hook)


def _announce_exchanges() -> None:
    from headway.targets.ssh.connection import _Session

    ask = _Session.exchange

    def announced(session: _Session, request: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        sys.audit("headway.exchange", request["verb"])
        return ask(session, request, body)

    _Session.exchange = announced  # type: ignore[assignment,method-assign]


def kill_at_each_request(
    plan: Plan,
    folder: Path,
    prefix: str,
    *,
    attached: bool = False,
    since: Since = "start",
    first: int = 1,
    every: int = 1,
) -> list[str]:
    """Starts of this plan, each killed one request (or `every`) later than the one before. The names of all of them.

    HEADWAY_KILLS_EVERY=1 takes them all where a test takes a sample; HEADWAY_KILLS_FIRST goes on with a series that was
    stopped.
    """
    every = int(os.environ.get("HEADWAY_KILLS_EVERY") or every)
    first = int(os.environ.get("HEADWAY_KILLS_FIRST") or first)
    path = folder / f"{prefix}.plan.json"
    path.write_text(plan.to_json())
    words = [sys.executable, "-m", "tests.contract.client_kills", str(path), prefix, f"--first={first}"]
    words += [f"--every={every}", f"--since={since}", *(["--attached"] if attached else [])]
    errors = folder / f"{prefix}.stderr"
    names = []
    with (
        errors.open("w") as said,
        subprocess.Popen(words, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=said, text=True) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            names.append(line.strip())
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}")  # with -s: how far it is
    assert child.returncode == 0, errors.read_text()
    return names


def nothing_stays(
    target: Target,
    plan: Plan,
    names: list[str],
    wait_until: Callable[[Callable[[], bool], str], None],
    *,
    live: Callable[[], set[str]] | None = None,
) -> None:
    """All of them end by themselves; then nothing is an orphan, and every folder can be taken down and says so.

    Where `live` says what runs, the rest may lie about (a stopped container, files on a host) until `gc` removes it.
    """
    outputs = str(plan.job["outputs"])
    runs = live or (lambda: {handle.run for handle in target.list_runs()})
    wait_until(lambda: not runs() & set(names), "all have ended by themselves")
    if plan.kind in TARGETS:
        resources = find_resources(_place(plan))
        left = [found for found in resources if found.verdict == ORPHAN and found.handle.run in names]
        assert live or not left
        assert [name for found in left for name in remove(found, say=lambda text: None).left] == []
        assert not {handle.run for handle in target.list_runs()} & set(names)
    there = [name for name in names if name in set(subfolders(open_store(outputs)))]
    for name in there[:: 4 if live else 1]:  # what is slow to ask is asked about some
        url = join(outputs, name)
        if any(entry.key == PLAN for entry in open_store(url).list(PLAN)):
            assert lifecycle.open_run(url, target=target).down().left == ()


def _place(plan: Plan) -> TargetRef:
    return TargetRef(name=plan.target, kind=plan.kind, options=plan.options)


def _start(plan: Plan, name: str, request: int, *, attached: bool) -> None:
    target = targets.of_plan(plan)
    try:
        die_at(request)
        lifecycle.launch(plan, name=name, detach=not attached, target=target)
    except HeadwayError:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def _wait_for(plan: Plan, name: str) -> None:
    """The end of this run, where there is one of that name."""
    folder = RunFolder(open_store(join(str(plan.job["outputs"]), name)))
    if any(entry.key == PLAN for entry in folder.store.list(PLAN)):
        wait_until(lambda: folder.ended() is not None, f"{name} ends", within_s=CROWD * END_S)


def _watch(plan: Plan, name: str, request: int, *, ended: bool) -> None:
    try:
        hold = lifecycle.launch(plan, name=name, detach=True, target=targets.of_plan(plan))
        if ended:
            wait_until(lambda: hold.folder.ended() is not None, f"{name} ends", within_s=END_S)
        die_at(request)
        hold.wait()
    except HeadwayError:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("prefix")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--attached", action="store_true")
    parser.add_argument("--since", choices=get_args(Since), default="start")
    asked = parser.parse_args(words)
    TARGETS.setdefault("fake", FAKE)
    plan = Plan.from_json(asked.plan.read_text())
    targets.of_plan(plan)  # imported once, for all
    owner()  # made once, for all: a start that made it would make more requests than the next
    announce_store_requests()
    for request in range(asked.first, MOST + 1, asked.every):
        name = f"{asked.prefix}-{request}"
        child = os.fork()
        if child == 0:
            if asked.since == "start":
                _start(plan, name, request, attached=asked.attached)
            _wait_for(plan, f"{asked.prefix}-{request - CROWD * asked.every}")  # as many as the machine can bear
            _watch(plan, name, request, ended=asked.since == "end")
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
    return 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
