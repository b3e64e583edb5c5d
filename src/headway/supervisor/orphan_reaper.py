"""A small process that kills what the ranks of a killed supervisor have started.

The kernel kills the ranks with the supervisor, but not their children (data loaders, for example). This process reads
commands from a pipe that the supervisor writes: `+PGID` and `-PGID` add and remove a rank's process group,
`label NAME=VALUE` names a variable in the environment of all their descendants, `folder PATH` a temporary folder of the
supervisor, and `bye` announces a clean exit. If the pipe ends without `bye`, this process kills the groups and every
process that has the label, and removes the folder.
Run as a file, with `python -I -S`; imports nothing from Headway.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

_SWEEPS = 20  # repeated, because a process may fork during the scan


def main() -> None:
    groups: set[int] = set()
    labels: list[bytes] = []
    folders: list[str] = []
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "bye":
            return
        if word == "label":
            labels.append(rest.encode())
        elif word == "folder":
            folders.append(rest)
        elif word.startswith("+"):
            groups.add(int(word[1:]))
        else:
            groups.discard(int(word[1:]))
    for group in groups:
        kill(-group)
    for _ in range(_SWEEPS):
        found = labelled(labels)
        if not found:
            break
        for pid in found:
            kill(pid)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # has exited, or the pid now belongs to another user


def labelled(labels: list[bytes]) -> list[int]:
    """Return the processes that have one of the labels in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # has exited, or belongs to another user
        if any(label in variables for label in labels):
            found.append(int(name))
    return found


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main()
