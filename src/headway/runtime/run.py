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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headway.errors import BadInput, RunFailed
from headway.runtime.boundary import Boundary
from headway.runtime.exporting import Bundle
from headway.runtime.feed import Filler, batch_names
from headway.runtime.journal import Journal
from headway.runtime.keeping import Keeping
from headway.runtime.randomness import EVALUATION, MODEL, SETUP, Dice
from headway.runtime.session import Session
from headway.runtime.stepping import Alone, Optimizers, Request, Together, Wishes
from headway.runtime.supply import Supply

M = TypeVar("M", bound=nn.Module)
_NO_WISHES = Wishes()


class Run:
    """One rank's view of a run. Made by `headway.start()`."""

    def __init__(self, session: Session) -> None:
        identity = session.identity
        self._session = session
        self.name, self.job, self.world = identity.name, identity.job, identity.world
        self.config: Mapping[str, Any] = identity.job.config
        self.seed, self.device = identity.job.seed, session.device
        self.accumulate = int(self.config.get("accumulate", 1))
        self._dice = Dice(self.seed, self.world.rank, cuda=self.device.type == "cuda")
        self._supply = Supply(self.world, self.device, self._dice)
        self._journal = Journal(session)
        self._keeping = Keeping(session, self._journal.flush)
        self._modules: list[nn.Module] = []
        self._stepper: Alone | Together = Alone() if self.world.size == 1 else Together(self._modules)
        self._boundary = Boundary(session, self._keeping, self._journal, self._stepper)
        self._feed: Any = None
        self._stages = 0
        self._epochs: int | None = None
        self._micro = 0
        self._counts = True  # False while the batch is a filler
        self._weight: float | Tensor = 1.0
        self._restored = False
        Dice(self.seed).roll(SETUP)  # the same on every rank: models are born equal
        atexit.register(self._boundary.close)
        session.say(f"run {self.name}, attempt {identity.attempt}, {session.words}, in {self.folder}")

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
        self._session.gang.copy_from_first([*model.parameters(), *model.buffers()])
        self._modules.append(model)
        return model

    def restore(self, *, data: Any = None, **objects: Any) -> int:
        """Go on from the newest good checkpoint, or start afresh, and say which; returns the step.

        From here on everything given is part of every checkpoint, under the name it was given.
        """
        if data is not None:
            self._supply.adopt(data)
            steps = len(data) if hasattr(data, "__len__") else None
            self._keeping.data = {"fingerprint": getattr(data, "fingerprint", None), "steps": steps}
        loaded = self._keeping.restore(objects)
        self._restored = True
        if loaded is None:
            self._session.say("no checkpoint was ever committed here: starting at step 0")
        else:
            self._session.say(f"going on from step {loaded.step}, in epoch {self.epoch + 1}")
        return self.global_step

    def on_export(self, bundle: Callable[[], Bundle]) -> None:
        """How to make the bundle at the end, also when the budget ends it early. The best weights are in the model then."""
        self._boundary.bundle = bundle

    # The loop

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to do. A second call is a second stage: a run resumes inside the right one."""
        position = self._keeping.position
        stage, self._stages = self._stages, self._stages + 1
        if stage < position.stage:
            return
        if stage > position.stage:
            position.stage, position.epoch, position.batch = stage, 0, 0
        self._epochs = count
        self._journal.begin(self.global_step, self._look)
        while position.epoch < count:
            yield position.epoch
            self._boundary.after_epoch(last=position.epoch + 1 >= count)

    def steps(self, feed: Any) -> Iterator[Any]:
        """This rank's batches of the epoch, from where the run is. Between two of them it checkpoints, or stops."""
        self._prepare(feed)
        position, boundary = self._keeping.position, self._boundary
        for batch in self._supply.training(feed, position, self.accumulate):
            self._counts = not isinstance(batch, Filler)
            self._weight = 1.0 if self._counts else 0.0
            boundary.inside, boundary.agreed = True, None
            before = position.step
            self._dice.roll(MODEL, before, self._micro)
            yield self._supply.placed(batch)
            boundary.inside = False
            self._journal.end_body(self._weight, position.step, position.passed, micro=self._micro > 0)
            if self._micro == 0:
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
        """Backward and update with the gradient of (all losses) / (all weights), over ranks and micro-batches.

        True when the weights have changed: with `accumulate`, on the last micro-batch only.
        """
        last = self._micro + 1 >= self.accumulate
        optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
        wishes = self._boundary.wishes() if last and self.world.size > 1 else _NO_WISHES
        if self._counts:
            self._weight = weight
        outcome = self._stepper.step(Request(loss, optimizers, weight, clip, last, self._counts), wishes)
        if not outcome.finite:
            self._not_finite()
        if not last:
            self._micro += 1
            return False
        self._micro = 0
        if outcome.agreed is not None:
            self._journal.arrived(outcome.agreed, self.global_step)
            self._boundary.agreed = outcome.agreed
        self._keeping.position.step += 1
        if scheduler is not None:
            scheduler.step()
        self._keeping.prepare()
        return True

    def log(self, **values: Any) -> None:
        """Numbers of this step. Read from the device later; averaged over micro-batches and ranks by their weights."""
        if self._boundary.inside:
            self._journal.note(values)
        else:
            self._journal.record(self.global_step, self._keeping.position.passed, values)

    def score(self, values: Mapping[str, float], *, best: str | None = None, higher: bool = True) -> bool:
        """Results of an evaluation: rank 0's, on every rank. True when `best` names the best value so far."""
        self._boundary.heed()
        names = sorted(values)
        numbers = self._session.gang.from_first([float(values[name]) for name in names])
        record = dict(zip(names, numbers, strict=True))
        self._journal.record(self.global_step, self._keeping.position.passed, record)
        self._session.say("  ".join(f"{name} {value:.4g}" for name, value in record.items()))
        self._session.event("score", step=self.global_step, **record)
        if best is None:
            return False
        if best not in record:
            raise BadInput(f"{best!r}, which is to choose the best, is not among the scores: {', '.join(names)}")
        return self._keeping.judge("best", record[best] if higher else -record[best])

    def evaluating(self, feed: Any) -> Iterator[Any]:
        """This rank's share of an evaluation: whole batches, in turn. Given up when the run is asked to stop."""
        self._dice.roll(EVALUATION, self.global_step)
        for batch in self._supply.evaluation(feed):
            self._boundary.heed()
            yield self._supply.placed(batch)

    def total(self, value: Any) -> Any:
        """The sum over ranks of a number, a tensor or a dictionary: add up sums and counts, not means."""
        self._boundary.heed()
        gang = self._session.gang
        if isinstance(value, Tensor):
            return gang.sum_tensor(value)
        if isinstance(value, Mapping):
            return dict(zip(value, gang.sums([float(each) for each in value.values()]), strict=True))
        return gang.sums([float(value)])[0]

    def sample(self, name: str, body: bytes) -> None:
        """A picture, or anything else to look at, for the run's folder. Rank 0's only."""
        if self.main:
            self._session.store.write(f"samples/{self.global_step:08d}-{name}", body)

    def finish(self, bundle: Bundle | None = None) -> None:
        """Write what is left, export the bundle, or else what `on_export` makes of the best weights, and be done."""
        self._boundary.finish(bundle)

    # Inside

    def _prepare(self, feed: Any) -> None:
        self._session.stopping.interruptible = False
        self._journal.begin(self.global_step, self._look)
        self._feed = feed
        if isinstance(self._stepper, Together):
            self._stepper.relayout()
        if not self._restored:
            self._restored = True
            self._session.say("no checkpoints will be written: run.restore was not called")

    def _not_finite(self) -> None:
        position = self._keeping.position
        items = batch_names(self._feed, position.passed, position.batch)
        raise RunFailed(
            f"the loss is not finite at step {position.step + 1}"
            + (f": the batch holds items {', '.join(map(str, items))}" if items else ""),
            where=f"epoch {position.epoch + 1}, batch {position.batch + 1}",
            fix="lower the learning rate, clip gradients (clip=1.0), or look at that batch",
        )

    def _look(self) -> dict[str, Any]:
        """For the progress line; called from a thread."""
        position = self._keeping.position
        numbers: dict[str, Any] = {"step": position.step, "epoch": position.epoch}
        steps = self._keeping.data.get("steps") or (len(self._feed) if hasattr(self._feed, "__len__") else 0)
        if self._epochs is not None:
            numbers["epochs"] = self._epochs
            left = (self._epochs - position.epoch) * steps - position.batch
            numbers["steps"] = position.step + max(0, left)
        loss = self._journal.latest.get("loss")
        if loss is not None:
            numbers["loss"] = float(loss)
        return numbers


def start(folder: str | Path | None = None, *, config: Mapping[str, Any] | None = None, seed: int = 0) -> Run:
    """This process's run: the supervisor's, or without one a run of its own under ./runs or in `folder`.

    `config` and `seed` are for scripts started by hand; under the supervisor the job file says them.
    """
    return Run(Session(None if folder is None else str(folder), config or {}, seed))
