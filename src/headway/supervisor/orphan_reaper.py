"""A small process that outlives a killed supervisor by a moment, to end all that its ranks have started.

The kernel kills the ranks with the supervisor, but not their children (data loaders, say). This process reads the
supervisor's pipe: `+PGID` and `-PGID` name the ranks' process groups, `label NAME=VALUE` what stands in the environment
of everything below them, `folder PATH` a temporary folder of ours, `bye` that all is in order. At the end of the pipe
without a `bye` it kills the groups and whatever carries the label, and removes the folder.
Run as a file, with `python -I -S`; no imports from Headway.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

_SWEEPS = 20  # a process may fork while it is being looked for


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
        pass  # gone, or became somebody else


def labelled(labels: list[bytes]) -> list[int]:
    """Living processes with one of the labels in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        if any(label in variables for label in labels):
            found.append(int(name))
    return found


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main()
