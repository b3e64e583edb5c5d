"""The checkpoint manager: decides when to take a checkpoint, collects the state, and restores it on resume.

Also removes stale temporary files that killed writers left in a run folder on disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.errors import BadInput, HeadwayError, NoCheckpoint, RunFailed
from headway.storage import local_path
from headway.storage.base import TEMPORARY, Store
from headway.training import determinism
from headway.training.checkpoint.index import CheckpointIndex
from headway.training.checkpoint.reader import CheckpointReader, Damage, Loaded
from headway.training.checkpoint.serialization import Damaged, flatten
from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot, lease_is_ours
from headway.training.context import Session, say
from headway.training.finite import FiniteCheck
from headway.training.optim import Average
from headway.training.progress_state import CheckpointSchedule, Scores, TrainState

# Stale temporary files

OLD_S = 3600.0  # a younger file may still be being written


def sweep(store: Store, *, old_s: float = OLD_S) -> int:
    """Delete stale temporary files of killed writers; return their number.

    Only for run folders on disk: a bucket shows no object before it is complete. Listings hide these files. Age is
    measured by the clock of the file system, because this machine's clock may have jumped. A writer that loses a file
    it is still writing notices and writes it again.
    """
    root = local_path(store.url)
    if root is None or not Path(root).is_dir():
        return 0
    try:
        now = _clock_of(Path(root))
        found = [Path(folder, name) for folder, _, names in os.walk(root) for name in names if _is_ours(name)]
        old = [path for path in found if now - path.stat().st_mtime > old_s]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError:  # no permission, or deleted by another process: not worth failing the attempt
        return 0
    return len(old)


def _is_ours(name: str) -> bool:
    return name.startswith(TEMPORARY)


def _clock_of(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY) as probe:
        return os.fstat(probe.fileno()).st_mtime


RESERVED = ("run",)  # the key of the run's own state


class CheckpointManager:
    """Collects a run's state (models, optimizers, position, scores), saves it as checkpoints, and restores it."""

    def __init__(
        self, session: Session, flush_metrics: Callable[[int], None], modules: Sequence[nn.Module] = ()
    ) -> None:
        self._session = session
        job, world = session.identity.job, session.identity.world
        self.position, self.scores = TrainState(), Scores()
        self.schedule = CheckpointSchedule(job.checkpoint, spot=job.resources.spot)
        self.objects: dict[str, Any] = {}
        self.finite = FiniteCheck(modules, self.objects)
        self.data: dict[str, Any] = {}  # the dataset's fingerprint and length
        self._catalogue = CheckpointIndex(
            session.store,
            job.checkpoint,
            still_ours=lambda: lease_is_ours(session.store, session.identity.attempt),
        )
        self._archive = CheckpointReader(session.store, say=session.say)
        self.environment = determinism.environment(world, session.device)
        self.saver = AsyncCheckpointWriter(
            session.store,
            RankSlot(rank=world.rank, ranks=world.size, attempt=session.identity.attempt),
            self._catalogue,
            session.control,
            environment=self.environment,
            flush_metrics=flush_metrics,
            pin=session.device.type == "cuda",
        )
        self.resumed_attempt: int | None = None  # the attempt that wrote the checkpoint this one resumed from
        self._turns: dict[int, int] = {}  # how many snapshots of the newest step were taken before the last one
        self._names: list[str] = []  # names to give to the next checkpoint
        self._score: float | None = None
        self._taken: tuple[int, ...] | None = None  # the position of the newest snapshot
        self._began = self._here
        self.prepared = False  # whether the staging buffer was requested

    # Restore

    def restore(self, objects: Mapping[str, Any]) -> Loaded | None:
        """Load the newest valid checkpoint into `objects`; return it, or None if the run never had one."""
        _check(objects)
        for name, thing in objects.items():
            self.finite.accept(thing, name)
        self.objects.update(objects)
        loaded = self._choose()
        if loaded is None:
            return None
        self._load(loaded)
        self._catalogue.protected = loaded.step
        self.resumed_attempt = int(loaded.manifest.get("attempt", 0))
        return loaded

    def _choose(self) -> Loaded | None:
        """Choose the checkpoint on rank 0 and broadcast its step, so that all ranks resume from the same one."""
        session = self._session
        damaged: list[Damage] = []
        trouble: HeadwayError | None = None
        loaded: Loaded | None = None
        if session.first:
            try:
                self._catalogue.adopt(self._archive.recorded())
                loaded = self._archive.newest(damaged)
                if loaded is None:
                    self._look_for_traces()
            except HeadwayError as error:
                trouble = error
        choice = -2.0 if trouble else float(loaded.step) if loaded else -1.0
        choice = session.group.broadcast([choice])[0]
        for damage in damaged:
            say(f"the checkpoint of step {damage.step} is damaged and was passed over: {damage.why}")
            session.event("damaged", step=damage.step, why=damage.why)
            self._catalogue.forget(damage.step)
        if trouble is not None:
            raise trouble
        if session.first and lease_is_ours(session.store, session.identity.attempt):
            self._archive.ask(self._catalogue.settle)
            sweep(session.store)
        if choice == -2:
            raise NoCheckpoint("rank 0 could not choose a checkpoint: see its log")
        if choice >= 0 and loaded is None:
            loaded = self._load_as_told(int(choice))
        if loaded is not None:
            session.event("restored", step=loaded.step, fallback=bool(damaged))
        return loaded

    def _load_as_told(self, step: int) -> Loaded:
        try:
            return self._archive.load(step)
        except Damaged as damage:
            raise NoCheckpoint(f"rank 0 could read the checkpoint of step {step}, this one not: {damage}") from None

    def _look_for_traces(self) -> None:
        """Raise NoCheckpoint if the events record a commit although no checkpoint is left."""
        from headway.rundir.layout import RunFolder

        session = self._session
        if session.identity.attempt <= 1:
            return
        commits = [event for event in RunFolder(session.store).events() if event.get("kind") == "checkpoint"]
        if commits:
            raise NoCheckpoint(
                f"attempt {commits[-1]['attempt']} committed step {commits[-1].get('step')}, and no checkpoint is left",
                where=f"{session.store.url}/checkpoints",
                fix="restore the files, or start a new run: this one would start again from step 0",
            )

    def _load(self, loaded: Loaded) -> None:
        state = dict(loaded.state)
        own = state.pop("run")
        missing, extra = sorted(self.objects.keys() - state.keys()), sorted(state.keys() - self.objects.keys())
        if missing or extra:
            words = [f"it lacks {name}" for name in missing] + [f"nothing was given for its {name}" for name in extra]
            raise BadInput(
                f"the checkpoint of step {loaded.step} does not fit: {', '.join(words)}",
                fix="give run.restore the same names as when it was written",
            )
        for name, thing in self.objects.items():
            thing.load_state_dict(state[name])
        self.position = TrainState(**own["position"])
        self.scores = Scores(**own["scores"])
        self._began = self._here
        self._compare(own, loaded)

    def _compare(self, own: Mapping[str, Any], loaded: Loaded) -> None:
        changed = determinism.differences(loaded.environment, self.environment)
        if changed:
            self._session.say(f"not the machine of the checkpoint, so not to the bit: {', '.join(changed)}")
            self._session.event("changed", what=changed)
        if own["data"] and self.data and own["data"] != self.data:
            self._session.say(f"the data is not what the checkpoint saw: {own['data']} → {self.data}")
            self._session.event("changed", what=["data"])
            if self.position.batch and own["data"].get("steps") != self.data.get("steps"):
                raise BadInput(
                    f"the checkpoint stands in the middle of an epoch (batch {self.position.batch}) of "
                    f"{own['data'].get('steps')} batches, which now has {self.data.get('steps')}",
                    fix="bring back the data and batch size, or start a new run with init_from",
                )

    # Save

    def name_next(self, name: str, score: float | None = None) -> None:
        """Give this name (and score) to the next checkpoint."""
        if name not in self._names:
            self._names.append(name)
        if score is not None:
            self._score = score

    def judge(self, name: str, value: float) -> bool:
        """Record a score, where higher is better; return whether it is the best so far.

        If it is, and `keep_best` is set, the next checkpoint gets this name.
        """
        better = self.scores.better(name, value, self.position.step)
        if better and self._session.identity.job.checkpoint.keep_best:
            self.name_next(name, value)
        return better

    def due(self, step: int) -> bool:
        """Return whether to take a checkpoint after this step.

        Unnamed ones are postponed while a named snapshot waits to be written.
        """
        if self._names:
            return True
        return self.schedule.due_after_step(step) and not self.saver.crowded

    @property
    def due_after_epoch(self) -> bool:
        passed = self.position.passed
        keep = self.schedule.name_to_keep(-1, passed, epoch_ended=True)
        return bool(self._names) or keep is not None or self.schedule.due_after_epoch(passed)

    @property
    def fresh(self) -> bool:
        """Whether the position has not changed since the start or the restore."""
        return self._here == self._began

    def prepare(self) -> None:
        """Allocate the staging buffer, and fail early on state that cannot be saved.

        Call once the optimizer has its state.
        """
        self.prepared = True
        if not self.objects:
            return
        _, tensors = flatten(self._state())
        self.saver.prepare(tensors, self._spread(tensors))

    def take(self, *, epoch_ended: bool = False) -> None:
        """Snapshot the current state and write it in the background. Raises RunFailed if it is not finite."""
        self.require_finite()
        if not self.objects:
            return
        position = self.position
        keep = self.schedule.name_to_keep(position.step, position.passed, epoch_ended=epoch_ended)
        if keep is not None:
            self.name_next(keep)
        tree, tensors = flatten(self._state())
        moment = self._moment(tree, names=tuple(self._names), score=self._score, forever=keep is not None)
        self._names, self._score = [], None
        self.schedule.taken()
        self._taken = self._here
        self.saver.take(moment, tensors, self._spread(tensors))

    def hold(self) -> None:
        """Snapshot the current state, to be written only if the run is stopped before the next snapshot."""
        if self.objects and not self.taken_here:
            self.require_finite()
            tree, tensors = flatten(self._state())
            self.saver.hold(self._moment(tree), tensors, self._spread(tensors))

    def require_finite(self) -> None:
        """Raise RunFailed if weights are not finite: such a state is never saved, named or exported."""
        found = self.finite.trouble()
        if found is not None:
            name, what = found
            raise RunFailed(
                f"{name} holds {what}: this state is neither kept nor exported, an earlier checkpoint stands",
                where=f"step {self.position.step}",
                fix="lower the learning rate or clip gradients (clip=1.0), and start again from the newest checkpoint",
            )

    def _moment(self, tree: Any, **more: Any) -> CheckpointRequest:
        """Make the request of a snapshot, numbered by `turn` within its step.

        Every request counts, even one that is never written, so that all ranks use the same file names.
        """
        step = self.position.step
        self._turns = {step: self._turns.get(step, -1) + 1}
        return CheckpointRequest(step=step, epoch=self.position.passed, tree=tree, turn=self._turns[step], **more)

    def load_best(self) -> int:
        """Load the best checkpoint's weights into the modules and return its step.

        If there is none, keep the current weights and return the current step.
        """
        step = self._catalogue.newest_best
        if step is None:
            return self.position.step
        loaded = self._archive.load(step)
        for name, thing in self.objects.items():
            if isinstance(thing, nn.Module | Average):
                thing.load_state_dict(loaded.state[name])
        return step

    @property
    def taken_here(self) -> bool:
        """Whether the newest snapshot is of the current position."""
        return self._taken == self._here

    @property
    def _here(self) -> tuple[int, ...]:
        return self.position.step, self.position.stage, self.position.passed, self.position.batch

    def _state(self) -> dict[str, Any]:
        own = {"position": self.position.as_dict(), "scores": self.scores.as_dict(), "data": dict(self.data)}
        return {**{name: thing.state_dict() for name, thing in self.objects.items()}, "run": own}

    def _spread(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the tensors that are identical on all ranks: parameters and optimizer state, written by any rank.

        All others are saved from rank 0.
        """
        alike: set[str] = set()
        for name, thing in self.objects.items():
            if isinstance(thing, Optimizer | Average):
                alike.update(path for path in tensors if path.startswith(f"{name}/"))
            elif isinstance(thing, nn.Module):
                alike.update(f"{name}/{key}" for key, _ in thing.named_parameters())
        return [path for path in tensors if path in alike]


def _check(objects: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        if name in RESERVED or "/" in name:
            raise BadInput(f"{name!r} cannot be the name of something to restore", fix="call it something else")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise BadInput(
                f"{name} ({type(thing).__name__}) has no state_dict and load_state_dict",
                fix="give it both, or do not pass it to run.restore",
            )
