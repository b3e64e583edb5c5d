"""`headway.start()` gives a `Run`, which does the hard parts of a loop that stays a loop.

run = headway.start()
model = run.place(model)
run.restore(model=model, optimizer=optimizer, data=feed)
for epoch in run.epochs(20):
    for batch in run.steps(feed):
        run.step(loss_sum, optimizer, weight=count)
        run.log(loss=loss_sum / count)
    run.score({"accuracy": 0.9}, best="accuracy")
run.finish(bundle)
"""

from __future__ import annotations

import atexit
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headway.errors import BadInput, RunFailed
from headway.runtime import exporting
from headway.runtime.control import say
from headway.runtime.exporting import Bundle
from headway.runtime.feed import Feed, Filler, batch_names
from headway.runtime.gradients import METRICS
from headway.runtime.identity import World
from headway.runtime.keeping import Keeping
from headway.runtime.metrics import Metrics, plain
from headway.runtime.prefetch import Prefetcher, from_feed, from_iterable
from headway.runtime.progress import Reporter
from headway.runtime.randomness import EVALUATION, MODEL, SETUP, Dice
from headway.runtime.session import Session
from headway.runtime.stepping import Alone, Optimizers, Request, Together, Wishes
from headway.runtime.stopping import RESERVE_S, Stop
from headway.spec import Job

M = TypeVar("M", bound=nn.Module)


class Run:
    """One rank's view of a run. Made by `headway.start()`."""

    def __init__(self, session: Session) -> None:
        identity = session.identity
        self._session, self._gang, self._stopping = session, session.gang, session.stopping
        self.name, self.job, self.world = identity.name, identity.job, identity.world
        self.config: Mapping[str, Any] = identity.job.config
        self.seed, self.device = identity.job.seed, session.device
        self.accumulate = int(self.config.get("accumulate", 1))
        self._metrics: Metrics | None = None
        self._keeping = Keeping(session, self._flush_metrics)
        self._dice = Dice(self.seed, self.world.rank, cuda=self.device.type == "cuda")
        self._setup_dice = Dice(self.seed)
        self._modules: list[nn.Module] = []
        self._stepper: Alone | Together = Alone() if self.world.size == 1 else Together(self._modules)
        self._prefetchers: dict[int, Prefetcher] = {}
        self._reporter: Reporter | None = None
        self._stages = 0
        self._epochs: int | None = None
        self._epoch_steps: int | None = None
        self._inside = False  # between a batch and the boundary after it
        self._micro, self._counts, self._stepped = 0, True, False
        self._agreed: Any = None
        self._pending: dict[str, Any] = {}  # logged values of the newest step, to be averaged with the next
        self._pending_weight: float | Tensor = 1.0
        self._latest: dict[str, Any] = {}
        self._restored = False
        self._export: Callable[[], Bundle] | None = None
        self._finished = False
        self._setup_dice.roll(SETUP)
        atexit.register(self._close)
        session.say(f"run {self.name} in {session.store.url}, attempt {identity.attempt}, {self._here()}")

    # What a script may ask

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self._keeping.position.step

    @property
    def epoch(self) -> int:
        return self._keeping.position.epoch

    @property
    def main(self) -> bool:
        """Whether this is rank 0."""
        return self.world.rank == 0

    @property
    def folder(self) -> str:
        """The run folder's URL."""
        return self._session.store.url

    # Before the loop

    def place(self, model: M) -> M:
        """The same module on this rank's device, with rank 0's values, ready for `step`."""
        model.to(self.device)
        self._gang.copy_from_first([*model.parameters(), *model.buffers()])
        self._modules.append(model)
        return model

    def restore(self, *, data: Any = None, **objects: Any) -> int:
        """Go on from the newest good checkpoint, or start afresh, and say which; returns the step.

        From here on everything given is part of every checkpoint, under the name it was given.
        """
        if data is not None:
            self._adopt(data)
            steps = len(data) if hasattr(data, "__len__") else None
            self._keeping.data = {"fingerprint": getattr(data, "fingerprint", None), "steps": steps}
        loaded = self._keeping.restore(objects)
        self._restored = True
        if loaded is None:
            self._session.say("no checkpoint was ever committed here: starting at step 0")
        else:
            self._session.say(f"going on from step {loaded.step} (epoch {self.epoch + 1})")
        self._begin_metrics()
        return self.global_step

    def on_export(self, bundle: Callable[[], Bundle]) -> None:
        """How to make the bundle when the budget ends the run early. The best weights are in the model when it is called."""
        self._export = bundle

    # The loop

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to do. A second call is a second stage: resumed in the right one."""
        position = self._keeping.position
        stage, self._stages = self._stages, self._stages + 1
        if stage < position.stage:
            return
        if stage > position.stage:
            position.stage, position.epoch, position.batch = stage, 0, 0
        self._begin_metrics()
        self._epochs = count
        while position.epoch < count:
            yield position.epoch
            self._end_epoch(last=position.epoch + 1 >= count)

    def steps(self, feed: Any) -> Iterator[Any]:
        """This rank's batches of the epoch, from where the run is. Between two of them it checkpoints, or stops."""
        self._stopping.interruptible = False
        position = self._keeping.position
        self._begin_metrics()
        if isinstance(self._stepper, Together):
            self._stepper.relayout()
        if not self._restored:
            self._restored = True
            self._session.say("no checkpoints will be written: run.restore was not called")
        self._epoch_steps = len(feed) if hasattr(feed, "__len__") else None
        for batch in self._batches(feed):
            self._begin_step(batch)
            yield self._to_device(batch.batch if isinstance(batch, Filler) else batch)
            self._inside = False
            if self._micro == 0:
                position.batch += 1
                self._boundary()
        self._settle()
        self._hold()

    def step(
        self,
        loss: Tensor,
        optimizer: Optimizers,
        *,
        weight: float | Tensor = 1.0,
        clip: float | None = None,
        scheduler: Any = None,
    ) -> bool:
        """Backward and update with the gradient of (all losses) / (all weights), over ranks and micro-batches.

        True when the weights have changed: with `accumulate`, on the last micro-batch only.
        """
        last = self._micro + 1 >= self.accumulate
        optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
        request = Request(loss, optimizers, weight, clip, last, self._counts)
        outcome = self._stepper.step(request, self._wishes() if last and self.world.size > 1 else _NO_WISHES)
        self._micro = 0 if last else self._micro + 1
        if not outcome.finite:
            self._not_finite()
        if not last:
            return False
        self._agreed = outcome.agreed
        if outcome.agreed is not None:
            self._record_average(outcome.agreed)
            self._pending_weight = weight if self._counts else 0.0
        self._keeping.position.step += 1
        self._stepped = True
        if scheduler is not None:
            scheduler.step()
        if not self._keeping._prepared:
            self._keeping.prepare()
        return True

    def log(self, **values: Any) -> None:
        """Numbers of this step. Read from the device later, averaged over ranks by their weights."""
        clean = {name: plain(name, value) for name, value in values.items()}
        self._latest.update(clean)
        if self.world.size > 1 and self._inside:
            self._pending.update(clean)
        elif self._metrics is not None:
            self._metrics.log(self._log_step, self._keeping.position.passed, clean)

    def score(self, values: Mapping[str, float], *, best: str | None = None, higher: bool = True) -> bool:
        """Results of an evaluation: rank 0's, on every rank. True when `best` names the best value so far."""
        self._heed_stop()
        names = sorted(values)
        numbers = self._gang.from_first([float(values[name]) for name in names])
        record = dict(zip(names, numbers, strict=True))
        if self._metrics is not None:
            self._metrics.log(self.global_step, self._keeping.position.passed, record)
        self._session.say("  ".join(f"{name} {value:.4g}" for name, value in record.items()))
        self._session.outside.event("score", step=self.global_step, **record)
        if best is None:
            return False
        if best not in record:
            raise BadInput(
                f"the best checkpoint is to be chosen by {best!r}, which is not among the scores",
                fix=f"choose one of {', '.join(names)}",
            )
        value = record[best] if higher else -record[best]
        better = self._keeping.scores.better("best", value, self.global_step)
        if better and self.job.checkpoint.keep_best:
            self._keeping.name_next("best", value)
        return better

    def evaluating(self, feed: Any) -> Iterator[Any]:
        """This rank's share of an evaluation, whole batches in turn. Given up when the run is asked to stop."""
        self._dice.roll(EVALUATION, self.global_step)
        self._adopt(feed)
        rank, size = self.world.rank, self.world.size
        for number, batch in enumerate(self._whole_batches(feed)):
            self._heed_stop()
            if isinstance(feed, Feed) or number % size == rank:
                yield self._to_device(batch)

    def total(self, value: Any) -> Any:
        """The sum over all ranks: of a number, a tensor, or a dictionary of them. Sums and counts, not means of means."""
        self._heed_stop()
        if isinstance(value, Tensor):
            return self._gang.sum_tensor(value)
        if isinstance(value, Mapping):
            return dict(zip(value, self._gang.sums([float(each) for each in value.values()]), strict=True))
        return self._gang.sums([float(value)])[0]

    def sample(self, name: str, body: bytes) -> None:
        """A picture, or anything else to look at, for the run's folder. Rank 0's only."""
        if self.main:
            self._session.store.write(f"samples/{self.global_step:08d}-{name}", body)

    def finish(self, bundle: Bundle | None = None) -> None:
        """Write what is left, export the bundle, and be done."""
        if not self._keeping.taken_here and self._stepped:
            self._take()
        self._keeping.saver.drain()
        self._check_fence()
        self._stopping.interruptible = True
        if self._stopping.asked:
            raise Stop
        if self.main and bundle is not None:
            exporting.export(bundle, self._session, say)
        if self._metrics is not None:
            self._metrics.finish()
        self._finished = True
        if not self._session.identity.supervised:
            self._session.outside.event("ended", state="finished", reason="", exit_code=0)
        self._session.say(f"finished at step {self.global_step}: {self.folder}")

    # Inside

    def _batches(self, feed: Any) -> Iterator[Any]:
        position, size, rank = self._keeping.position, self.world.size, self.world.rank
        if not isinstance(feed, Feed):
            if position.batch:
                self._session.say(
                    f"{type(feed).__name__} cannot be entered in the middle: replaying {position.batch} batches"
                )
            return from_iterable(feed, self._dice, position.passed, position.batch * self.accumulate, size)
        self._adopt(feed)
        parts = range(rank * self.accumulate, (rank + 1) * self.accumulate)
        of = size * self.accumulate
        workers = getattr(feed, "workers", 0)
        if not workers:
            return from_feed(feed, position.passed, position.batch, parts, of)
        return self._prefetcher(feed, workers).batches(position.passed, position.batch, len(feed), parts, of)

    def _whole_batches(self, feed: Any) -> Iterator[Any]:
        """For an evaluation: of a feed only this rank's, of anything else all."""
        if not isinstance(feed, Feed):
            return iter(feed)
        return (feed.batch(0, step, 0, 1) for step in range(self.world.rank, len(feed), self.world.size))

    def _prefetcher(self, feed: Feed, workers: int) -> Prefetcher:
        if id(feed) not in self._prefetchers:
            self._prefetchers[id(feed)] = Prefetcher(feed, workers, pin=self.device.type == "cuda")
        return self._prefetchers[id(feed)]

    def _adopt(self, feed: Any) -> None:
        """A feed without a seed of its own gets the run's."""
        if getattr(feed, "seed", 0) is None:
            feed.seed = self.seed

    def _begin_step(self, batch: Any) -> None:
        self._counts = not isinstance(batch, Filler)
        self._inside, self._agreed = True, None
        self._dice.roll(MODEL, self._keeping.position.step, self._micro)

    def _to_device(self, batch: Any) -> Any:
        return batch if self.device.type == "cpu" else _moved(batch, self.device)

    @property
    def _log_step(self) -> int:
        """Inside the loop's body, the step in progress or just done; elsewhere the newest."""
        return self.global_step if self._stepped or not self._inside else self.global_step + 1

    def _wishes(self) -> Wishes:
        names = sorted(self._pending)[:METRICS]
        weight = float(self._pending_weight)
        return Wishes(
            stop=self._stopping.asked,
            budget=self.main and self._stopping.over_budget(self._margin_s),
            save=self.main and self._save_due(self.global_step + 1),
            names=float(zlib.crc32(" ".join(names).encode()) % 65521),
            metrics=[weight, *(float(self._pending[name]) * weight for name in names)][:METRICS],
        )

    def _record_average(self, agreed: Any) -> None:
        """The values logged for the step before, averaged over ranks: they rode on this one's gradients."""
        names = sorted(self._pending)[: METRICS - 1]
        if not names:
            return
        own = float(zlib.crc32(" ".join(names).encode()) % 65521)
        if agreed.names == own * self.world.size and agreed.metrics[0]:
            values = {name: agreed.metrics[1 + n] / agreed.metrics[0] for n, name in enumerate(names)}
        else:  # ranks logged different things: rank 0's own stand
            values = dict(self._pending)
        self._write_pending(values)

    def _write_pending(self, values: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.log(self.global_step, self._keeping.position.passed, values)
        self._latest.update(values)
        self._pending = {}

    def _settle(self) -> None:
        """Average what was logged for the newest step now, because no next step will carry it."""
        if self.world.size == 1 or not self._pending:
            return
        names = sorted(self._pending)
        weight = float(self._pending_weight)
        totals = self._gang.sums([weight, *(float(self._pending[name]) * weight for name in names)])
        self._write_pending({name: totals[1 + n] / (totals[0] or 1.0) for n, name in enumerate(names)})

    def _save_due(self, step: int) -> bool:
        keeping = self._keeping
        return keeping.rhythm.due_after_step(step) or keeping.wanted

    @property
    def _margin_s(self) -> float:
        """What the last checkpoint and the export may need of the budget."""
        total = self._session.identity.deadline_s or 0.0
        return min(0.2 * total, 30.0 + 3 * self._keeping.saver.last_seconds)

    def _boundary(self) -> None:
        """Between two steps: the only place where training stops or is copied."""
        stepped, self._stepped = self._stepped, False
        agreed = self._agreed
        self._check_fence()
        if self.world.size == 1:
            stop, budget = self._stopping.asked, self._stopping.over_budget(self._margin_s)
            save = stepped and self._save_due(self.global_step)
        elif agreed is not None:
            stop, budget, save = agreed.stop, agreed.budget, agreed.save
        else:
            return
        if stop or budget or save:
            self._settle()
        if stop:
            self._stop()
        elif budget:
            self._end_by_budget()
        elif save:
            self._take()

    def _end_epoch(self, *, last: bool) -> None:
        self._heed_stop()
        keeping, position = self._keeping, self._keeping.position
        keeping.saver.release()
        position.epoch, position.batch, position.passed = position.epoch + 1, 0, position.passed + 1
        keep = keeping.rhythm.due_after_epoch(position.passed)
        if last or keep or keeping.wanted or keeping.keeps_epoch(position.passed):
            self._take(epoch_ended=True)

    def _take(self, *, epoch_ended: bool = False) -> None:
        self._keeping.take(epoch_ended=epoch_ended)

    def _hold(self) -> None:
        """The state after an epoch's last step, kept in case the run is stopped during what follows."""
        self._keeping.hold()

    def _heed_stop(self) -> None:
        """During an evaluation: give it up, and go on from the epoch's last step when started again."""
        self._check_fence()
        if self._stopping.asked and not self._inside:
            self._keeping.saver.write_held()
            self._leave()

    def _stop(self) -> None:
        if not self._keeping.taken_here:
            self._take()
        self._leave()

    def _leave(self) -> None:
        """Finish the last checkpoint as far as the grace period allows, and exit."""
        left = self._stopping.left_s
        if left is None:  # another rank was asked
            left = max(1.0, self._session.identity.grace_s - RESERVE_S)
        if self._keeping.saver.drain(left):
            self._session.say(f"stopped at step {self.global_step}; start again to go on")
        else:
            self._session.say(f"stopped at step {self.global_step} without its checkpoint; an earlier one stands")
        if not self._session.identity.supervised:
            self._session.outside.event("ended", state="stopped", reason="asked to stop", exit_code=143)
        raise Stop

    def _end_by_budget(self) -> None:
        """The budget is nearly spent: keep the state, export the best so far, and be done."""
        self._session.say(f"the budget ends here, at step {self.global_step}")
        if not self._keeping.taken_here:
            self._take()
        self._keeping.saver.drain()
        if self.main and self._export is not None:
            step = self._keeping.load_best()
            self._session.say(f"exporting the best so far, of step {step}")
            exporting.export(self._export(), self._session, say)
        self._session.outside.event("budget", step=self.global_step)
        raise SystemExit(0)

    def _not_finite(self) -> None:
        position = self._keeping.position
        raise RunFailed(
            f"the loss is not finite at step {position.step + 1} (epoch {position.epoch + 1}, batch {position.batch + 1})",
            fix="lower the learning rate, clip gradients (clip=1.0), or look at the batch",
        )

    def _check_fence(self) -> None:
        lost = self._keeping.saver.fenced
        if lost is not None:
            raise lost

    def _begin_metrics(self) -> None:
        if self._metrics is None and self.main:
            self._metrics = Metrics(self._session.store, self._session.identity.attempt, self.global_step)
            self._reporter = Reporter(self._look, self._session.outside, self._metrics.flush)

    def _flush_metrics(self, step: int) -> None:
        if self._metrics is not None:
            self._metrics.flush(through=step)

    def _look(self) -> dict[str, Any]:
        """For the progress line."""
        position = self._keeping.position
        numbers: dict[str, Any] = {"step": position.step, "epoch": position.epoch}
        if self._epochs is not None:
            numbers["epochs"] = self._epochs
            if self._epoch_steps:
                left = self._epochs * self._epoch_steps - position.epoch * self._epoch_steps - position.batch
                numbers["steps"] = position.step + max(0, left)
        loss = self._latest.get("loss")
        if loss is not None:
            numbers["loss"] = float(loss)
        return numbers

    def _here(self) -> str:
        kind = str(self.device)
        return f"rank {self.world.rank} of {self.world.size} on {kind}" if self.world.size > 1 else f"on {kind}"

    def _close(self) -> None:
        """At exit, however it came: what was logged and copied is written, within reason."""
        failed = not self._finished
        self._keeping.saver.close(timeout_s=30.0 if self._stopping.left_s is None else self._stopping.left_s)
        if self._reporter is not None:
            self._reporter.close()
        if self._metrics is not None and self._keeping.saver.fenced is None:
            exporting.last_words(self._metrics.finish)
        self._session.close(failed=failed)


_NO_WISHES = Wishes()


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(value, device) for value in batch)
    return batch


def start(folder: str | Path | None = None, *, config: Mapping[str, Any] | None = None, seed: int = 0) -> Run:
    """This process's run: the supervisor's, or without one a run of its own under ./runs or in `folder`.

    `config` and `seed` are for scripts started by hand; under the supervisor the job file says them.
    """
    return Run(Session(None if folder is None else str(folder), config or {}, seed))


__all__ = ["Job", "Run", "World", "batch_names", "start", "sys"]
