"""Translate the paths of a run's copy of the code to the user's own, in tracebacks that are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from headway.rundir.layout import RunFolder


@dataclass(frozen=True, slots=True)
class SourcePaths:
    """Where a run's code is on its machine (`folder`), and the project's folder on the user's machine (`project`).

    Without a known project's folder, translated paths are relative to it.
    """

    folder: str = ""
    project: str = "."

    @classmethod
    def of(cls, folder: RunFolder, events: Sequence[dict[str, Any]] | None = None) -> SourcePaths:
        """Read both from a run's records; translates nothing if they cannot be read."""
        try:
            found = folder.events() if events is None else events
            project = folder.plan().project or "."
        except (HeadwayError, ValueError):
            return cls()
        started = [str(event["folder"]) for event in found if event.get("kind") == "started" and event.get("folder")]
        return cls(folder=started[-1] if started else "", project=project)

    def translate(self, line: str) -> str:
        """Replace the copy's path by the user's own in a line of a traceback; return any other line as it is."""
        if not self.folder or self.folder == self.project or self.folder not in line or not _FRAME.search(line):
            return line
        to = "" if self.project == "." else f"{self.project}/"
        return line.replace(f'"{self.folder}/', f'"{to}')


_FRAME = re.compile(r'File ".+", line \d+')
