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

from headway.core.errors import BadInput, NoCheckpoint, RunFailed
from headway.storage import local_path
from headway.storage.base import TEMPORARY_PREFIX, Store
from headway.training import determinism
from headway.training.checkpoint.frozen import frozen_names
from headway.training.checkpoint.index import CheckpointIndex
from headway.training.checkpoint.reader import CheckpointReader, LoadedCheckpoint, SkippedCheckpoint, none_readable
from headway.training.checkpoint.restore import read_together
from headway.training.checkpoint.serialization import CheckpointDamaged, flatten
from headway.training.checkpoint.writer import AsyncCheckpointWriter, CheckpointRequest, RankSlot, lease_is_ours
from headway.training.context import Session, log_line
from headway.training.nonfinite import WeightCheck
from headway.training.optim import Average
from headway.training.progress_state import CheckpointSchedule, Scores, TrainState
from headway.training.step_times import CHECKPOINT, TIMES

# Stale temporary files

STALE_S = 3600.0  # a younger file may still be being written


def remove_stale_files(store: Store, *, old_s: float = STALE_S) -> int:
    """Delete stale temporary files of killed writers; return their number.

    Only for run folders on disk: a bucket shows no object before it is complete. Listings hide these files. Age is
    measured by the clock of the file system, because this machine's clock may have jumped. A writer that loses a file
    it is still writing notices and writes it again.
    """
    root = local_path(store.url)
    if root is None or not Path(root).is_dir():
        return 0
    try:
        now = _file_system_time(Path(root))
        found = [Path(folder, name) for folder, _, names in os.walk(root) for name in names if _is_temporary(name)]
        old = [path for path in found if now - path.stat().st_mtime > old_s]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError:  # no permission, or deleted by another process: not worth failing the attempt
        return 0
    return len(old)


def _is_temporary(name: str) -> bool:
    return name.startswith(TEMPORARY_PREFIX)


def _file_system_time(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX) as probe:
        return os.fstat(probe.fileno()).st_mtime


RESERVED = ("run",)  # the key of the run's own state


class CheckpointManager:
    """Collects a run's state (models, optimizers, position, scores), saves it as checkpoints, and restores it."""

    def __init__(
        self, session: Session, flush_metrics: Callable[[int], None], modules: Sequence[nn.Module] = ()
    ) -> None:
        self._session = session
        job, world = session.rank_info.job, session.rank_info.world
        self.position, self.scores = TrainState(), Scores()
        self.schedule = CheckpointSchedule(job.checkpoint, spot=job.resources.spot)
        self.objects: dict[str, Any] = {}
        self.weight_check = WeightCheck(modules, self.objects)
        self.data: dict[str, Any] = {}  # the dataset's fingerprint and length
        self.read_data_state: Callable[[TrainState], list[str] | None] = lambda position: None  # one text per rank
        self.data_state: list[str] | None = None  # as restored
        self._index = CheckpointIndex(
            session.store,
            job.checkpoint,
            holds_lease=lambda: lease_is_ours(session.store, session.rank_info.attempt),
        )
        self._reader = CheckpointReader(session.store, log=session.log)
        self.environment = determinism.describe_environment(world, session.device)
        self.writer = AsyncCheckpointWriter(
            session.store,
            RankSlot(rank=world.rank, ranks=world.size, attempt=session.rank_info.attempt),
            self._index,
            session.control,
            environment=self.environment,
            flush_metrics=flush_metrics,
            device=session.device,
        )
        self.resumed_attempt: int | None = None  # the attempt that wrote the checkpoint this one resumed from
        self._snapshot_counts: dict[
            int, int
        ] = {}  # how many snapshots of the newest step were taken before the last one
        self._names: list[str] = []  # names to give to the next checkpoint
        self._score: float | None = None
        self._snapshot_position: tuple[int, ...] | None = None  # the position of the newest snapshot
        self._start_position = self._position_key
        self.prepared = False  # whether the staging buffer was requested

    # Restore

    def restore(self, objects: Mapping[str, Any]) -> LoadedCheckpoint | None:
        """Load the newest valid checkpoint into `objects`; return it, or None if the run never had one."""
        _check(objects)
        for name, obj in objects.items():
            self.weight_check.exempt_existing(obj, name)
        self.objects.update(objects)
        loaded = self._choose()
        if loaded is None:
            return None
        self._load(loaded)
        self._index.protected = loaded.step
        self.resumed_attempt = int(loaded.manifest.get("attempt", 0))
        return loaded

    def _choose(self) -> LoadedCheckpoint | None:
        """Load the newest intact checkpoint, the same on all ranks; return None if the run never had one.

        Every file is read by one rank, which verifies it and sends it to the others: the store serves each byte once.
        """
        session, group = self._session, self._session.group
        damaged: list[SkippedCheckpoint] = []
        candidates: list[int] = []
        if group.run_together(lambda: self._list_candidates(candidates) if session.is_first else None):
            raise NoCheckpoint("rank 0 could not choose a checkpoint: see its log")
        loaded: LoadedCheckpoint | None = None
        while loaded is None:
            step = int(group.broadcast([float(candidates.pop() if candidates else -1)])[0])
            if step < 0:
                break
            try:
                loaded = read_together(self._reader, step, group)
            except CheckpointDamaged as damage:
                damaged.append(SkippedCheckpoint(step, str(damage)))
        for damage_found in damaged if session.is_first else ():
            log_line(f"the checkpoint of step {damage_found.step} is damaged and was skipped: {damage_found.why}")
            session.event("damaged", step=damage_found.step, why=damage_found.why)
            self._index.exclude(damage_found.step)
        if damaged and loaded is None:
            raise none_readable(session.store, damaged)
        if session.is_first and lease_is_ours(session.store, session.rank_info.attempt):
            self._reader.retry(self._index.rewrite)
            remove_stale_files(session.store)
        if loaded is not None:
            session.event("restored", step=loaded.step, fallback=bool(damaged))
        return loaded

    def _list_candidates(self, steps: list[int]) -> None:
        """Add the steps of all recorded checkpoints to `steps`."""
        entries = self._reader.list_commits()
        self._index.add_existing(entries)
        if not entries:
            self._check_no_commit_lost()
        steps += [entry.step for entry in entries]

    def _check_no_commit_lost(self) -> None:
        """Raise NoCheckpoint if the events record a commit although no checkpoint is left."""
        from headway.rundir.layout import RunFolder

        session = self._session
        if session.rank_info.attempt <= 1:
            return
        commits = [event for event in RunFolder(session.store).events() if event.get("kind") == "checkpoint"]
        if commits:
            raise NoCheckpoint(
                f"attempt {commits[-1]['attempt']} committed step {commits[-1].get('step')}, but no checkpoint is left",
                where=f"{session.store.url}/checkpoints",
                fix="restore the files, or start a new run: this one would start again from step 0",
            )

    def _load(self, loaded: LoadedCheckpoint) -> None:
        state = dict(loaded.state)
        run_state = state.pop("run")
        missing, extra = sorted(self.objects.keys() - state.keys()), sorted(state.keys() - self.objects.keys())
        if missing or extra:
            words = [f"it lacks {name}" for name in missing] + [
                f"run.restore was not given its {name}" for name in extra
            ]
            raise BadInput(
                f"the checkpoint of step {loaded.step} does not fit: {', '.join(words)}",
                fix="give run.restore the same names as when it was written",
            )
        for name, obj in self.objects.items():
            obj.load_state_dict(state[name])
        self.position = TrainState(**run_state["position"])
        self.scores = Scores(**run_state["scores"])
        self.data_state = run_state.get("data_state")
        self._start_position = self._position_key
        if loaded.frozen and self._session.is_first:
            _, tensors = flatten(self._state())
            self.writer.frozen.adopt(loaded.frozen, loaded.manifest["frozen"], tensors)
        self._compare(run_state, loaded)

    def _compare(self, run_state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
        changed = determinism.differences(loaded.environment, self.environment)
        if changed:
            self._session.log(
                "the environment differs from the checkpoint's, so results may not be bit-identical: "
                + ", ".join(changed)
            )
            self._session.event("changed", what=changed)
        if run_state["data"] and self.data and run_state["data"] != self.data:
            self._session.log(f"the data has changed since the checkpoint: {run_state['data']} → {self.data}")
            self._session.event("changed", what=["data"])
            if self.position.batch and run_state["data"].get("steps") != self.data.get("steps"):
                raise BadInput(
                    f"the checkpoint is in the middle of an epoch (batch {self.position.batch}) of "
                    f"{run_state['data'].get('steps')} batches, which now has {self.data.get('steps')}",
                    fix="restore the data and batch size, or start a new run with init_from",
                )

    # Save

    def name_next(self, name: str, score: float | None = None) -> None:
        """Give this name (and score) to the next checkpoint."""
        if name not in self._names:
            self._names.append(name)
        if score is not None:
            self._score = score

    def record_score(self, name: str, value: float) -> bool:
        """Record a score, where higher is better; return whether it is the best so far.

        If it is, and `keep_best` is set, the next checkpoint gets this name.
        """
        better = self.scores.record(name, value, self.position.step)
        if better and self._session.rank_info.job.checkpoint.keep_best:
            self.name_next(name, value)
        return better

    def due(self, step: int) -> bool:
        """Return whether to take a checkpoint after this step.

        Unnamed ones are postponed while a named snapshot waits to be written.
        """
        if self._names:
            return True
        return self.schedule.due_after_step(step) and not self.writer.must_keep_waiting

    @property
    def due_after_epoch(self) -> bool:
        passed = self.position.passed
        keep = self.schedule.name_to_keep(-1, passed, epoch_ended=True)
        return bool(self._names) or keep is not None or self.schedule.due_after_epoch(passed)

    @property
    def unchanged(self) -> bool:
        """Whether the position has not changed since the start or the restore."""
        return self._position_key == self._start_position

    def prepare(self) -> None:
        """Allocate the staging buffer, and fail early on state that cannot be saved.

        Call once the optimizer has its state.
        """
        self.prepared = True
        if not self.objects:
            return
        _, tensors = flatten(self._state())
        self.writer.prepare(tensors, self._replicated(tensors), frozen_names(self.objects, tensors))

    def save(self, *, epoch_ended: bool = False) -> None:
        """Snapshot the current state and write it in the background. Raises RunFailed if it is not finite."""
        self.require_finite()
        if not self.objects:
            return
        position = self.position
        keep = self.schedule.name_to_keep(position.step, position.passed, epoch_ended=epoch_ended)
        if keep is not None:
            self.name_next(keep)
        tree, tensors = flatten(self._state())
        request = self._make_request(tree, names=tuple(self._names), score=self._score, forever=keep is not None)
        self._names, self._score = [], None
        self.schedule.record_checkpoint()
        self._snapshot_position = self._position_key
        with TIMES.during("checkpoint", CHECKPOINT):
            self.writer.save(request, tensors, self._replicated(tensors), frozen_names(self.objects, tensors))

    def stage(self) -> None:
        """Snapshot the current state, to be written only if the run is stopped before the next snapshot."""
        if self.objects and not self.snapshot_is_current:
            self.require_finite()
            tree, tensors = flatten(self._state())
            frozen = frozen_names(self.objects, tensors)
            self.writer.stage(self._make_request(tree), tensors, self._replicated(tensors), frozen)

    def require_finite(self) -> None:
        """Raise RunFailed if weights are not finite: such a state is never saved, named or exported."""
        found = self.weight_check.find_nonfinite()
        if found is not None:
            name, what = found
            raise RunFailed(
                f"{name} contains {what}: this state is neither saved nor exported; earlier checkpoints are kept",
                where=f"step {self.position.step}",
                fix="lower the learning rate or clip gradients (clip=1.0), and start again from the newest checkpoint",
            )

    def _make_request(self, tree: Any, **more: Any) -> CheckpointRequest:
        """Make the request of a snapshot, numbered by `turn` within its step.

        Every request counts, even one that is never written, so that all ranks use the same file names.
        """
        step = self.position.step
        self._snapshot_counts = {step: self._snapshot_counts.get(step, -1) + 1}
        return CheckpointRequest(
            step=step, epoch=self.position.passed, tree=tree, turn=self._snapshot_counts[step], **more
        )

    def load_best(self) -> int:
        """Load the best checkpoint's weights into the modules and return its step.

        If there is none, keep the current weights and return the current step.
        """
        step = self._index.newest_best
        if step is None:
            return self.position.step
        loaded = self._reader.load(step)
        for name, obj in self.objects.items():
            if isinstance(obj, nn.Module | Average):
                obj.load_state_dict(loaded.state[name])
        return step

    @property
    def snapshot_is_current(self) -> bool:
        """Whether the newest snapshot is of the current position."""
        return self._snapshot_position == self._position_key

    @property
    def _position_key(self) -> tuple[int, ...]:
        return self.position.step, self.position.stage, self.position.passed, self.position.batch

    def _state(self) -> dict[str, Any]:
        run_state: dict[str, Any] = {
            "position": self.position.as_dict(),
            "scores": self.scores.as_dict(),
            "data": dict(self.data),
        }
        data_state = self.read_data_state(self.position)
        if data_state is not None:
            run_state["data_state"] = data_state
        return {**{name: obj.state_dict() for name, obj in self.objects.items()}, "run": run_state}

    def _replicated(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the tensors that are identical on all ranks: parameters and optimizer state, written by any rank.

        All others are saved from rank 0.
        """
        alike: set[str] = set()
        for name, obj in self.objects.items():
            if isinstance(obj, Optimizer | Average):
                alike.update(path for path in tensors if path.startswith(f"{name}/"))
            elif isinstance(obj, nn.Module):
                alike.update(f"{name}/{key}" for key, _ in obj.named_parameters())
        return [path for path in tensors if path in alike]


def _check(objects: Mapping[str, Any]) -> None:
    for name, obj in objects.items():
        if name in RESERVED or "/" in name:
            raise BadInput(f"run.restore cannot use the reserved name {name!r}", fix="choose another name")
        if not (hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")):
            raise BadInput(
                f"{name} ({type(obj).__name__}) has no state_dict and load_state_dict",
                fix="give it both, or do not pass it to run.restore",
            )
