"""Folders and buckets that the dashboard was given: looked through in the background, again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headway.errors import HeadwayError
from headway.ledger import Ledger
from headway.runfolder import RunFolder
from headway.runs import row_of
from headway.storage import join, open_store, subfolders

log = logging.getLogger("headway.ui")

_AGAIN_S: Final = 15.0
_AT_ONCE: Final = 16  # a look at a run is a handful of round trips where it is in a bucket
_A_BATCH: Final = 100  # runs, after which those found so far are listed


class Places:
    """Every run below `outputs` comes into the index: those that are there, and those that are started later."""

    def __init__(self, ledger: Ledger, outputs: Sequence[str]) -> None:
        self._ledger = ledger
        self._roots = [open_store(each) for each in outputs]
        self._seen: set[str] = set()
        self.looking = {root.url for root in self._roots}  # those that have not been looked through once
        self._over = threading.Event()

    def start(self) -> None:
        """Raises at once where a place cannot be listed at all."""
        for root in self._roots:
            next(iter(subfolders(root)), None)
        if self._roots:
            threading.Thread(target=self._watch, name="headway-places", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def look(self) -> int:
        """Once through all of them; how many runs were new."""
        return sum(map(self._look, range(len(self._roots))))

    def _look(self, number: int) -> int:
        root = self._roots[number]
        fresh = [url for name in subfolders(root) if (url := join(root.url, name)) not in self._seen]
        found = 0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(fresh), _A_BATCH):
                batch = fresh[start : start + _A_BATCH]
                rows = pool.map(lambda url: row_of(RunFolder(open_store(url))), batch)
                known = [row for row in rows if row is not None]
                self._ledger.record(*known)
                self._seen.update(row.url for row in known)  # half a folder is looked at again: it may become whole
                found += len(known)
        self.looking.discard(root.url)
        return found

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except (HeadwayError, OSError) as error:  # out of reach for a moment: said, and tried again
                log.warning("%s", error)
            if self._over.wait(_AGAIN_S):
                return
