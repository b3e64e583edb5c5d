"""A machine rented for one run: asked for, recorded before it is, and given back in every ending.

`up`, `list` and `down` are the user's own commands. What they were told and what they printed is kept beside the run
until a second look has shown that nothing is left.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway import processes
from headway.errors import TargetError
from headway.home import home
from headway.storage import open_store
from headway.targets.ssh.openssh import Machine, alias
from headway.targets.ssh.options import Options

UP_S, ANSWER_S = 3600.0, 300.0  # renting may take long
LOOK_S, LONGEST_LOOK_S = 0.2, 10.0
_FIELDS = re.compile(r"(?:^|\s)(host|hostkey|id|user|port)=")
ASKED, UP, STARTED = "asked", "up", "started"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rental:
    """What is known of a run's machines. Written before `up`; removed when they are gone."""

    run: str
    url: str
    target: str
    state: str = ASKED
    machines: tuple[Machine, ...] = ()
    pid: int = 0  # of `up`, which outlives a killed client
    started: str = ""
    since: float = 0.0  # when it was asked for, for a reader


class Records:
    """Rentals, kept in Headway's own folder: found again whatever became of the client."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or home() / "ssh" / "rented"

    def place(self, url: str) -> Path:
        """The folder with what a rental needs besides its record: its host keys, and what `up` prints."""
        return self._folder / _name(url)

    def lock(self, url: str) -> tuple[Path, str]:
        """Whoever takes a run down holds this. It lies beside its folder, which goes when the machine has gone."""
        return self._folder, f"{_name(url)}.lock"

    def read(self, url: str) -> Rental | None:
        return self._read(self.place(url) / "rental.json")

    def write(self, rental: Rental) -> Rental:
        plain = {name: getattr(rental, name) for name in Rental.__slots__ if name != "machines"}
        plain["machines"] = [as_plain(machine) for machine in rental.machines]
        open_store(str(self.place(rental.url))).write("rental.json", json.dumps(plain, indent=2).encode())
        return rental

    def forget(self, url: str) -> None:
        import shutil

        shutil.rmtree(self.place(url), ignore_errors=True)

    def untouched(self, url: str) -> Path:
        """A mark that stands while nothing has been sent to any host: then there is nothing to take down there."""
        return self.place(url) / "untouched"

    def all(self) -> list[Rental]:
        found = (self._read(path) for path in sorted(self._folder.glob("*/rental.json")))
        return [rental for rental in found if rental is not None]

    def _read(self, path: Path) -> Rental | None:
        try:
            known = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        return Rental(**{**known, "machines": tuple(from_plain(machine) for machine in known["machines"])})


def as_plain(machine: Machine) -> dict[str, Any]:
    known = {"host": machine.host, "user": machine.user, "port": machine.port, "id": machine.id}
    keys = str(machine.known_hosts) if machine.known_hosts else None
    return {**known, "known_hosts": keys}


def from_plain(known: dict[str, Any]) -> Machine:
    keys = known.get("known_hosts")
    return Machine(**{**known, "known_hosts": Path(keys) if keys else None})


def printed(text: str, keys: Path) -> list[Machine]:
    """The machines that `up` named, one a line. A key that it told is pinned before the first connection."""
    found = []
    for line in text.splitlines():
        marks = list(_FIELDS.finditer(line))
        ends = [mark.start() for mark in marks[1:]] + [len(line)] * bool(marks)
        told = {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
        if "host" not in told:
            continue
        port = int(told["port"]) if told.get("port", "").isdigit() else None
        machine = Machine(
            host=told["host"],
            user=told.get("user"),
            port=port,
            id=told.get("id", ""),
            known_hosts=keys,
            first_seen=True,
        )
        if "hostkey" in told:
            _pin(machine, told["hostkey"], keys)
            machine = replace(machine, first_seen=False)
        found.append(machine)
    return found


def fill(command: str, *, run: str, id: str = "") -> str:
    """The command with what it is about, as words of the shell."""
    return command.replace("{run}", shlex.quote(run)).replace("{id}", shlex.quote(id) if id else "")


class Provider:
    """The user's commands, run."""

    def __init__(self, options: Options, records: Records, say: Say) -> None:
        self._options, self._records, self._say = options, records, say

    def rent(self, rental: Rental, nodes: int) -> Rental:
        """Run `up` to its end. It is in a session of its own: neither Ctrl-C nor a hang-up cuts it off half-way."""
        assert self._options.up is not None
        place = self._records.place(rental.url)
        command = fill(self._options.up, run=rental.run)
        self._say(f"up: {command}")
        place.mkdir(parents=True, exist_ok=True)
        with open(place / "up.out", "wb") as out, open(place / "up.err", "wb") as err:
            env = {**os.environ, "HEADWAY_RUN": rental.run, "HEADWAY_NODES": str(nodes)}
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
            )
        rental = self._records.write(replace(rental, pid=process.pid, started=processes.started(process.pid)))
        try:
            code = process.wait(UP_S)
        except BaseException:  # Ctrl-C: it is ended with all it started; what it made is looked for and given back
            _end_group(process)
            raise
        machines = self.learned(rental)
        if code or len(machines) != nodes:
            last = _last_line(place / "up.err") or _last_line(place / "up.out")
            why = f"ended with {code}" if code else f"named {len(machines)} machines, and {nodes} are needed"
            said = f": {last}" if last else ""
            fix = "it must print host=ADDRESS id=ID for each machine, and end with 0"
            raise TargetError(f"`up` {why}{said}", where="targets", fix=fix)
        return self._records.write(replace(rental, state=UP, machines=tuple(machines)))

    def learned(self, rental: Rental) -> list[Machine]:
        """What `up` has printed so far."""
        place = self._records.place(rental.url)
        try:
            text = (place / "up.out").read_text(errors="replace")
        except OSError:
            return []
        return printed(text, place / "known_hosts")

    def give_back(self, rental: Rental) -> tuple[list[str], list[str]]:
        """Run `down` for all there is, and look again. What was there, and what is left."""
        assert self._options.down is not None
        self._await_up(rental)
        ids = [machine.id for machine in rental.machines or self.learned(rental)]
        listed = self.left(rental, ids)
        ids = ids or [_id_of(line) for line in listed or []]
        if listed == []:
            return ids, []  # gone already
        for id in ids or [""]:
            self._run("down", self._options.down, rental.run, id)
        return ids or ["(unnamed)"], self._gone(rental, ids)

    def left(self, rental: Rental, ids: Sequence[str]) -> list[str] | None:
        """What the provider still has of this run; None where nobody can be asked."""
        command = self._options.list
        if command is None:
            return None
        lines: dict[str, None] = {}
        for id in ids if "{id}" in command and ids else [""]:
            for line in self._run("list", command, rental.run, id).splitlines():
                if line.strip():
                    lines[line.strip()] = None
        return list(lines)

    def _gone(self, rental: Rental, ids: Sequence[str]) -> list[str]:
        limit, pause = time.monotonic() + self._options.gone, LOOK_S
        while listed := self.left(rental, ids):
            if time.monotonic() > limit:
                return listed
            time.sleep(pause)
            pause = min(LONGEST_LOOK_S, pause * 1.5)
        return []

    def _await_up(self, rental: Rental) -> None:
        """A killed client's `up` may be at work still: what it is about to make must not be missed."""
        limit = time.monotonic() + UP_S
        while processes.alive(rental.pid, rental.started) and time.monotonic() < limit:
            time.sleep(LOOK_S)

    def _run(self, name: str, command: str, run: str, id: str) -> str:
        call = fill(command, run=run, id=id)
        if name == "down":
            self._say(f"down: {call}")
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", call], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
            )
        except subprocess.TimeoutExpired:
            raise TargetError(f"`{name}` has not ended for {ANSWER_S:.0f} s: {call}", fix=call) from None
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it gave no reason")
            raise TargetError(f"`{name}` ended with {done.returncode}: {last.strip()[:300]}", fix=call)
        return done.stdout


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number, within_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(within_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _pin(machine: Machine, key: str, keys: Path) -> None:
    keys.parent.mkdir(parents=True, exist_ok=True)
    line = f"{alias(machine)} {key}\n"
    known = keys.read_text() if keys.exists() else ""
    if line not in known:
        keys.write_text(known + line)


def _id_of(line: str) -> str:
    named = re.search(r"(?:^|\s)id=(\S+)", line)
    return named[1] if named else line.split()[0]


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _name(url: str) -> str:
    return f"{url.rstrip('/').rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
