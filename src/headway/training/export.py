"""Export of a bundle into the run folder. `bundle.json` is written last, so that a partial bundle is never visible."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headway.bundle.format import CONFIG, RECORD, WEIGHTS, to_json
from headway.bundle.publish import publish
from headway.core.errors import BadInput, HeadwayError
from headway.model import Model
from headway.model.bundling import complete_bundle, is_needed
from headway.model.code import has_module, load_class
from headway.rundir.history import scores_at
from headway.rundir.layout import RunFolder
from headway.rundir.lease import LeaseLost
from headway.storage import join
from headway.storage.base import Store
from headway.training.checkpoint.index import CheckpointIndex
from headway.training.checkpoint.reader import CheckpointReader
from headway.training.checkpoint.weights import as_safetensors, weights_of
from headway.training.checkpoint.writer import lease_is_ours
from headway.training.context import Session


class Bundle(Protocol):
    """Protocol of what `run.finish` and `run.on_export` export, such as a `headway.bundle.format.BundleParts`.

    Example:
        >>> class Weights:
        ...     def write(self, folder):
        ...         (folder / "weights.txt").write_text("0.5")
        >>> run.finish(Weights())
        >>> from headway.storage import open_store
        >>> open_store(run.folder).read("export/weights.txt")
        b'0.5'
    """

    def write(self, folder: Path) -> None:
        """Write the files of the exported model.

        Args:
            folder: An empty folder. With a bundle.json in it, the files are published atomically; else one by one.
        """


def export(bundle: Bundle, session: Session, log: Callable[[str], None]) -> None:
    """Write the bundle to the run folder, and publish it where the job says. Raises LeaseLost if superseded."""
    if not lease_is_ours(session.store, session.rank_info.attempt):
        raise LeaseLost("another attempt has taken over this run", where=session.store.url)
    with tempfile.TemporaryDirectory(prefix="headway-export-") as name:
        folder, began = Path(name), time.monotonic()
        bundle.write(folder)
        url = join(session.store.url, "export")
        if (folder / RECORD).exists():
            publish(folder, url)
        else:
            upload(folder, session.store)
        session.event("export", url=url, seconds=round(time.monotonic() - began, 3))
        log("exported the model to export/ in the run folder" if session.supervised else f"exported to {url}")
        to = session.rank_info.job.export.to
        if to:
            publish(folder, to)
            log(f"published to {to}")


def upload(folder: Path, store: Store) -> None:
    """Upload the files of a script's own bundle, which has no bundle.json, one by one."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.write(f"export/{path.relative_to(folder).as_posix()}", path)


def model_bundle(model: type[Model] | None, session: Session) -> Bundle | None:
    """Return the bundle of the script's own model class, or of the one that the job names; None if there is neither."""
    named = session.rank_info.job.model
    if model is None and (named is None or not has_module(named, Path.cwd())):
        return None
    module = getattr(model, "__module__", "")
    if model is not None and module == "__main__":
        raise BadInput(
            f"{model.__name__} is defined in the program itself, which would train again when it is imported",
            fix="move the class to a module of its own, such as serving.py",
        )
    if model is None:
        try:
            return OwnModelBundle(str(named), load_class(str(named), Path.cwd()), session)
        except HeadwayError as error:
            session.log(f"the model is not exported: {error}")
            return None
    reference = f"{module}:{model.__name__}"
    return OwnModelBundle(reference, model, session)


class OwnModelBundle:
    """The best weights of the run, the files that the class names, and its code."""

    def __init__(self, reference: str, cls: type[Model], session: Session) -> None:
        self._reference, self._cls, self._session = reference, cls, session

    def write(self, folder: Path) -> None:
        """Write all files, bundle.json last."""
        job, store = self._session.rank_info.job, self._session.store
        for path in sorted(Path.cwd().rglob("*")) if self._cls.files else ():
            name = path.relative_to(Path.cwd()).as_posix()
            if path.is_file() and is_needed(name, tuple(self._cls.files)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)
        reader = CheckpointReader(store)
        index = CheckpointIndex(store, job.checkpoint)
        index.add_existing(reader.list_commits())
        best = index.newest_best
        loaded = reader.load_newest([]) if best is None else reader.load(best)
        if loaded is not None:
            (folder / WEIGHTS).write_bytes(as_safetensors(weights_of(loaded.state)))
            (folder / CONFIG).write_bytes(to_json(dict(job.config)))
        metrics = {} if loaded is None else scores_at(RunFolder(store), loaded.step)
        complete_bundle(
            folder,
            reference=self._reference,
            cls=self._cls,
            root=Path.cwd(),
            name=job.export.name or job.name,
            metrics=metrics,
        )
