"""Find a run's containers and networks by their labels, and remove them.

The receipt reports what a second listing shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headway.core import platform
from headway.core.retry import wait_until
from headway.core.types import EXPIRES_LABEL, ORIGIN, OWNER_LABEL, OWNER_NAME_LABEL, RUN_LABEL, Handle, Receipt
from headway.packaging.engine import COMMAND_TIMEOUT_S, AnotherDaemon, Engine, EngineError, NotFound, daemon_id
from headway.rundir import lease, status
from headway.rundir.status import END_RECORD_S, PROCESS_EXIT_S, grace_s
from headway.storage import is_same_folder
from headway.targets.docker.render import NODE_LABEL, URL_LABEL

# Listing


_LIST_TRIES = 5  # a resource may vanish between listing and inspecting it


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
    error: str = ""  # the daemon's explanation of its exit

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.id[:12]})"

    @property
    def live(self) -> bool:
        return self.state in ("running", "paused", "restarting")


def containers(engine: Engine, command: str, url: str | None = None) -> list[DockerResource]:
    """List the containers of one run, or of all runs, sorted by node."""
    listed = [
        _container(item) for item in _inspect_labelled(engine, [command, "container"], ["ls", "--all", "--no-trunc"])
    ]
    return sorted(_filter_by_run(listed, url), key=lambda resource: (resource.url, resource.node))


def networks(engine: Engine, command: str, url: str | None = None) -> list[DockerResource]:
    listed = [_network(item) for item in _inspect_labelled(engine, [command, "network"], ["ls", "--no-trunc"])]
    return _filter_by_run(listed, url)


def _filter_by_run(resources: list[DockerResource], url: str | None) -> list[DockerResource]:
    return [resource for resource in resources if resource.run and (url is None or is_same_folder(resource.url, url))]


def _inspect_labelled(engine: Engine, noun: list[str], ls: list[str]) -> list[dict[str, Any]]:
    for _ in range(_LIST_TRIES):
        ids = engine([*noun, *ls, "--quiet", "--filter", f"label={RUN_LABEL}"]).split()
        if not ids:
            return []
        try:
            inspected: list[dict[str, Any]] = json.loads(engine([*noun, "inspect", *ids]))
            return inspected
        except NotFound:
            continue
    return []


def _container(item: Mapping[str, Any]) -> DockerResource:
    state, labels = item["State"], item["Config"].get("Labels") or {}
    error = "out of memory" if state.get("OOMKilled") else str(state.get("Error") or "")
    return DockerResource(
        kind="container",
        id=item["Id"],
        name=str(item["Name"]).lstrip("/"),
        state=str(state["Status"]).replace("stopped", "exited").replace("configured", "created"),  # podman's names
        exit_code=int(state.get("ExitCode") or 0),
        error=error,
        node=int(labels.get(NODE_LABEL) or 0),
        **_label_fields(labels),
    )


def _network(item: Mapping[str, Any]) -> DockerResource:
    fields = {key.lower(): value for key, value in item.items()}  # podman writes its keys in lower case
    return DockerResource(
        kind="network", id=fields["id"], name=fields["name"], **_label_fields(fields.get("labels") or {})
    )


def _label_fields(labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "run": labels.get(RUN_LABEL, ""),
        "url": labels.get(URL_LABEL, ""),
        "expires": labels.get(EXPIRES_LABEL, ""),
        "owner": labels.get(OWNER_LABEL, ""),
        "owner_name": labels.get(OWNER_NAME_LABEL, ""),
    }


POLL_S = 0.1
DETACH_S = 10.0  # docker detaches a removed container from its network a moment later


def take_down(engine: Engine, command: str, handle: Handle) -> Receipt:
    """Stop the containers, remove everything and list again for the receipt."""
    before = _list_resources(engine, command, handle.url)
    require_daemon(engine, command, handle, before)
    ended = status.ended_or_never_started(handle)
    if ended:  # it is exiting by itself: there is no checkpoint to wait for
        _wait_for_exit(engine, command, handle.url, PROCESS_EXIT_S)
    _stop(engine, command, handle.url, PROCESS_EXIT_S if ended else grace_s(handle) + END_RECORD_S)
    remove(engine, command, handle.url)
    recorded_ids = _recorded_containers(handle)
    for container_id in recorded_ids:  # whatever a list shows
        _ignore_not_found(engine, [command, "rm", "--force", "--volumes", container_id])
    left = [str(resource) for resource in _list_resources(engine, command, handle.url)]
    left += [f"container {each[:12]}" for each in recorded_ids if _exists(engine, command, each)]
    recorded = [f"container {container_id[:12]}" for container_id in recorded_ids]
    created = [
        *map(str, before),
        *(name for name in recorded if not any(resource.id[:12] in name for resource in before)),
    ]
    return Receipt.of_listing(handle.run, created, left)


def require_daemon(engine: Engine, command: str, handle: Handle, found: list[DockerResource]) -> None:
    """Raise AnotherDaemon if recorded containers are missing and this daemon is not the one that has them."""
    recorded, here = str(handle.details.get("daemon", "")), {resource.id for resource in found}
    if not recorded or set(_recorded_containers(handle)) <= here:
        return
    current = daemon_id(engine, command)
    if current != recorded:
        at = str(handle.details.get("daemon_at", "")) or "its default address"
        raise AnotherDaemon(
            f"its containers are those of another daemon ({recorded}, at {at}); {command} leads to {current or 'none'}",
            fix="the same command with that DOCKER_HOST or DOCKER_CONTEXT",
        )


def _recorded_containers(handle: Handle) -> list[str]:
    return [] if handle.details.get(ORIGIN) else [str(each) for each in handle.details.get("containers", ())]


def _exists(engine: Engine, command: str, container_id: str) -> bool:
    try:
        engine([command, "container", "inspect", container_id])
    except NotFound:
        return False
    return True


def remove(engine: Engine, command: str, url: str) -> None:
    """Force-remove containers, then networks. A resource already gone counts as removed."""
    for resource in containers(engine, command, url):
        _ignore_not_found(engine, [command, "rm", "--force", "--volumes", resource.id])
    for resource in networks(engine, command, url):
        wait_until(partial(_remove_network, engine, command, resource.id), POLL_S, within_s=DETACH_S)


def _remove_network(engine: Engine, command: str, network_id: str) -> bool:
    """Remove a network; return False while containers are attached to it. The next listing then still shows it."""
    try:
        _ignore_not_found(engine, [command, "network", "rm", network_id])
    except EngineError:
        return False
    return True


def release_lease(handle: Handle) -> None:
    """Release the lease if its holder was process 1 of a removed container, so that nobody waits for it to go stale."""
    status.release_dead_lease(handle, is_gone=lambda record: _held_by_container(record, handle))


def _held_by_container(record: lease.LeaseRecord, handle: Handle) -> bool:
    """Return whether a container of this run held the lease: a container's host name is its shortened id."""
    this_kernel, _, namespace = platform.pid_namespace_id().partition("/")
    kernel, _, holder_namespace = record.boot.partition("/")
    container_ids = [str(container_id)[:12] for container_id in handle.details.get("containers", ())]
    return kernel == this_kernel and namespace != holder_namespace and record.pid == 1 and record.host in container_ids


def _stop(engine: Engine, command: str, url: str, within_s: float) -> None:
    live = [container for container in containers(engine, command, url) if container.live]
    for container in live:
        if container.state == "paused":  # a paused container cannot handle a signal
            _ignore_not_found(engine, [command, "unpause", container.id])
    if not live:
        return
    seconds = math.ceil(within_s)
    argv = [command, "stop", "--time", str(seconds), *(container.id for container in live)]
    _ignore_not_found(engine, argv, within_s=seconds + COMMAND_TIMEOUT_S)


def _wait_for_exit(engine: Engine, command: str, url: str, within_s: float) -> None:
    def exited() -> bool:
        return not any(container.live for container in containers(engine, command, url))

    wait_until(exited, POLL_S, within_s=within_s)


def _ignore_not_found(engine: Engine, argv: list[str], within_s: float = COMMAND_TIMEOUT_S) -> None:
    try:
        engine(argv, within_s=within_s)
    except NotFound:
        pass


def _list_resources(engine: Engine, command: str, url: str) -> list[DockerResource]:
    return [*containers(engine, command, url), *networks(engine, command, url)]
