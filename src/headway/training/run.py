"""The public training API: `headway.start()` returns a `Run`.

A Run adds checkpoints, exact resume, data parallelism, metrics and export to an ordinary training loop:

run = headway.start()
model = run.place(model)
run.restore(model=model, optimizer=optimizer, data=loader)
for epoch in run.epochs(20):
    for x, y in run.steps(loader):
        with run.autocast():
            loss = cross_entropy(model(x), y)
        run.step(loss, optimizer)
        run.log(loss=loss)
    run.score({"accuracy": 0.9}, best="accuracy")
run.finish(bundle)
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import Tensor, nn

from headway.core.errors import BadInput, HeadwayError
from headway.data.loading.sampler import PaddingBatch
from headway.model import Model
from headway.spec.model import Cadence, Phase
from headway.training import accumulation
from headway.training.batches import Feed, RankBatches, batch_indices
from headway.training.checkpoint.init_weights import initialise
from headway.training.checkpoint.manager import CheckpointManager
from headway.training.compilation import CompileCache
from headway.training.context import Session, log_line
from headway.training.determinism import EVALUATION, MODEL, SETUP, RngSeeder
from headway.training.devices import default_generator
from headway.training.export import Bundle
from headway.training.iterables import length_of
from headway.training.manual_update import ManualUpdates
from headway.training.metrics.logger import MetricsLogger
from headway.training.nonfinite import NanGuard
from headway.training.optim import (
    Average,
    DistributedStepper,
    LocalStepper,
    StepFlags,
    StepRequest,
    StepResult,
)
from headway.training.precision import Precision
from headway.training.profiling import make_profiler
from headway.training.schedules import freeze, set_rate
from headway.training.settings import ComputeKeys, given_keys, read_settings, to_channels_last
from headway.training.step_arguments import Optimizers, read_optimizers, read_step_arguments
from headway.training.step_boundary import StepBoundary
from headway.training.step_times import BETWEEN, STEP, TIMES

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The rank's excepthook: HeadwayErrors print no traceback and set the exit code; out-of-memory errors print a hint.


_fatal_error_callbacks: list[Callable[[BaseException], object]] = []  # callbacks to call before the process exits


def install_excepthook() -> None:
    before = sys.excepthook
    _fatal_error_callbacks.clear()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for callback in _fatal_error_callbacks:
            callback(error)
        if isinstance(error, HeadwayError):
            log_line(str(error))
            raise SystemExit(error.exit_code)  # the supervisor does not retry exit code 2 (bad input)
        before(kind, error, trace)
        hint = accumulation.out_of_memory_hint(error)
        if hint:
            log_line(hint)

    sys.excepthook = hook


def on_fatal_error(callback: Callable[[BaseException], object]) -> None:
    """Register a callback that receives the error that is about to end the process."""
    _fatal_error_callbacks.append(callback)


M = TypeVar("M", bound=nn.Module)
_NO_FLAGS = StepFlags()


class Run:
    """One rank's handle on a run: checkpoints, exact resume, data parallelism, metrics and export for a training loop.

    Create it with `headway.start()`, once per process. The examples of its methods continue this one: `run`, `model`,
    `optimizer`, `loader` and `val` are the objects made here.

    Args:
        session: The rank's connections (run folder, lease, process group), opened by `headway.start()`.

    Attributes:
        name: The run's name.
        job: The job file as a `Job`, with every default filled in.
        config: The job file's `config`, or that of `headway.start` for a script started by hand.
        seed: The job file's seed.
        world: `rank`, `size` and `local_rank` of this process.
        device: This rank's `torch.device`.
        accumulate: Micro-batches per optimizer step, from the job's `accumulate`.

    Example:
        >>> import torch
        >>> import headway
        >>> from headway import Loader
        >>> run = headway.start(config={"epochs": 3, "lr": 0.1})
        >>> x = torch.linspace(0, 1, 32).reshape(-1, 1)
        >>> points = torch.utils.data.TensorDataset(x, 3 * x + 1)
        >>> loader, val = Loader(points, batch_size=8), Loader(points, batch_size=16, shuffle=False)
        >>> model = run.place(torch.nn.Linear(1, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=run.config["lr"])
        >>> _ = run.restore(model=model, optimizer=optimizer, data=loader)
        >>> for epoch in run.epochs(run.config["epochs"]):
        ...     for x, y in run.steps(loader):
        ...         loss = (model(x) - y).square().mean()
        ...         _ = run.step(loss, optimizer)
        ...         run.log(loss=loss)
        ...     with torch.no_grad():
        ...         error = sum((model(x) - y).square().sum() for x, y in run.evaluating(val))
        ...     _ = run.score({"mse": run.total(error).item() / len(points)}, best="mse", higher=False)
        >>> run.finish()
        >>> run.global_step
        12
    """

    def __init__(self, session: Session) -> None:
        rank_info = session.rank_info
        self._session = session
        self.name, self.job, self.world = rank_info.name, rank_info.job, rank_info.world
        self.config: Mapping[str, Any] = rank_info.job.config
        self.seed, self.device = rank_info.job.seed, session.device
        settings = self._settings = read_settings(self.job)
        self._micro_batching = accumulation.MicroBatching({"accumulate": settings.accumulate}, os.environ)
        self.accumulate = self._micro_batching.count
        self._profiler = make_profiler(self.config, os.environ, session.store, self.world.rank)
        self._seeder = RngSeeder(self.seed, self.world.rank, device_generator=default_generator(self.device))
        self._batches = RankBatches(session.group, self.device, self._seeder)
        self._batches.micros = self.accumulate
        self._metrics = MetricsLogger(session)
        self._modules: list[nn.Module] = []
        self._checkpoints = CheckpointManager(session, self._metrics.flush, self._modules)
        self._checkpoints.read_data_state = self._batches.state
        self._stepper: LocalStepper | DistributedStepper = (
            LocalStepper(self._modules) if self.world.size == 1 else DistributedStepper(self._modules)
        )
        self._manual = ManualUpdates(self._stepper, session.group)
        self._boundary = StepBoundary(session, self._checkpoints, self._metrics)
        self._feed: Any = None
        self._data: Any = None  # the data given to restore
        self._stages = 0
        self._epochs: int | None = None
        self._steps = 0  # expected optimizer steps by the end of the current epochs, as far as known
        self._early_stopped = False  # early stopping has triggered
        self._micro = 0  # micro-batches of the current step done
        self._part = 0  # index of this loop body's micro-batch, however often the body calls step
        self._counts = True  # False while the batch is a PaddingBatch
        self._weight: float | Tensor = 1.0
        self._share = 1.0  # size of this body's part of the batch, relative to an equal part
        self._stepped = False  # an update of this loop body has been counted as its step
        self._skipped = False
        self._nan_guard = NanGuard(str(self.config.get("nan", "stop")), self._modules)
        self._precision = Precision(settings.precision, self.device, strict=settings.strict, log=session.log)
        self._compiled: CompileCache | None = None
        self._stepper.scaler = self._precision.scaler
        self._averages: list[Average] = []
        self._phase: Phase | None = None
        self._restored = False
        RngSeeder(self.seed).reseed(SETUP)  # the same on every rank, so that all initialise models identically
        atexit.register(self._close)
        on_fatal_error(self._report_failure)
        start = f"run {self.name}, attempt {rank_info.attempt}, {session.description}, in {self.folder}"
        session.log(f"training {session.description}" if session.supervised else start)

    # Properties for the script

    @property
    def global_step(self) -> int:
        """Steps done, over all attempts. A step is a batch, however many optimizers it updates.

        Example:
            >>> run.global_step
            0
        """
        return self._checkpoints.position.step

    @property
    def epoch(self) -> int:
        """Number of the current epoch of this stage, from 0.

        Example:
            >>> [run.epoch for epoch in run.epochs(3)]
            [0, 1, 2]
        """
        return self._checkpoints.position.epoch

    @property
    def main(self) -> bool:
        """Whether this is rank 0.

        Example:
            >>> if run.main:
            ...     print(f"{sum(p.numel() for p in model.parameters())} parameters")
            2 parameters
        """
        return self.world.rank == 0

    @property
    def folder(self) -> str:
        """URL of the run folder.

        Example:
            >>> run.folder.endswith("/" + run.name)
            True
        """
        return self._session.store.url

    # Before the loop

    def place(self, model: M) -> M:
        """Move the model to this rank's device, apply the job's precision and broadcast rank 0's values.

        Also compiles the model if `compile` is set, and stores its weights channels last if `channels_last` is. Create
        optimizers from its parameters afterwards.

        Args:
            model: A module that this run trains. Call once per module.

        Returns:
            The same module.

        Example:
            >>> encoder = run.place(torch.nn.Linear(1, 4))
            >>> encoder.weight.device == run.device
            True
        """
        model.to(self.device)
        if self._settings.channels_last:
            to_channels_last(model)
        self._session.group.broadcast_tensors([*model.parameters(), *model.buffers()])
        self._precision.apply(model)
        if self._settings.compile:
            self._compile(model)
        self._modules.append(model)
        self._checkpoints.weight_check.exempt_existing(model)
        return model

    def average(self, model: nn.Module, decay: float = 0.999) -> Average:
        """Keep an exponential moving average of the model's weights, updated by every step and saved in checkpoints.

        Args:
            model: The placed model.
            decay: Weight of the old average in each update, from 0 up to but not including 1. It starts lower and rises
                to this value over the first steps.

        Returns:
            The average; evaluate and export with its weights inside `with average.swapped():`.

        Raises:
            BadInput: If called after `restore`, when a checkpoint could no longer fill it, or if `decay` is out of
                range.

        Example:
            >>> averaged = headway.start("runs/averaged")
            >>> model = averaged.place(torch.nn.Linear(1, 1))
            >>> average = averaged.average(model, decay=0.99)
            >>> _ = averaged.restore(model=model, data=loader)
            >>> with torch.no_grad(), average.swapped():
            ...     outputs = [model(x) for x, y in averaged.evaluating(val)]
        """
        if self._restored:
            raise BadInput(
                "run.average was called after run.restore, so no checkpoint can restore the average",
                fix="call run.average before run.restore",
            )
        self._averages.append(Average(model, decay))
        return self._averages[-1]

    def restore(self, *, data: Any = None, **objects: Any) -> int:
        """Load the newest intact checkpoint, or start at step 0, and log which.

        Every later checkpoint contains each object given here, under its keyword. Without this call the run writes no
        checkpoints. In a run without a checkpoint, the job's `init_from` fills `model`.

        Args:
            data: The training data, so that a resumed run can report data that has changed. A `Loader` without a seed
                gets the run's seed.
            **objects: What the run needs to continue: the model, optimizers, schedules, anything with `state_dict` and
                `load_state_dict`.

        Returns:
            The number of steps done: 0 in a new run.

        Raises:
            NoCheckpoint: If checkpoints were committed and none can be read.
            BadInput: If an object cannot be saved, or does not fit the checkpoint or the weights of `init_from`.

        Example:
            >>> run.restore(model=model, optimizer=optimizer, data=loader)
            0
        """
        if data is not None:
            self._batches.set_seed(data)
            self._data = data
            self._checkpoints.data = {"fingerprint": getattr(data, "fingerprint", None), "steps": length_of(data)}
        for number, average in enumerate(self._averages, start=1):
            objects.setdefault(f"average_{number}", average)
        if self._precision.scaler is not None:
            objects.setdefault("scaler", self._precision.scaler)
        loaded = self._checkpoints.restore(objects)
        self._restored = True
        if loaded is None:
            self._session.log("no checkpoint yet: starting at step 0")
            self._initialise(objects.get("model"))
        else:
            self._session.log(f"resuming from step {loaded.step}, in epoch {self.epoch + 1}")
            self._batches.restore(self._checkpoints.data_state)
        return self.global_step

    def keep_epochs(self, every: int) -> None:
        """Keep the checkpoint of every `every` epochs permanently, as epoch_N, unless the job sets
        `checkpoint.keep_every`.

        Args:
            every: Number of epochs between two such checkpoints.

        Example:
            >>> run.keep_epochs(5)
        """
        if self.job.checkpoint.keep_every is None:
            self._checkpoints.schedule.set_keep_every(Cadence(epochs=every))

    def on_export(self, bundle: Callable[[], Bundle]) -> None:
        """Set the function that makes the bundle when the run ends, also when the budget ends it early.

        The best weights are loaded before rank 0 calls it.

        Args:
            bundle: Returns an object whose `write(folder)` writes its files into an empty folder, such as a
                `headway.bundle.format.BundleParts`.

        Example:
            >>> from headway.bundle import BundleParts
            >>> run.on_export(
            ...     lambda: BundleParts(recipe="line", name="line", config=run.config, weights=model.state_dict())
            ... )
            >>> run.finish()
            >>> from headway.bundle import Bundle
            >>> sorted(Bundle.open(run.folder + "/export").weights())
            ['bias', 'weight']
        """
        self._boundary.bundle = bundle

    # The loop

    def phases(self, otherwise: Sequence[Phase] = ()) -> Iterator[Phase]:
        """Yield the job's remaining phases, or those of `otherwise` if the job defines none.

        Each phase trains only the parameters that its patterns match, at its own learning rate if it has one. Pass its
        `epochs` to `run.epochs`.

        Args:
            otherwise: Default phases, for jobs that define none.

        Yields:
            The phase to train now. A resumed run continues in the phase that it was in.

        Raises:
            BadInput: If a pattern of the phase matches no parameter.

        Example:
            >>> from headway.spec import Phase
            >>> head = Phase(name="head", epochs=1, train=("bias",))
            >>> full = Phase(name="full", epochs=2, lr=0.01)
            >>> for phase in run.phases([head, full]):
            ...     for epoch in run.epochs(phase.epochs):
            ...         print(phase.name, epoch, model.weight.requires_grad)
            head 0 False
            full 0 True
            full 1 True
        """
        position = self._checkpoints.position
        for number, phase in enumerate(self.job.phases or tuple(otherwise)):
            if number < position.stage:
                self._stages = number + 1
                continue
            self._phase = phase
            learning = freeze(self._modules, phase)
            self._session.log(f"phase {phase.name}: training {learning:,} parameters for {phase.epochs} epochs")
            if number > position.stage or not (position.epoch or position.batch):
                set_rate(self._checkpoints.objects.values(), phase.lr)
            yield phase

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that remain.

        Each call is a stage of its own, and a resumed run continues in the stage and epoch that it was in. A checkpoint
        is written after the last epoch, and after an epoch where the job's `checkpoint` settings ask for one.

        Args:
            count: Number of epochs of this stage.

        Yields:
            The epoch's number, from 0.

        Example:
            >>> list(run.epochs(2))
            [0, 1]
        """
        position = self._checkpoints.position
        stage, self._stages = self._stages, self._stages + 1
        if stage < position.stage:
            return
        if stage > position.stage:
            position.stage, position.epoch, position.batch = stage, 0, 0
        self._epochs, self._early_stopped = count, False
        self._metrics.begin(self.global_step, self._progress_numbers, self._checkpoints.resumed_attempt)
        while position.epoch < count:
            yield position.epoch
            to = count if self._early_stopped else position.epoch + 1
            self._boundary.after_epoch(to, last=to >= count)

    def steps(self, feed: Any) -> Iterator[Any]:
        """Yield this rank's batches of the current epoch, from the position of the checkpoint on.

        The run is checkpointed, stopped or ended only between two batches. With `accumulate` above 1, a batch is a
        micro-batch, and several make an optimizer step.

        Args:
            feed: A `Loader` or another `Feed`, from which each rank gets its part of the global batch. Also a
                DataLoader, a stream or any other iterable: docs/training-loop.md says how it is resumed and divided.

        Yields:
            The batch, with its tensors on this rank's device.

        Raises:
            BadInput: If `feed` gives no batch, is an iterator that is spent, or cannot be divided among ranks or into
                the micro-batches of `accumulate: auto`.

        Example:
            >>> for x, y in run.steps(loader):
            ...     _ = run.step((model(x) - y).square().mean(), optimizer)
            >>> run.global_step == len(loader)
            True
        """
        self._prepare(feed)
        position, boundary, batches = self._checkpoints.position, self._boundary, self._batches
        self._steps = self._expected_steps()
        divided = self.world.size * self.accumulate > 1
        TIMES.phase = STEP
        for batch in TIMES.timed(batches.training_batches(feed, position, self.accumulate)):
            counts = self._counts = type(batch) is not PaddingBatch
            self._share = batches.share(feed, position, self._micro, self.accumulate) if counts and divided else 1.0
            self._weight = self._share if counts else 0.0
            boundary.inside, boundary.reduced, self._stepped = True, None, False
            self._part = self._micro
            before = position.step
            if self._nan_guard.skips:
                self._nan_guard.before_step()
            if self._profiler is not None:
                self._profiler.before_step(before + 1)
            self._seeder.reseed(MODEL, position.updates, self._micro + self._manual.bodies)
            self._manual.begin_body(self._share if counts else 0.0)
            yield batch if counts and batches.on_cpu else batches.to_device(batch)
            boundary.inside = self._stepped = False
            if self._skipped:
                self._skipped = self._metrics.drop_body()
            self._metrics.end_body(self._weight, position.step, position.passed, micro=self._micro > 0)
            self._manual.end_body()
            if self._micro == 0:
                if self._profiler is not None:
                    self._profiler.after_step(position.step)
                position.batch += 1
                if not self._manual.pending:  # gradients are not saved
                    boundary.after_step(stepped=position.step > before)
        self._manual.require_none("at the end of the epoch")
        TIMES.phase = BETWEEN
        boundary.after_steps()

    @overload
    def step(
        self, loss: Tensor, optimizer: Optimizers, *, clip: float | None = None, scheduler: Any = None
    ) -> bool: ...

    @overload
    def step(
        self,
        optimizer: Optimizers,
        /,
        *,
        loss_sum: Tensor,
        weight: float | Tensor,
        clip: float | None = None,
        scheduler: Any = None,
    ) -> bool: ...

    def step(
        self,
        loss: Any = None,
        optimizer: Any = None,
        *,
        loss_sum: Tensor | None = None,
        weight: float | Tensor | None = None,
        clip: float | None = None,
        scheduler: Any = None,
    ) -> bool:
        """Run backward and update: `run.step(loss, optimizer)`, or `run.step(optimizer, loss_sum=…, weight=…)`.

        A mean loss gives the gradient of the mean over the whole batch, over ranks and micro-batches of any size; sums
        give that of sum(losses) / sum(weights). Several optimizers may alternate in one loop body (a discriminator's,
        then a generator's): each applies the gradients of its own calls only, and after an update no parameter has a
        gradient. However often it is called, one loop body is one step.

        Args:
            loss: The mean loss of this batch, as PyTorch's loss functions return it. Not together with `weight`.
            optimizer: The optimizer, or several that update together.
            loss_sum: Instead of `loss`: the loss as a sum over samples or tokens.
            weight: What `loss_sum` is a sum of: the number of samples or tokens.
            clip: Largest total norm of the gradients; larger ones are scaled down to it. None: no clipping. The job's
                `clip` takes precedence.
            scheduler: A schedule whose `step()` is called after the update.

        Returns:
            True when the weights have changed: with `accumulate`, on the last micro-batch only.

        Raises:
            BadInput: If it is given a loss together with `weight`, or only one of `loss_sum` and `weight`.
            RunFailed: If the loss or a gradient is not finite, unless `config.nan` is `skip`: then the batch is left
                out, and the run fails only after more than 10 such batches in a row.

        Example:
            >>> for x, y in run.steps(loader):
            ...     loss = (model(x) - y).square().mean()
            ...     updated = run.step(loss, optimizer, clip=1.0)
            >>> updated
            True
            >>> for x, y in run.steps(loader):
            ...     errors = (model(x) - y).square()
            ...     _ = run.step(optimizer, loss_sum=errors.sum(), weight=errors.numel())
        """
        if not self._checkpoints.prepared:
            self._precision.require_used()
        self._manual.require_none("before run.step")
        loss, optimizers, weight = read_step_arguments(loss, optimizer, loss_sum, weight, self._share)
        part = self._part if self._boundary.inside else self._micro
        last = part + 1 >= self._batches.micros
        flags = self._boundary.flags(stepped=self._stepped) if last and self.world.size > 1 else _NO_FLAGS
        if self._counts:
            self._weight = weight
        expected_weight = self._checkpoints.position.weight
        outcome = self._stepper.step(
            StepRequest(loss, optimizers, weight, self._settings.clip or clip, last, self._counts, expected_weight),
            flags,
        )
        if not last and outcome.finite:
            self._micro = part + 1
            return False
        self._micro = 0
        return self._after_update(outcome, scheduler)

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradient of a mean loss, as `loss.backward()` does; `update` applies what has added up.

        For loops that `step` cannot express: several losses, accumulation by hand, optimizers that take a closure.

        Args:
            loss: The mean loss of this batch. To accumulate over n batches, divide it by n, as in PyTorch.
            retain_graph: Whether another loss of the same graph follows.

        Raises:
            BadInput: If the job sets `accumulate`, which `step` does by itself.

        Example:
            >>> for number, (x, y) in enumerate(run.steps(loader), start=1):
            ...     run.backward((model(x) - y).square().mean() / 2)
            ...     if number % 2 == 0 or number == len(loader):
            ...         _ = run.update(optimizer, clip=1.0)
        """
        if self.accumulate > 1:
            raise BadInput(
                f"accumulate: {self.accumulate} is for run.step, and run.backward accumulates by hand",
                fix="set accumulate: 1, or call run.step(loss, optimizer)",
            )
        if not self._checkpoints.prepared:
            self._precision.require_used()
        self._manual.backward(loss, self._share if self._counts else 0.0, retain_graph=retain_graph)

    def update(
        self,
        optimizer: Optimizers,
        *,
        clip: float | None = None,
        scheduler: Any = None,
        closure: Callable[[], Any] | None = None,
    ) -> bool:
        """Apply the gradients of `backward`: average them over ranks, clip, step, and clear this optimizer's.

        Gradients of parameters that other optimizers update stay, so that several can be updated from one loss.

        Args:
            optimizer: The optimizer, or several that update together.
            clip: Largest total norm of the gradients; larger ones are scaled down to it. None: no clipping. The job's
                `clip` takes precedence.
            scheduler: A schedule whose `step()` is called after the update.
            closure: For optimizers that evaluate the loss themselves (LBFGS, SAM): clears the gradients, computes the
                loss, calls `run.backward(loss)` and returns it.

        Returns:
            True when the weights have changed.

        Raises:
            BadInput: If there are no gradients to apply.
            RunFailed: If a loss is not finite, as for `step`; inside a closure, always.

        Example:
            >>> lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
            >>> for x, y in run.steps(loader):
            ...     def closure():
            ...         lbfgs.zero_grad()
            ...         loss = (model(x) - y).square().mean()
            ...         run.backward(loss)
            ...         return loss
            ...     updated = run.update(lbfgs, closure=closure)
            >>> updated
            True
        """
        optimizers = read_optimizers(optimizer)
        flags = self._boundary.flags(stepped=self._stepped) if self.world.size > 1 else _NO_FLAGS
        outcome = self._manual.update(optimizers, self._settings.clip or clip, closure, flags)
        return self._after_update(outcome, scheduler, manual=True)

    def autocast(self) -> AbstractContextManager[None]:
        """Context manager: compute in the run's `precision`. With fp32, the default, it does nothing.

        Put the computation of the loss inside it, and `run.step` behind it. It covers everything that is called there:
        also a `training_step` or `generate` that bypasses the model's forward.

        Returns:
            The context manager.

        Example:
            >>> for x, y in run.steps(loader):
            ...     with run.autocast():
            ...         loss = (model(x) - y).square().mean()
            ...     _ = run.step(loss, optimizer)
        """
        return self._precision.autocast()

    def log(self, **values: Any) -> None:
        """Log numbers of this step without blocking the device.

        Inside `steps`, values are averaged over micro-batches and ranks, weighted as `step` weighs their losses.

        Args:
            **values: Metrics by name: numbers, or tensors of one element.

        Raises:
            BadInput: If a value is not one number.

        Example:
            >>> for x, y in run.steps(loader):
            ...     loss = (model(x) - y).square().mean()
            ...     _ = run.step(loss, optimizer)
            ...     run.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
        """
        if self._boundary.inside:
            self._metrics.collect(values)
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
        """Record the results of an evaluation, and mark the checkpoint of the best one.

        Call it on every rank; rank 0's values are recorded. Not for the step's own metrics: those are for `log`.

        Args:
            values: Scores by name.
            best: Name of the score that chooses the best checkpoint; by default the current phase's `best`, if any.
            higher: Whether a higher score is better.
            patience: End the current epochs after this many scores in a row without a new best. None: never.

        Returns:
            True if the score named by `best` is the best so far; False if none is named.

        Raises:
            BadInput: If `values` lacks the score that `best` names.

        Example:
            >>> run.score({"accuracy": 0.5}, best="accuracy", patience=3)
            True
            >>> run.score({"accuracy": 0.4}, best="accuracy", patience=3)
            False
        """
        self._boundary.check_stop()
        names, group = sorted(values), self._session.group
        flags, *_ = group.all_reduce_sums([self._boundary.stop_requested])
        self._boundary.stop_all(flags)
        record = dict(zip(names, group.broadcast([float(values[name]) for name in names]), strict=True))
        self._metrics.record(self.global_step, self._checkpoints.position.passed, record)
        self._session.log("  ".join(f"{name} {value:.4g}" for name, value in record.items()))
        self._session.event("score", step=self.global_step, **record)
        chosen = best or (self._phase.best if self._phase else None)
        if chosen is None:
            return False
        if chosen not in record:
            raise BadInput(f"best={chosen!r} is not among the scores: {', '.join(names)}")
        pointer = f"{self._phase.name}_best" if self._phase else "best"
        better = self._checkpoints.record_score(pointer, record[chosen] if higher else -record[chosen])
        since = self._checkpoints.scores.since_best[pointer]
        if patience is not None and since >= patience:
            self._early_stopped = True
            self._session.log(f"{chosen} has not improved in {since} evaluations: stopping early")
        return better

    def evaluating(self, feed: Any) -> Iterator[Any]:
        """Yield this rank's share of an evaluation: whole batches, round-robin over ranks.

        Aborts if the run is asked to stop. With several ranks, a rank that receives the request skips all batches but
        its first; all ranks stop together at the next `total` or `score`.

        Args:
            feed: A `Loader` or another `Feed`, a DataLoader or any iterable of batches.

        Yields:
            The batch, with its tensors on this rank's device.

        Example:
            >>> with torch.no_grad():
            ...     count = sum(len(x) for x, y in run.evaluating(val))
            >>> run.total(count)
            32.0
        """
        self._seeder.reseed(EVALUATION, self.global_step)
        with TIMES.during("evaluation"):
            for number, batch in enumerate(self._batches.evaluation_batches(feed)):
                self._boundary.check_stop()
                if number and self._boundary.stop_requested:
                    return
                yield self._batches.to_device(batch)

    def total(self, value: Any) -> Any:
        """Sum a number, a tensor or a dictionary of numbers over ranks. Call it on every rank.

        Args:
            value: This rank's sum or count. Pass sums and counts, not means.

        Returns:
            The sum over ranks: a float for a number, a tensor for a tensor, a dictionary of floats for a dictionary.

        Example:
            >>> run.total({"hits": 3, "samples": 4})
            {'hits': 3.0, 'samples': 4.0}
        """
        boundary, group = self._boundary, self._session.group
        boundary.check_stop()
        if isinstance(value, Tensor):
            boundary.stop_all(group.all_reduce_sums([boundary.stop_requested])[0])
            return group.all_reduce_tensor(value)
        numbers = list(value.values()) if isinstance(value, Mapping) else [value]
        flags, *sums = group.all_reduce_sums([boundary.stop_requested, *map(float, numbers)])
        boundary.stop_all(flags)
        return dict(zip(value, sums, strict=True)) if isinstance(value, Mapping) else sums[0]

    def sample(self, name: str, body: bytes) -> None:
        """Write an image, or any other file to look at, to samples/ in the run folder. Only rank 0 writes.

        Args:
            name: The file's name. The step is put in front of it.
            body: The file's bytes.

        Example:
            >>> run.sample("note.txt", b"looks right")
            >>> from headway.storage import open_store
            >>> open_store(run.folder).read("samples/00000000-note.txt")
            b'looks right'
        """
        if self.main:
            self._session.store.write(f"samples/{self.global_step:08d}-{name}", body)

    def finish(self, bundle: Bundle | None = None, *, model: type[Model] | None = None) -> None:
        """Write the last checkpoint and export a bundle. Call it once, at the end of the script.

        Args:
            bundle: The bundle to export, an object with `write(folder)`. By default the one that `on_export` makes of
                the best weights; without either, nothing is exported.
            model: The class of your model, a `headway.Model` in a module of its own. The bundle then holds the best
                weights, the files that the class names, and its code, for `headway serve` and the like. By default the
                job's `model`.

        Raises:
            RunFailed: If the weights to export are not finite.

        Example:
            >>> run.finish()
        """
        TIMES.phase = "finish"
        self._boundary.finish(bundle, model)

    # Internals

    def _after_update(self, outcome: StepResult, scheduler: Any, *, manual: bool = False) -> bool:
        """Count the update, and update what follows the weights; return whether they changed."""
        if outcome.reduced is not None:
            self._metrics.record_reduced(outcome.reduced, self.global_step)
            self._boundary.reduced = outcome.reduced
        if not outcome.finite:
            self._handle_nonfinite_batch()
            return False
        if self._nan_guard.skips:
            self._nan_guard.record_finite()
        checkpoints = self._checkpoints
        checkpoints.position.count_update(same_step=self._stepped)
        self._stepped = self._boundary.inside
        if outcome.reduced is not None and 0 < outcome.reduced.weight < math.inf and not manual:
            checkpoints.position.weight = outcome.reduced.weight
        for average in self._averages:
            average.update()
        if outcome.norm is not None:
            self._metrics.collect({"grad_norm": outcome.norm})
        if scheduler is not None:
            scheduler.step()
        if not checkpoints.prepared:
            checkpoints.prepare()
            if self._compiled is not None:
                self._compiled.save_soon()
        return True

    def _compile(self, model: nn.Module) -> None:
        """Compile the model's forward, with what an earlier attempt has compiled."""
        if self._compiled is None:
            session = self._session
            self._compiled = CompileCache(session.store, self._checkpoints.environment, first=session.is_first)
            if self._compiled.load():
                session.log("compiling with what an earlier attempt has compiled")
        model.compile()

    def _initialise(self, model: Any) -> None:
        """Load the weights of `init_from`, in a run that has no checkpoint yet."""
        url = self.job.init_from
        if not url:
            return
        if not isinstance(model, nn.Module):
            raise BadInput("init_from needs a model to load the weights into", fix="call run.restore(model=model, …)")
        initialise(model, url)
        self._session.log(f"starting from the weights of {url}")

    def _prepare(self, feed: Any) -> None:
        self._session.preemption.interruptible = False
        if self._micro_batching.automatic and not isinstance(feed, Feed):
            raise BadInput(
                f"accumulate: auto cannot split the batches of a {type(feed).__name__}",
                fix="use headway.runtime.Loader, or set the number of batches per step (accumulate: 2)",
            )
        self._warn_read_once(feed)
        self._metrics.begin(self.global_step, self._progress_numbers, self._checkpoints.resumed_attempt)
        self._feed = feed
        self._stepper.rebuild_buckets()
        if not self._restored:
            self._restored = True
            self._session.log("no checkpoints will be written: run.restore was not called")

    def _warn_read_once(self, feed: Any) -> None:
        """Refuse an iterator that would be spent after its first epoch, or say that it must be created anew."""
        left = (self._epochs or 0) - self.epoch
        if left < 2 or not hasattr(feed, "__next__") or feed is self._feed:
            return
        name = type(feed).__name__
        if feed is self._data:
            raise BadInput(
                f"this {name} can be read once, and {left} epochs are to be trained",
                fix="pass an iterable that starts again for every epoch: a DataLoader, a list, a class with __iter__",
            )
        if self._feed is None:
            self._session.log(f"this {name} can be read once: create it anew for every epoch, as run.steps({name}(…))")

    def _report_failure(self, error: BaseException) -> None:
        """Report a fatal error to the supervisor: its step and, if out of memory, the micro-batches to try next."""
        finer = self._micro_batching.next_count(error)
        details = {} if finer is None else {"cut_to": finer}
        self._session.control.event("failed", step=self.global_step, **details)

    def _close(self) -> None:
        if self._profiler is not None:
            self._profiler.close(self.global_step)
        if self._compiled is not None:
            self._compiled.save()
        self._boundary.close()
        self._batches.close()

    def _handle_nonfinite_batch(self) -> None:
        """Handle a batch whose loss is not finite: name it, then fail the run or skip the batch."""
        position = self._checkpoints.position
        indices = batch_indices(self._feed, position.passed, position.batch)
        what = f"step {position.step + 1}" + (f", items {', '.join(map(str, indices))}" if indices else "")
        where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        self._nan_guard.handle_nonfinite(where, what)
        self._skipped = True
        self._session.log(f"{where} was skipped: its loss is not finite ({what})")
        self._session.event("skipped", step=position.step, batch=position.batch, items=list(indices or ()))

    def _expected_steps(self) -> int:
        """Estimate the total number of steps. Call between steps only: within a step, `step` and `batch` disagree."""
        position = self._checkpoints.position
        steps = self._checkpoints.data.get("steps") or length_of(self._feed) or 0
        if not isinstance(self._feed, Feed):
            steps = -(-steps // self._batches.batches_per_step(self.accumulate))
        return position.step + max(0, ((self._epochs or 0) - position.epoch) * steps - position.batch)

    def _progress_numbers(self) -> dict[str, Any]:
        """Return the numbers of the progress line. Called from the reporter thread."""
        position = self._checkpoints.position
        numbers: dict[str, Any] = {"step": position.step, "epoch": position.epoch, "phase": TIMES.phase}
        if self._epochs is not None:  # after the last epoch, position.epoch is one past it
            numbers |= {"epochs": self._epochs, "epoch": min(position.epoch, max(0, self._epochs - 1))}
        if self._steps:
            numbers["steps"] = max(self._steps, position.step)
        loss = self._metrics.latest.get("loss")
        if loss is not None:
            numbers["loss"] = float(loss)
        return numbers


def start(
    folder: str | Path | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    seed: int = 0,
    checkpoint: Mapping[str, Any] | None = None,
    exact: bool = False,
    **compute: Unpack[ComputeKeys],
) -> Run:
    """Return this process's run: the supervisor's or, without one, a run under ./runs or in `folder`.

    A script that calls it runs under `headway run`, under `torchrun` and as `python train.py`. Call it before creating
    the model: it seeds the generators of Python, numpy and torch.

    Args:
        folder: Path or URL of the run folder, for scripts started by hand. A folder with a run in it continues that
            run. By default HEADWAY_RUN_URL, or else a new folder ./runs/NAME-N named after the script.
        config: The run's settings, for scripts started by hand. Under the supervisor, and in a folder that has a run,
            the recorded job's apply.
        seed: The run's seed, as for `config`.
        checkpoint: When to write checkpoints and which to keep, as in the job file: `{"every": "500 steps"}`.
        exact: Whether to use deterministic algorithms on GPUs, as for `config`.
        **compute: The job file's `precision`, `compile`, `accumulate`, `clip` and `channels_last`, as for `config`:
            `precision="bf16", clip=1.0`.

    Returns:
        The run.

    Raises:
        BadJob: If `checkpoint` or one of `compute` is not valid.
        BadInput: If RANK or WORLD_SIZE are no numbers, or a setting such as `accumulate` or `precision` is not known.
        StoreError: If the folder cannot be read or written.

    Example:
        >>> import headway
        >>> run = headway.start("runs/first", config={"lr": 0.1}, seed=1, checkpoint={"every": "500 steps"})
        >>> run.name, run.config["lr"], run.global_step
        ('first', 0.1, 0)
        >>> run.finish()
    """
    install_excepthook()
    settings = {**({"checkpoint": dict(checkpoint)} if checkpoint else {}), **({"exact": True} if exact else {})}
    settings |= given_keys(compute)
    return Run(Session(None if folder is None else str(folder), config or {}, seed, settings))
