"""Find a run's containers and networks by their labels, and remove them.

The receipt reports what a second listing shows.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core import platform
from headway.core.types import EXPIRES_LABEL, ORIGIN, OWNER_LABEL, OWNER_NAME_LABEL, RUN_LABEL, Handle, Receipt
from headway.packaging.engine import ANSWER_S, Engine, EngineError, NotFound
from headway.rundir import lease, status
from headway.rundir.status import END_RECORD_S, PROCESS_EXIT_S, grace_s
from headway.storage import same_place
from headway.targets.docker.render import NODE_LABEL, URL_LABEL

# Listing


_LOOKS = 5  # a resource may vanish between listing and inspecting it


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerResource:
    """A container or network with Headway's label."""

    kind: str
    id: str
    name: str
    run: str
    url: str
    expires: str = ""
    owner: str = ""  # empty: made by an older Headway, which set no owner
    owner_name: str = ""
    node: int = 0
    state: str = ""  # created, running, paused, restarting, removing, exited or dead; empty for a network
    exit_code: int = 0
    trouble: str = ""  # the daemon's explanation of its exit

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.id[:12]})"

    @property
    def live(self) -> bool:
        return self.state in ("running", "paused", "restarting")


def containers(engine: Engine, command: str, url: str | None = None) -> list[DockerResource]:
    """List the containers of one run, or of all runs, sorted by node."""
    found = [_container(item) for item in _listed(engine, [command, "container"], ["ls", "--all", "--no-trunc"])]
    return sorted(_of(found, url), key=lambda thing: (thing.url, thing.node))


def networks(engine: Engine, command: str, url: str | None = None) -> list[DockerResource]:
    found = [_network(item) for item in _listed(engine, [command, "network"], ["ls", "--no-trunc"])]
    return _of(found, url)


def _of(things: list[DockerResource], url: str | None) -> list[DockerResource]:
    return [thing for thing in things if thing.run and (url is None or same_place(thing.url, url))]


def _listed(engine: Engine, noun: list[str], ls: list[str]) -> list[dict[str, Any]]:
    for _ in range(_LOOKS):
        ids = engine([*noun, *ls, "--quiet", "--filter", f"label={RUN_LABEL}"]).split()
        if not ids:
            return []
        try:
            found: list[dict[str, Any]] = json.loads(engine([*noun, "inspect", *ids]))
            return found
        except NotFound:
            continue
    return []


def _container(item: Mapping[str, Any]) -> DockerResource:
    state, labels = item["State"], item["Config"].get("Labels") or {}
    trouble = "out of memory" if state.get("OOMKilled") else str(state.get("Error") or "")
    return DockerResource(
        kind="container",
        id=item["Id"],
        name=str(item["Name"]).lstrip("/"),
        state=str(state["Status"]).replace("stopped", "exited").replace("configured", "created"),  # podman's names
        exit_code=int(state.get("ExitCode") or 0),
        trouble=trouble,
        node=int(labels.get(NODE_LABEL) or 0),
        **_labels(labels),
    )


def _network(item: Mapping[str, Any]) -> DockerResource:
    plain = {key.lower(): value for key, value in item.items()}  # podman writes its keys in lower case
    return DockerResource(kind="network", id=plain["id"], name=plain["name"], **_labels(plain.get("labels") or {}))


def _labels(labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "run": labels.get(RUN_LABEL, ""),
        "url": labels.get(URL_LABEL, ""),
        "expires": labels.get(EXPIRES_LABEL, ""),
        "owner": labels.get(OWNER_LABEL, ""),
        "owner_name": labels.get(OWNER_NAME_LABEL, ""),
    }


LOOK_S = 0.1
DETACH_S = 10.0  # docker detaches a removed container from its network a moment later


def take_down(engine: Engine, command: str, handle: Handle) -> Receipt:
    """Stop the containers, remove everything and list again for the receipt."""
    before = _things(engine, command, handle.url)
    ended = status.ended_or_never_started(handle)
    if ended:  # it is exiting by itself: there is no checkpoint to wait for
        _await_the_end(engine, command, handle.url, PROCESS_EXIT_S)
    _stop(engine, command, handle.url, PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S)
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
    """Force-remove containers, then networks. A resource already gone counts as removed."""
    for thing in containers(engine, command, url):
        _unless_gone(engine, [command, "rm", "--force", "--volumes", thing.id])
    limit = time.monotonic() + DETACH_S
    for thing in networks(engine, command, url):
        while True:
            try:
                _unless_gone(engine, [command, "network", "rm", thing.id])
                break
            except EngineError:
                if time.monotonic() > limit:
                    break  # the second listing shows it, and the receipt reports it
                time.sleep(LOOK_S)


def free_the_lease(handle: Handle) -> None:
    """Release the lease if its holder was process 1 of a removed container, so that nobody waits for it to go stale."""
    status.release_dead_lease(handle, is_gone=lambda record: _was_ours(record, handle))


def _was_ours(record: lease.LeaseRecord, handle: Handle) -> bool:
    """Return whether a container of this run held the lease: a container's host name is its shortened id."""
    this_kernel, _, namespace = platform.pid_namespace_id().partition("/")
    kernel, _, other = record.boot.partition("/")
    ids = [str(each)[:12] for each in handle.details.get("containers", ())]
    return kernel == this_kernel and namespace != other and record.pid == 1 and record.host in ids


def _stop(engine: Engine, command: str, url: str, within_s: float) -> None:
    live = [thing for thing in containers(engine, command, url) if thing.live]
    for thing in live:
        if thing.state == "paused":  # a paused container cannot handle a signal
            _unless_gone(engine, [command, "unpause", thing.id])
    if not live:
        return
    seconds = math.ceil(within_s)
    argv = [command, "stop", "--time", str(seconds), *(thing.id for thing in live)]
    _unless_gone(engine, argv, within_s=seconds + ANSWER_S)


def _await_the_end(engine: Engine, command: str, url: str, within_s: float) -> None:
    limit = time.monotonic() + within_s
    while time.monotonic() < limit and any(thing.live for thing in containers(engine, command, url)):
        time.sleep(LOOK_S)


def _unless_gone(engine: Engine, argv: list[str], within_s: float = ANSWER_S) -> None:
    try:
        engine(argv, within_s=within_s)
    except NotFound:
        pass


def _things(engine: Engine, command: str, url: str) -> list[DockerResource]:
    return [*containers(engine, command, url), *networks(engine, command, url)]
