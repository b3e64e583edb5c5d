"""Connections to all machines of a run: poll their state and fetch their logs and outputs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.core.types import Handle
from headway.rundir.status import place_of
from headway.storage import local_path
from headway.targets.ssh import connection
from headway.targets.ssh.connection import Host, Machine
from headway.targets.ssh.options import KIND, Layout, Options, layout
from headway.targets.ssh.rental import Records, from_plain
from headway.targets.ssh.sync import Mirror, fetch_growing

MIRROR_LOCK = "mirror.lock"


class SshConnections:
    """Connections to all machines of one run. A context manager."""

    def __init__(self, options: Options, handle: Handle, machines: list[Machine]) -> None:
        self.hosts = [Host(machine, options) for machine in machines]
        self._options, self._handle = options, handle
        self.here = place_of(handle.url, KIND)

    def __enter__(self) -> SshConnections:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()

    @property
    def where(self) -> Layout:
        outputs = self._handle.url.rpartition("/")[0]
        return layout(self._options, outputs, self._handle.run, dir=str(self.hosts[0].facts["dir"]))

    def refresh(self) -> list[dict[str, Any]]:
        """Return each node's state, after fetching its logs and then its files.

        The state is read first, so that no end is missed.
        """
        where = self.where
        states = [host.ask("state", place=where.place(node), url=where.folder) for node, host in enumerate(self.hosts)]
        with locked(self.here, MIRROR_LOCK):
            for node, host in enumerate(self.hosts):
                fetch_growing(host, f"{where.place(node)}/spool", self.here / "spool")
            folder = local_path(where.url)
            if where.mirrored and folder is not None:
                Mirror(self.hosts[0], where.folder, folder, self.here).pull()
        return states


def machines_of(options: Options, handle: Handle, records: Records) -> list[Machine]:
    """Return the run's machines from the record of its rental, its handle, or the target's entry, in this order."""
    rental = records.read(handle.url)
    if rental is not None:
        return list(rental.machines)
    known = handle.details.get("machines")
    if known is not None:
        machines = [from_plain(dict(machine)) for machine in known]
        _restore_keys(machines, str(handle.details.get("keys", "")))
        return machines
    return [] if options.up else named(options)


def named(options: Options) -> list[Machine]:
    """Return the machines in the target's entry."""
    return [connection.parse(text) for text in (options.hosts or ([options.host] if options.host else []))]


@contextmanager
def locked(place: Path, name: str, *, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock between processes of this machine; call `waits` first if another process holds it."""
    place.mkdir(parents=True, exist_ok=True)
    lock = os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _restore_keys(machines: list[Machine], keys: str) -> None:
    """Write the pinned host keys from the run's record, if another machine than this one rented the machines."""
    for machine in machines:
        if machine.known_hosts is not None and keys and not machine.known_hosts.exists():
            machine.known_hosts.parent.mkdir(parents=True, exist_ok=True)
            machine.known_hosts.write_text(keys)
