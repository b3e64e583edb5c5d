"""Record of the machines provisioned for one run.

Written before `up`, kept until `down` has succeeded for every machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.platform import state_dir
from headway.core.types import Recorded
from headway.storage import open_store
from headway.targets.ssh.connection import Machine, host_key_alias

_FIELDS = re.compile(r"(?:^|\s)(host|hostkey|id|user|port)=")
REQUESTED, UP, STARTED = "asked", "up", "started"
_RECORD = "rental.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvisionedMachine:
    """The machines provisioned for one run. Written before `up`; removed when they are gone.

    launcher/machine_watcher.py gives them back, also after the client has died.

    Records of older versions lack the last five fields: `list` then counts as never having shown the machine.
    """

    run: str
    url: str
    target: str
    state: str = REQUESTED
    machines: tuple[Machine, ...] = ()
    pid: int = 0  # of `up`, which outlives a killed client
    started: str = ""
    since: float = 0.0  # when `up` was requested
    options: Mapping[str, Any] = field(default_factory=dict)  # its target's, for `gc` without job file or folder
    found: tuple[str, ...] = ()  # ids without an address, from `id=` lines of `up` or else from `list`
    listed: tuple[str, ...] = ()  # ids that `list` has shown: an empty answer is trusted only for these
    listed_by: str = ""  # the `list` command that has shown them
    returned: tuple[str, ...] = ()  # ids for which `down` has succeeded

    @property
    def ids(self) -> tuple[str, ...]:
        """Every machine id ever recorded."""
        return tuple(dict.fromkeys([*(machine.id for machine in self.machines), *self.found]))


class Records:
    """Rental records in Headway's state folder, so that they are found even if the client died."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_dir() / "ssh" / "rented"

    def place(self, url: str) -> Path:
        """Return the folder for the record, the host keys and the output of `up`."""
        return self._folder / _name(url)

    def lock(self, url: str) -> tuple[Path, str]:
        """Return the folder and name of the lock held during teardown.

        It is outside `place`, which is removed when the machine is gone.
        """
        return self._folder, f"{_name(url)}.lock"

    def read(self, url: str) -> ProvisionedMachine | None:
        return self._read(self.place(url) / _RECORD)

    def write(self, rental: ProvisionedMachine) -> ProvisionedMachine:
        open_store(str(self.place(rental.url))).write(_RECORD, _as_json(rental))
        return rental

    def begin(self, rental: ProvisionedMachine) -> ProvisionedMachine:
        """Record a new rental and delete the output of an earlier `up`, since that names machines."""
        for name in ("up.out", "up.err", "known_hosts"):
            (self.place(rental.url) / name).unlink(missing_ok=True)
        self._receipt(rental.url).unlink(missing_ok=True)
        return self.write(rental)

    def delete(self, url: str, given_back: ProvisionedMachine | None = None) -> None:
        """Remove the record.

        Keep what was released readable, since a second `down` may fail because the machine is gone.
        """
        if given_back is not None:
            open_store(str(self._folder)).write(self._receipt(url).name, _as_json(given_back))
        shutil.rmtree(self.place(url), ignore_errors=True)

    def read_released(self, url: str) -> ProvisionedMachine | None:
        """Return the run's last rental that was released by this client, once its record is removed."""
        return self._read(self._receipt(url))

    def untouched_marker(self, url: str) -> Path:
        """Return the path of a marker file that exists until something is sent to a host.

        While it exists there is nothing to remove on the hosts.
        """
        return self.place(url) / "untouched"

    def all(self) -> list[ProvisionedMachine]:
        found = (self._read(path) for path in sorted(self._folder.glob(f"*/{_RECORD}")))
        return [rental for rental in found if rental is not None]

    def _read(self, path: Path) -> ProvisionedMachine | None:
        try:
            known = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        known = {
            name: value for name, value in known.items() if name in ProvisionedMachine.__slots__
        }  # a newer version may have written more fields
        tuples = {name: tuple(known.get(name, ())) for name in ("found", "listed", "returned")}
        return ProvisionedMachine(
            **{**known, **tuples, "machines": tuple(from_plain(machine) for machine in known["machines"])}
        )

    def _receipt(self, url: str) -> Path:
        return self._folder / f"{_name(url)}.returned"


def _as_json(rental: ProvisionedMachine) -> bytes:
    plain = {name: getattr(rental, name) for name in ProvisionedMachine.__slots__ if name != "machines"}
    plain |= {"machines": [as_plain(machine) for machine in rental.machines], "options": dict(rental.options)}
    return json.dumps(plain, indent=2).encode()


def as_plain(machine: Machine) -> dict[str, Any]:
    plain = {"host": machine.host, "user": machine.user, "port": machine.port, "id": machine.id}
    keys = str(machine.known_hosts) if machine.known_hosts else None
    return {**plain, "known_hosts": keys}


def from_plain(plain: dict[str, Any]) -> Machine:
    keys = plain.get("known_hosts")
    return Machine(**{**plain, "known_hosts": Path(keys) if keys else None})


def parse_machines(text: str, keys: Path) -> list[Machine]:
    """Parse the machines that `up` printed, one per line. A printed host key is pinned before the first connection."""
    found = []
    for line in text.splitlines():
        marks = list(_FIELDS.finditer(line))
        ends = [mark.start() for mark in marks[1:]] + [len(line)] * bool(marks)
        fields = {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
        if "host" not in fields:
            continue
        port = int(fields["port"]) if fields.get("port", "").isdigit() else None
        machine = Machine(
            host=fields["host"],
            user=fields.get("user"),
            port=port,
            id=fields.get("id", ""),
            known_hosts=keys,
            first_seen=True,
        )
        if "hostkey" in fields:
            _pin_host_key(machine, fields["hostkey"], keys)
            machine = replace(machine, first_seen=False)
        found.append(machine)
    return found


def parse_bare_ids(text: str) -> list[str]:
    """Parse ids on lines of their own (`id=ID`): `up` may print one before it knows the address."""
    return [line.strip().removeprefix("id=") for line in text.splitlines() if re.fullmatch(r"\s*id=\S+\s*", line)]


def fill_placeholders(command: str, *, run: str, id: str = "") -> str:
    """Substitute the run and id into a command, shell-quoted."""
    return command.replace("{run}", shlex.quote(run)).replace("{id}", shlex.quote(id) if id else "")


def _pin_host_key(machine: Machine, key: str, keys: Path) -> None:
    keys.parent.mkdir(parents=True, exist_ok=True)
    line = f"{host_key_alias(machine)} {key}\n"
    known = keys.read_text() if keys.exists() else ""
    if line not in known:
        keys.write_text(known + line)


def recorded() -> list[Recorded]:
    """List the machines that this computer has recorded as provisioned and not released."""
    return [
        Recorded(
            target=rental.target,
            run=rental.run,
            url=rental.url,
            options=rental.options,
            what=f"machine {', '.join(rental.ids) or 'of unknown id'}",
        )
        for rental in Records().all()
    ]


def _name(url: str) -> str:
    return f"{url.rstrip('/').rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
