"""The public training API: `headway.start()` returns a `Run`.

A Run adds checkpoints, exact resume, data parallelism, metrics and export to an ordinary training loop:

run = headway.start()
model = run.place(model)
run.restore(model=model, optimizer=optimizer, data=loader)
for epoch in run.epochs(20):
    for batch in run.steps(loader):
        run.step(loss_sum, optimizer, weight=count)
        run.log(loss=loss_sum / count)
    run.score({"accuracy": 0.9}, best="accuracy")
run.finish(bundle)
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headway.core.errors import BadInput
from headway.data.loading.sampler import PaddingBatch
from headway.spec.model import Cadence, Phase
from headway.training import hooks, oom
from headway.training.checkpoint.init_weights import initialise
from headway.training.checkpoint.manager import CheckpointManager
from headway.training.context import Session
from headway.training.data.dataset import Feed, batch_names
from headway.training.data.sampler import BatchSource
from headway.training.determinism import EVALUATION, MODEL, SETUP, RngSeeder
from headway.training.export import Bundle
from headway.training.metrics.logger import MetricsLogger
from headway.training.optim import (
    Average,
    DistributedStepper,
    LocalStepper,
    NanGuard,
    Optimizers,
    Precision,
    Request,
    StepFlags,
)
from headway.training.profiling import profiling
from headway.training.schedules import freeze, set_rate
from headway.training.step_boundary import StepBoundary

M = TypeVar("M", bound=nn.Module)
_NO_FLAGS = StepFlags()


class Run:
    """One rank's handle on a run, created by `headway.start()`."""

    def __init__(self, session: Session) -> None:
        identity = session.identity
        self._session = session
        self.name, self.job, self.world = identity.name, identity.job, identity.world
        self.config: Mapping[str, Any] = identity.job.config
        self.seed, self.device = identity.job.seed, session.device
        self._cuts = oom.MicroBatching(self.config, os.environ)
        self.accumulate = self._cuts.parts
        self._profiling = profiling(self.config, os.environ, session.store, self.world.rank)
        self._seeder = RngSeeder(self.seed, self.world.rank, cuda=self.device.type == "cuda")
        self._batches = BatchSource(self.world, self.device, self._seeder)
        self._metrics = MetricsLogger(session)
        self._modules: list[nn.Module] = []
        self._checkpoints = CheckpointManager(session, self._metrics.flush, self._modules)
        self._stepper: LocalStepper | DistributedStepper = (
            LocalStepper(self._modules) if self.world.size == 1 else DistributedStepper(self._modules)
        )
        self._boundary = StepBoundary(session, self._checkpoints, self._metrics)
        self._feed: Any = None
        self._stages = 0
        self._epochs: int | None = None
        self._steps = 0  # expected optimizer steps by the end of the current epochs, as far as known
        self._enough = False  # early stopping has triggered
        self._micro = 0  # micro-batches of the current step done
        self._part = 0  # index of this loop body's micro-batch, however often the body calls step
        self._counts = True  # False while the batch is a PaddingBatch
        self._weight: float | Tensor = 1.0
        self._skipped = False
        self._guard = NanGuard(str(self.config.get("nan", "stop")), self._modules)
        self._precision = Precision(str(self.config.get("precision", "fp32")), self.device)
        self._stepper.scaler = self._precision.scaler
        self._averages: list[Average] = []
        self._phase: Phase | None = None
        self._restored = False
        RngSeeder(self.seed).reseed(SETUP)  # the same on every rank, so that all initialise models identically
        atexit.register(self._close)
        hooks.tell(self._failed)
        start = f"run {self.name}, attempt {identity.attempt}, {session.words}, in {self.folder}"
        session.say(f"training {session.words}" if session.supervised else start)

    # Properties for the script

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self._checkpoints.position.step

    @property
    def epoch(self) -> int:
        return self._checkpoints.position.epoch

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
        """Move the model to this rank's device, apply the config's precision and broadcast rank 0's values.

        Returns the same module. Optimizers must be made from its parameters afterwards.
        """
        model.to(self.device)
        self._session.group.broadcast_tensors([*model.parameters(), *model.buffers()])
        self._precision.apply(model)
        if self.config.get("compile"):
            model.compile()
        self._modules.append(model)
        self._checkpoints.finite.accept(model)
        return model

    def average(self, model: nn.Module, decay: float = 0.999) -> Average:
        """Keep an exponential moving average of the model's weights, updated by every step and saved in checkpoints.

        Raises BadInput after `restore`: a checkpoint could no longer fill it.
        """
        if self._restored:
            raise BadInput(
                "an average must be known when a checkpoint is restored", fix="call run.average before run.restore"
            )
        self._averages.append(Average(model, decay))
        return self._averages[-1]

    def restore(self, *, data: Any = None, **objects: Any) -> int:
        """Load the newest intact checkpoint, or start at step 0; log which, and return the step.

        Every later checkpoint contains each object given here, under its keyword.
        """
        if data is not None:
            self._batches.adopt(data)
            steps = len(data) if hasattr(data, "__len__") else None
            self._checkpoints.data = {"fingerprint": getattr(data, "fingerprint", None), "steps": steps}
        for number, average in enumerate(self._averages, start=1):
            objects.setdefault(f"average_{number}", average)
        if self._precision.scaler is not None:
            objects.setdefault("scaler", self._precision.scaler)
        loaded = self._checkpoints.restore(objects)
        self._restored = True
        if loaded is None:
            self._session.say("no checkpoint yet: starting at step 0")
            self._initialise(objects.get("model"))
        else:
            self._session.say(f"resuming from step {loaded.step}, in epoch {self.epoch + 1}")
        return self.global_step

    def keep_epochs(self, every: int) -> None:
        """Keep the checkpoint of every `every` epochs permanently, as epoch_N, unless the job sets its own rule."""
        if self.job.checkpoint.keep_every is None:
            self._checkpoints.schedule.keep_for_good(Cadence(epochs=every))

    def on_export(self, bundle: Callable[[], Bundle]) -> None:
        """Set the function that makes the bundle when the run ends, also when the budget ends it early.

        The best weights are loaded before it is called.
        """
        self._boundary.bundle = bundle

    # The loop

    def phases(self, otherwise: Sequence[Phase] = ()) -> Iterator[Phase]:
        """Yield the job's remaining phases, or those of `otherwise` if the job defines none.

        Each phase trains only the parameters that it names; pass its `epochs` to `run.epochs`.
        """
        position = self._checkpoints.position
        for number, phase in enumerate(self.job.phases or tuple(otherwise)):
            if number < position.stage:
                self._stages = number + 1
                continue
            self._phase = phase
            learning = freeze(self._modules, phase)
            self._session.say(f"phase {phase.name}: {learning:,} numbers learn for {phase.epochs} epochs")
            if number > position.stage or not (position.epoch or position.batch):
                set_rate(self._checkpoints.objects.values(), phase.lr)
            yield phase

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs. Each call is a stage of its own, and a resumed run continues in the right one."""
        position = self._checkpoints.position
        stage, self._stages = self._stages, self._stages + 1
        if stage < position.stage:
            return
        if stage > position.stage:
            position.stage, position.epoch, position.batch = stage, 0, 0
        self._epochs, self._enough = count, False
        self._metrics.begin(self.global_step, self._look, self._checkpoints.resumed_attempt)
        while position.epoch < count:
            yield position.epoch
            to = count if self._enough else position.epoch + 1
            self._boundary.after_epoch(to, last=to >= count)

    def steps(self, feed: Any) -> Iterator[Any]:
        """Yield this rank's batches of the epoch from the current position; checkpoint or stop only between them."""
        self._prepare(feed)
        position, boundary, batches = self._checkpoints.position, self._boundary, self._batches
        self._steps = self._expected()
        for batch in batches.training(feed, position, self.accumulate):
            counts = self._counts = type(batch) is not PaddingBatch
            self._weight = 1.0 if counts else 0.0
            boundary.inside, boundary.agreed = True, None
            self._part = self._micro
            before = position.step
            if self._guard.skips:
                self._guard.before_step()
            if self._profiling is not None:
                self._profiling.before_step(before + 1)
            self._seeder.reseed(MODEL, before, self._micro)
            yield batch if counts and batches.on_cpu else batches.placed(batch)
            boundary.inside = False
            if self._skipped:
                self._skipped = self._metrics.forget_body()
            self._metrics.end_body(self._weight, position.step, position.passed, micro=self._micro > 0)
            if self._micro == 0:
                if self._profiling is not None:
                    self._profiling.after_step(position.step)
                position.batch += 1
                boundary.after_step(stepped=position.step > before)
        boundary.after_steps()

    def step(
        self,
        loss: Tensor,
        optimizer: Optimizers,
        *,
        weight: float | Tensor = 1.0,
        clip: float | None = None,
        scheduler: Any = None,
    ) -> bool:
        """Run backward and update with the gradient of sum(losses) / sum(weights) over ranks and micro-batches.

        Returns True when the weights have changed: with `accumulate`, on the last micro-batch only. Several optimizers
        may alternate in one loop body (a discriminator's, then a generator's): each applies the gradients of its own
        calls only, and after an update no parameter has a gradient.
        """
        part = self._part if self._boundary.inside else self._micro
        last = part + 1 >= self.accumulate
        optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
        flags = self._boundary.flags() if last and self.world.size > 1 else _NO_FLAGS
        if self._counts:
            self._weight = weight
        expected_weight = self._checkpoints.position.weight
        outcome = self._stepper.step(
            Request(loss, optimizers, weight, clip, last, self._counts, expected_weight), flags
        )
        if not last and outcome.finite:
            self._micro = part + 1
            return False
        self._micro = 0
        if outcome.agreed is not None:
            self._metrics.arrived(outcome.agreed, self.global_step)
            self._boundary.agreed = outcome.agreed
        if not outcome.finite:
            self._leave_out()
            return False
        if self._guard.skips:
            self._guard.good()
        checkpoints = self._checkpoints
        checkpoints.position.step += 1
        if outcome.agreed is not None and 0 < outcome.agreed.weight < math.inf:
            checkpoints.position.weight = outcome.agreed.weight
        for average in self._averages:
            average.update()
        if outcome.norm is not None:
            self._metrics.note({"grad_norm": outcome.norm})
        if scheduler is not None:
            scheduler.step()
        if not checkpoints.prepared:
            checkpoints.prepare()
        return True

    def log(self, **values: Any) -> None:
        """Log this step's numbers without blocking the device; average over micro-batches and ranks by weight."""
        if self._boundary.inside:
            self._metrics.note(values)
        else:
            self._metrics.record(self.global_step, self._checkpoints.position.passed, values)

    def score(
        self,
        values: Mapping[str, float],
        *,
        best: str | None = None,
        higher: bool = True,
        patience: int | None = None,
    ) -> bool:
        """Record evaluation results (rank 0's, on every rank); return True if the metric `best` is the best so far.

        With `patience`, that many scores in a row without a new best end the current epochs.
        """
        self._boundary.heed()
        names, group = sorted(values), self._session.group
        flags, *_ = group.sums([self._boundary.stop_requested])
        self._boundary.stop_all(flags)
        record = dict(zip(names, group.broadcast([float(values[name]) for name in names]), strict=True))
        self._metrics.record(self.global_step, self._checkpoints.position.passed, record)
        self._session.say("  ".join(f"{name} {value:.4g}" for name, value in record.items()))
        self._session.event("score", step=self.global_step, **record)
        chosen = best or (self._phase.best if self._phase else None)
        if chosen is None:
            return False
        if chosen not in record:
            raise BadInput(f"{chosen!r}, which is to choose the best, is not among the scores: {', '.join(names)}")
        pointer = f"{self._phase.name}_best" if self._phase else "best"
        better = self._checkpoints.judge(pointer, record[chosen] if higher else -record[chosen])
        since = self._checkpoints.scores.since_best[pointer]
        if patience is not None and since >= patience:
            self._enough = True
            self._session.say(f"{chosen} has not improved in {since} evaluations: enough")
        return better

    def evaluating(self, feed: Any) -> Iterator[Any]:
        """Yield this rank's share of the evaluation: whole batches, round-robin. Abort if the run is asked to stop.

        With several ranks, a rank that receives the request skips all batches but its first; all ranks stop together at
        the next `total` or `score`.
        """
        self._seeder.reseed(EVALUATION, self.global_step)
        for number, batch in enumerate(self._batches.evaluation(feed)):
            self._boundary.heed()
            if number and self._boundary.stop_requested:
                return
            yield self._batches.placed(batch)

    def total(self, value: Any) -> Any:
        """Sum a number, a tensor or a dictionary over ranks. Pass sums and counts, not means."""
        boundary, group = self._boundary, self._session.group
        boundary.heed()
        if isinstance(value, Tensor):
            boundary.stop_all(group.sums([boundary.stop_requested])[0])
            return group.sum_tensor(value)
        numbers = list(value.values()) if isinstance(value, Mapping) else [value]
        flags, *sums = group.sums([boundary.stop_requested, *map(float, numbers)])
        boundary.stop_all(flags)
        return dict(zip(value, sums, strict=True)) if isinstance(value, Mapping) else sums[0]

    def sample(self, name: str, body: bytes) -> None:
        """Write an image, or any other file to look at, to samples/ in the run folder. Only rank 0 writes."""
        if self.main:
            self._session.store.write(f"samples/{self.global_step:08d}-{name}", body)

    def finish(self, bundle: Bundle | None = None) -> None:
        """Write the last checkpoint, then export `bundle`, or else the `on_export` bundle of the best weights."""
        self._boundary.finish(bundle)

    # Internals

    def _initialise(self, model: Any) -> None:
        """Load the weights of `init_from`, in a run that has no checkpoint yet."""
        url = self.job.init_from
        if not url:
            return
        if not isinstance(model, nn.Module):
            raise BadInput("init_from has no model to fill", fix="run.restore(model=model, …)")
        initialise(model, url)
        self._session.say(f"starting from the weights of {url}")

    def _prepare(self, feed: Any) -> None:
        self._session.stopping.interruptible = False
        if self._cuts.automatic and not isinstance(feed, Feed):
            raise BadInput(
                f"accumulate: auto cannot cut the batches of a {type(feed).__name__}",
                fix="use headway.runtime.Loader, or say how many batches make a step (accumulate: 2)",
            )
        self._metrics.begin(self.global_step, self._look, self._checkpoints.resumed_attempt)
        self._feed = feed
        self._stepper.rebuild_buckets()
        if not self._restored:
            self._restored = True
            self._session.say("no checkpoints will be written: run.restore was not called")

    def _failed(self, error: BaseException) -> None:
        """Report a fatal error to the supervisor: its step and, if out of memory, the micro-batches to try next."""
        finer = self._cuts.finer(error)
        details = {} if finer is None else {"cut_to": finer}
        self._session.control.event("failed", step=self.global_step, **details)

    def _close(self) -> None:
        if self._profiling is not None:
            self._profiling.close(self.global_step)
        self._boundary.close()
        self._batches.close()

    def _leave_out(self) -> None:
        """Handle a batch whose loss is not finite: name it, then fail the run or skip the batch."""
        position = self._checkpoints.position
        items = batch_names(self._feed, position.passed, position.batch)
        what = f"step {position.step + 1}" + (f", items {', '.join(map(str, items))}" if items else "")
        where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        self._guard.bad(where, what)
        self._skipped = True
        self._session.say(f"{where} was left out: its loss is not finite ({what})")
        self._session.event("skipped", step=position.step, batch=position.batch, items=list(items or ()))

    def _expected(self) -> int:
        """Estimate the total number of steps. Call between steps only: within a step, `step` and `batch` disagree."""
        position = self._checkpoints.position
        steps = self._checkpoints.data.get("steps") or (len(self._feed) if hasattr(self._feed, "__len__") else 0)
        return position.step + max(0, ((self._epochs or 0) - position.epoch) * steps - position.batch)

    def _look(self) -> dict[str, Any]:
        """Return the numbers of the progress line. Called from the reporter thread."""
        position = self._checkpoints.position
        numbers: dict[str, Any] = {"step": position.step, "epoch": position.epoch}
        if self._epochs is not None:  # after the last epoch, position.epoch is one past it
            numbers |= {"epochs": self._epochs, "epoch": min(position.epoch, max(0, self._epochs - 1))}
        if self._steps:
            numbers["steps"] = max(self._steps, position.step)
        loss = self._metrics.latest.get("loss")
        if loss is not None:
            numbers["loss"] = float(loss)
        return numbers


def start(folder: str | Path | None = None, *, config: Mapping[str, Any] | None = None, seed: int = 0) -> Run:
    """Return this process's run: the supervisor's or, without one, a run under ./runs or in `folder`.

    `config` and `seed` are for scripts started by hand; under the supervisor the job file sets them.
    """
    hooks.install()
    return Run(Session(None if folder is None else str(folder), config or {}, seed))
