"""From where two runs part to why, in words: the likely cause, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.verify.findings import Compared, Histories
from headway.verify.suspects import Suspect

TINY = 1e-4  # differences of this size come from the order of additions, not from other numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The most likely reason, which lines to look at, and what to write instead."""

    words: str
    fix: str
    look_at: tuple[Suspect, ...] = ()


def likely_cause(compared: Compared, histories: Histories, resumed_from: int, suspects: Sequence[Suspect]) -> Cause:
    """Where the runs part tells most: before anything was killed, at the first step after it, or later."""
    seen = (histories.first_step, compared.first.step if compared.first else None)
    parted = min(step for step in seen if step is not None)
    if parted <= resumed_from:
        return _never_the_same(parted, compared, suspects)
    if histories.first_step == resumed_from + 1:
        return Cause(
            words=f"the first step after the resume ({parted}) sees other data or draws other numbers: the order of "
            "the data, or a generator of the script's own, is not restored",
            fix="give run.steps a headway.runtime.Loader, draw from the default generators, which are set for every "
            "step, or give the generator's holder a state_dict and pass it to run.restore",
            look_at=_of(suspects, "own", "iterator"),
        )
    return Cause(
        words="the steps after the resume begin alike and end apart: something that shapes the update or the model is "
        "not restored",
        fix="pass everything that changes while training to run.restore: each optimizer, schedule, scaler, and "
        "modules with buffers that are kept out of their state_dict",
        look_at=_of(suspects, "own", "iterator"),
    )


def _never_the_same(parted: int, compared: Compared, suspects: Sequence[Suspect]) -> Cause:
    """They differ before anything was killed: not the resume is at fault, but chance in the job itself."""
    unseeded = _of(suspects, "unseeded")
    if not unseeded and compared.largest < TINY:
        return Cause(
            words=f"two unbroken runs differ by a little (from step {parted} on): an operation that adds in another "
            "order each time",
            fix="exact: true in the job file has GPUs use deterministic kernels; on the CPU fix OMP_NUM_THREADS",
        )
    return Cause(
        words=f"unseeded randomness: the runs differ already at step {parted}, before anything was killed, so the job "
        "gives other results each time it is run",
        fix="seed every generator from run.seed, and shuffle by it; Python's, numpy's and torch's own are seeded for "
        "you",
        look_at=unseeded,
    )


def _of(suspects: Sequence[Suspect], *kinds: str) -> tuple[Suspect, ...]:
    return tuple(suspect for suspect in suspects if suspect.kind in kinds)
