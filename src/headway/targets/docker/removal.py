"""Ending a run's containers: ask, wait, force, look again. The receipt is what the second look found."""

from __future__ import annotations

import math
import time

from headway import lease, processes
from headway.image.engine import ANSWER_S, Engine, Gone, Refusal
from headway.targets import afar
from headway.targets.base import ORIGIN, Handle, Receipt
from headway.targets.docker import seen
from headway.targets.docker.seen import Thing
from headway.targets.here import FAREWELL_S, LEAVING_S, grace_s

LOOK_S = 0.1
DETACH_S = 10.0  # a network lets go of a removed container a moment later


def take_down(engine: Engine, command: str, handle: Handle) -> Receipt:
    """Stop what runs, remove everything, and look again."""
    before = _things(engine, command, handle.url)
    ended = afar.said_farewell_or_never_began(handle)
    if ended:  # on its way out: nobody waits for a checkpoint
        _await_the_end(engine, command, handle.url, LEAVING_S)
    _stop(engine, command, handle.url, LEAVING_S if ended else grace_s(handle) + FAREWELL_S)
    remove(engine, command, handle.url)
    left = [str(thing) for thing in _things(engine, command, handle.url)]
    ours = () if handle.details.get(ORIGIN) else handle.details.get("containers", ())
    known = [f"container {each[:12]}" for each in ours]
    created = [*map(str, before), *(name for name in known if not any(thing.id[:12] in name for thing in before))]
    return Receipt(
        run=handle.run,
        created=tuple(created),
        removed=tuple(name for name in created if name not in left),
        left=tuple(left),
    )


def remove(engine: Engine, command: str, url: str) -> None:
    """By force, containers before networks. What is gone already is success."""
    for thing in seen.containers(engine, command, url):
        _unless_gone(engine, [command, "rm", "--force", "--volumes", thing.id])
    limit = time.monotonic() + DETACH_S
    for thing in seen.networks(engine, command, url):
        while True:
            try:
                _unless_gone(engine, [command, "network", "rm", thing.id])
                break
            except Refusal:
                if time.monotonic() > limit:
                    break  # a second look finds it, and the receipt says so
                time.sleep(LOOK_S)


def free_the_lease(handle: Handle) -> None:
    """Its holder was process 1 of a container that is gone: nobody need wait for the lease to go stale."""
    afar.free_the_lease(handle, gone=lambda record: _was_ours(record, handle))


def _was_ours(record: lease.Record, handle: Handle) -> bool:
    """A container's host name is its id, cut short."""
    this_kernel, _, namespace = processes.here().partition("/")
    kernel, _, other = record.boot.partition("/")
    ids = [str(each)[:12] for each in handle.details.get("containers", ())]
    return kernel == this_kernel and namespace != other and record.pid == 1 and record.host in ids


def _stop(engine: Engine, command: str, url: str, within_s: float) -> None:
    live = [thing for thing in seen.containers(engine, command, url) if thing.live]
    for thing in live:
        if thing.state == "paused":  # it could not heed a signal
            _unless_gone(engine, [command, "unpause", thing.id])
    if not live:
        return
    seconds = math.ceil(within_s)
    argv = [command, "stop", "--time", str(seconds), *(thing.id for thing in live)]
    _unless_gone(engine, argv, within_s=seconds + ANSWER_S)


def _await_the_end(engine: Engine, command: str, url: str, within_s: float) -> None:
    limit = time.monotonic() + within_s
    while time.monotonic() < limit and any(thing.live for thing in seen.containers(engine, command, url)):
        time.sleep(LOOK_S)


def _unless_gone(engine: Engine, argv: list[str], within_s: float = ANSWER_S) -> None:
    try:
        engine(argv, within_s=within_s)
    except Gone:
        pass


def _things(engine: Engine, command: str, url: str) -> list[Thing]:
    return [*seen.containers(engine, command, url), *seen.networks(engine, command, url)]
