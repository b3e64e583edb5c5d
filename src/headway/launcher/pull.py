"""Copy a run's folder, or part of it, from wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.bundle import read_record
from headway.core.errors import BadInput, HeadwayError, UnknownRun
from headway.storage import fetch_file, join, local_path, open_store, require_url

Report = Callable[[int, int], None]  # (bytes so far, of all)
_OF_ONE_MACHINE = ("docker/", "local/")  # files of a target on the machine that ran it


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What was copied, and to where.

    Attributes:
        to: The folder.
        files: Number of files.
        bytes: Their total size.
    """

    to: Path
    files: int
    bytes: int


def destination(url: str, to: str | Path | None) -> Path:
    """Return the absolute folder to copy a run to: `to`, or one of the run's name. Raises BadInput for its own."""
    require_url(str(to or ""))
    folder = Path(to or url.rstrip("/").rsplit("/", 1)[-1]).resolve()
    if local_path(url) == folder:
        raise BadInput(f"{folder} is the run's own folder; there is nothing to copy", fix="headway pull RUN --to DIR")
    return folder


def copy_run(
    url: str, to: Path, *, only: Collection[str] = (), begin: Callable[[Path], None] | None = None, report: Report
) -> Pulled:
    """Copy the files of a run folder; those that are there with the same size are left as they are.

    `only`: parts of it, such as `export` or `metrics`. `begin` is called before the first file is written.
    """
    store = open_store(url)
    names = _bundle_names(join(url, "export"))
    skipped = {*names.values()}  # the same bytes as the files that bundle.json points to
    entries = (entry for entry in store.list() if not entry.key.startswith(_OF_ONE_MACHINE))
    wanted = [e for e in entries if e.key not in skipped and (not only or e.key.partition("/")[0] in only)]
    if not wanted:
        raise UnknownRun(f"there are no files to copy in {url}", fix="headway status RUN")
    if begin is not None:
        begin(to)
    done, total = 0, sum(entry.size for entry in wanted)
    for entry in wanted:
        target = to / names.get(entry.key, entry.key)
        if not target.exists() or target.stat().st_size != entry.size:
            fetch_file(store, entry.key, target, progress=partial(_add, report, done, total))
        done += entry.size
    return Pulled(to=to, files=len(wanted), bytes=total)


def _add(report: Report, before: int, total: int, got: int, of: int) -> None:
    report(before + got, total)


def _bundle_names(url: str) -> dict[str, str]:
    """Map the keys of an exported bundle's files in an object store, which hold checksums, to their plain names."""
    try:
        record = read_record(open_store(url), url)
    except HeadwayError:
        return {}  # no bundle, or a damaged one: copy what is there
    return {f"export/{entry.at}": f"export/{name}" for name, entry in record.files.items() if entry.at}
