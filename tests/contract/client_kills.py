"""Kill the client (SIGKILL) at each request it makes, for any target: what it leaves must end by itself, or be found.

A request is whatever a client asks of the world outside it: a file written, renamed or removed, a program started, a
message sent. Python announces each before it is made (`sys.addaudithook`), so the n-th is a moment that can be died in.

`python -m tests.contract.client_kills PLAN PREFIX` starts run PREFIX-1, PREFIX-2, … of a saved plan, each in a process
forked for it that dies at its first, second, … request; it ends when one start has come through.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway import launcher
from headway.errors import HeadwayError
from headway.orphans import ORPHAN, Place, look
from headway.planning import Plan
from headway.runfolder import PLAN
from headway.storage import join, open_store, subfolders
from headway.targets import registry
from headway.targets.base import Target
from headway.targets.registry import TARGETS
from tests.contract.plays import FAKE

MOST = 400  # requests of one start: far more means that the count does not end
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REQUESTS = {
    "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree",
    "subprocess.Popen", "os.fork", "os.posix_spawn", "os.kill", "socket.connect", "http.client.send", "sqlite3.connect",
}  # fmt: skip


def is_request(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        return isinstance(args[2], int) and bool(args[2] & _WRITING)
    return event in _REQUESTS


def die_at(request: int) -> None:
    """From now on this process kills itself when it is about to make its n-th request."""
    made = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal made
        if is_request(event, args):
            made += 1
            if made == request:
                os.kill(os.getpid(), signal.SIGKILL)

    # os.kill announces itself too: by then the count is past the number.
    sys.addaudithook(hook)


def kill_at_each_request(plan: Plan, folder: Path, prefix: str, *, attached: bool = False) -> list[str]:
    """Starts of this plan, each killed one request later than the one before. The names of all of them."""
    path = folder / f"{prefix}.plan.json"
    path.write_text(plan.to_json())
    words = [
        sys.executable,
        "-m",
        "tests.contract.client_kills",
        str(path),
        prefix,
        *(["--attached"] if attached else []),
    ]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def nothing_stays(
    target: Target, plan: Plan, names: list[str], eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    """All of them end by themselves; then nothing is an orphan, and every folder can be taken down and says so."""
    outputs = str(plan.job["outputs"])
    eventually(lambda: not {handle.run for handle in target.found()} & set(names), "all have ended by themselves")
    place = Place(name=plan.target, kind=plan.kind, options=plan.options)
    if plan.kind in TARGETS:
        assert not [found for found in look(place) if found.verdict == ORPHAN and found.handle.run in names]
    for name in set(subfolders(open_store(outputs))) & set(names):
        url = join(outputs, name)
        if any(entry.key == PLAN for entry in open_store(url).list(PLAN)):
            assert launcher.reach(url, target=target).down().left == ()


def _start(plan: Plan, name: str, request: int, attached: bool) -> None:
    target = registry.of_plan(plan)
    try:
        die_at(request)
        launcher.launch(plan, name=name, detach=not attached, target=target)
    except HeadwayError:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def main(words: list[str]) -> int:
    path, prefix = words[:2]
    TARGETS.setdefault("fake", FAKE)
    plan = Plan.from_json(Path(path).read_text())
    registry.of_plan(plan)  # imported once, for all
    for request in range(1, MOST + 1):
        name = f"{prefix}-{request}"
        child = os.fork()
        if child == 0:
            _start(plan, name, request, "--attached" in words)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{name}\n")
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
    return 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
