"""Files that a killed writer had begun and never named: hidden from every listing, and swept by the next attempt.

Only in folders; a bucket shows nothing before it is whole. What somebody may still be writing is younger than an hour,
by the clock of the disk itself: that of this machine may have jumped.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headway.storage import local_path
from headway.storage.base import Store
from headway.storage.keys import TEMPORARY

OLD_S = 3600.0


def sweep(store: Store, *, old_s: float = OLD_S) -> int:
    """How many were removed. Whoever loses one that it was still writing finds it gone, and writes it again."""
    root = local_path(store.url)
    if root is None or not Path(root).is_dir():
        return 0
    try:
        now = _clock_of(Path(root))
        found = [Path(folder, name) for folder, _, names in os.walk(root) for name in names if _is_ours(name)]
        old = [path for path in found if now - path.stat().st_mtime > old_s]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError:  # not allowed, or removed by another: rubbish is not worth an attempt
        return 0
    return len(old)


def _is_ours(name: str) -> bool:
    return name.startswith(TEMPORARY)


def _clock_of(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY) as probe:
        return os.fstat(probe.fileno()).st_mtime
